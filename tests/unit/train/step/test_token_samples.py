from __future__ import annotations

import json
import math

import pytest
import torch

from tepo_lab.records.files import TOKEN_COLUMNS
from tepo_lab.train.step.scoring import pack
from tepo_lab.train.step.token_samples import GROUPS, RESPONSES, TokenSample, token_texts
from tepo_lab.train.trial import Trial, run_trial


def read(folder, step):
    return json.loads(folder.tokens(step).read_text())


def all_responses(folder, step):
    return [response for group in read(folder, step)["groups"] for response in group["responses"]]


def metrics_without_times(folder):
    return [
        {k: v for k, v in line.items() if not k.startswith("seconds/") and k != "time"} for line in folder.metrics()
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def run(small_run, finished):
    spec, folder = small_run("tepo", "trainer.steps=2", home=finished)
    if not folder.generations(2).exists():
        run_trial(spec, folder)
    return spec, folder


@pytest.mark.integration
def test_the_last_step_leaves_a_few_mixed_groups_with_right_and_wrong_responses(run):
    _, folder = run
    assert folder.token_steps() == [2]
    values = read(folder, 2)
    assert values["step"] == 2
    assert len(values["groups"]) == GROUPS
    for group in values["groups"]:
        rewards = [response["reward"] for response in group["responses"]]
        assert {0.0, 1.0} == set(rewards)
        assert max(rewards.count(0.0), rewards.count(1.0)) <= RESPONSES
        assert all(response["tokens"][0] for response in group["responses"])
    for response in all_responses(folder, 2):
        assert {len(response[name]) for name in TOKEN_COLUMNS} == {response["length"]}
        assert (response["advantage"] > 0) == (response["reward"] > 0)


@pytest.mark.integration
def test_values_of_a_token_agree_with_each_other(run):
    for response in all_responses(run[1], 2):
        for old, new, ratio in zip(response["old_log_prob"], response["log_prob"], response["ratio"], strict=True):
            assert ratio == pytest.approx(math.exp(new - old), rel=1e-4, abs=1e-5)
        # TEPO's weight is the geometric mean of the response's ratios, the same for each of its tokens.
        mean = sum(map(math.log, response["ratio"])) / response["length"]
        assert response["weight"] == pytest.approx([math.exp(mean)] * response["length"], rel=1e-4)
        expected = [int(response["advantage"] > 0 and change < 0) for change in response["entropy_change"]]
        assert response["mask"] == expected


@pytest.mark.integration
def test_old_log_probs_are_the_policys_before_the_updates_and_new_ones_after(small_run):
    spec, folder = small_run("tepo", "trainer.steps=1")
    trial = Trial(spec, folder)
    experience = trial.collector.collect(1, 0)
    sample = TokenSample(trial.learner, experience.groups)
    score = trial.learner.scorer
    first = experience.groups[0]
    packed = pack([first.prompt_ids], [first.responses[0].token_ids], trial.loaded.pad_id)
    with torch.no_grad():
        old = score(packed).log_probs[0]
    trial.learner.learn(1, experience.groups)
    with torch.no_grad():
        new = score(packed).log_probs[0]
    assert not torch.equal(old, new)
    found = sample.values(trial.loaded.tokenizer)[0]["responses"]
    texts = token_texts(trial.loaded.tokenizer, first.responses[0].token_ids)
    own = next(response for response in found if response["tokens"] == texts)
    assert own["old_log_prob"] == pytest.approx(old.tolist(), abs=2e-5)
    assert own["log_prob"] == pytest.approx(new.tolist(), abs=2e-5)


@pytest.mark.integration
def test_looking_at_tokens_changes_no_number_of_the_training(small_run, tmp_path):
    # Clip-Cov draws at random in its loss, so that a draw too many would show.
    spec, looked = small_run("clip_cov", "trainer.steps=2", "trainer.tokens_every=1", home=tmp_path / "looked")
    run_trial(spec, looked)
    spec, plain = small_run("clip_cov", "trainer.steps=2", home=tmp_path / "plain")
    run_trial(spec, plain)
    assert looked.name == plain.name
    assert looked.token_steps() == [1, 2]
    assert plain.token_steps() == [2]
    assert metrics_without_times(looked) == metrics_without_times(plain)
    assert looked.tokens(2).read_bytes() == plain.tokens(2).read_bytes()
    assert "mask" not in all_responses(plain, 2)[0]


@pytest.mark.integration
def test_a_run_that_dies_leaves_the_same_token_files(small_run, tmp_path):
    options = ("trainer.steps=4", "trainer.tokens_every=1")
    spec, whole = small_run("tepo", *options, home=tmp_path / "whole")
    run_trial(spec, whole)
    spec, folder = small_run("tepo", *options)
    dying = Trial(spec, folder)
    for _ in range(3):
        dying.advance()
    assert folder.token_steps() == [1, 2, 3]
    resumed = Trial(spec, folder)
    # The checkpoint is of step 2; what the third step left is made again with it.
    assert folder.token_steps() == [1, 2]
    while not resumed.done:
        resumed.advance()
    assert [folder.tokens(step).read_bytes() for step in range(1, 5)] == [
        whole.tokens(step).read_bytes() for step in range(1, 5)
    ]


@pytest.mark.integration
def test_a_step_without_any_mixed_group_leaves_an_empty_file(small_run):
    spec, folder = small_run("grpo_dapo", "trainer.steps=1", "rollout.max_new_tokens=1")
    run_trial(spec, folder)
    assert read(folder, 1) == {"step": 1, "groups": []}


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids, **_):
        return bytes(ids).decode(errors="replace")


def test_a_character_of_several_tokens_stands_with_its_last():
    assert token_texts(Bytes(), "aΔ\n€b".encode()) == ["a", "", "Δ", "\n", "", "", "€", "b"]
    assert token_texts(Bytes(), "a€".encode()[:-1]) == ["a", "", "\ufffd"]
    assert token_texts(Bytes(), b"") == []


def test_token_texts_of_the_embedded_model_join_to_the_response(nano):
    ids = nano.tokenizer("12+3*4=").input_ids
    assert "".join(token_texts(nano.tokenizer, ids)) == nano.tokenizer.decode(ids)
    assert len(token_texts(nano.tokenizer, ids)) == len(ids)
