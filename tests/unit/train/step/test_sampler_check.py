"""A sampler whose log-probabilities are not the trainer's makes its run suspect."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import pytest

from tepo_lab.records.events import Suspect
from tepo_lab.records.history import RunHistory
from tepo_lab.rollout.engine import Sampling
from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.train import trial as module
from tepo_lab.train.engines import open_engine
from tepo_lab.train.step.sampler_check import CheckedEngine
from tepo_lab.train.trial import run_trial


@pytest.fixture
def sampler(monkeypatch):
    """Has the trials' engines claim this log-probability for every token."""

    def claim(value: float) -> None:
        def opened(*arguments):
            engine = open_engine(*arguments)
            generate = engine.generate

            def claimed(*prompts, **settings):
                return [
                    [replace(each, log_probs=tuple(value for _ in each.token_ids)) for each in group]
                    for group in generate(*prompts, **settings)
                ]

            monkeypatch.setattr(engine, "generate", claimed)
            return engine

        monkeypatch.setattr(module, "open_engine", opened)

    return claim


class Copy(TransformersEngine):
    """Samples with a copy of the trainer's weights, and takes them over when it is told to, if it `syncs`."""

    gives_log_probs = True

    def __init__(self, loaded, *, syncs):
        super().__init__(deepcopy(loaded.model), end_ids=loaded.end_ids, pad_id=loaded.pad_id)
        self.trained, self.syncs = loaded.model, syncs

    def sync_weights(self):
        if self.syncs:
            self.model.load_state_dict(self.trained.state_dict())


def evaluations(folder):
    return [evaluation.sampler_mismatch for evaluation in RunHistory.read(folder).evaluations.values()]


def suspicions(folder):
    return [event for event in RunHistory.read(folder).events if isinstance(event, Suspect)]


@pytest.mark.integration
def test_a_strayed_sampler_is_recorded_once_with_the_numbers(small_run, sampler):
    sampler(-1000.0)
    spec, folder = small_run("tepo_no_kl", "trainer.steps=2", "trainer.dynamic_sampling='off'")
    assert run_trial(spec, folder).phase == "complete"
    (event,) = suspicions(folder)
    means = [step["rollout/sampler_mismatch_mean"] for step in folder.metrics()]
    assert event.step == 1
    assert 950 < means[0] < 1000
    assert event.why.startswith(f"the sampler's log-probabilities are {means[0]:.3g} nats from the trainer's")
    assert event.why.endswith("rollout.max_sampler_mismatch (0.001)")


@pytest.mark.integration
def test_within_the_limit_nothing_is_said(small_run, sampler):
    sampler(-1.0)
    given = ("trainer.steps=1", "trainer.dynamic_sampling='off'", "rollout.max_sampler_mismatch=50")
    spec, folder = small_run("tepo_no_kl", *given)
    run_trial(spec, folder)
    assert folder.metrics()[0]["rollout/sampler_mismatch_mean"] < 50
    assert suspicions(folder) == []


@pytest.mark.integration
def test_log_probabilities_that_are_no_numbers_are_suspect(small_run, sampler):
    sampler(-math.inf)
    spec, folder = small_run("tepo_no_kl", "trainer.steps=1", "trainer.dynamic_sampling='off'")
    run_trial(spec, folder)
    assert "not finite" in suspicions(folder)[0].why
    assert folder.metrics()[0]["rollout/sampler_mismatch_mean"] is None
    assert evaluations(folder) == [None]


@pytest.mark.integration
def test_an_untrained_models_evaluation_is_checked(small_run, sampler):
    sampler(-1000.0)
    spec, folder = small_run("base")
    run_trial(spec, folder)
    (mean,) = evaluations(folder)
    (event,) = suspicions(folder)
    assert 900 < mean < 1000
    assert event.step == 0
    assert f"are {mean:.3g} nats from the trainer's" in event.why


@pytest.mark.integration
def test_a_sync_that_only_the_evaluation_can_see_is_checked(small_run, monkeypatch):
    """The weights after the last step are sampled by the evaluation alone."""

    def opened(spec, loaded, process_group):
        return Copy(loaded, syncs=syncs)

    monkeypatch.setattr(module, "open_engine", opened)
    found = {}
    for syncs in (True, False):
        given = ("trainer.steps=1", "trainer.dynamic_sampling='off'", "trainer.learning_rate=1e-2")
        spec, folder = small_run("tepo_no_kl", *given, seed=1 + syncs)
        run_trial(spec, folder)
        assert folder.metrics()[0]["rollout/sampler_mismatch_mean"] < 1e-4
        found[syncs] = evaluations(folder)[0], [event.step for event in suspicions(folder)]
    assert found[True][0] < 1e-4
    assert found[False][0] > 0.05
    assert (found[True][1], found[False][1]) == ([], [1])


@pytest.mark.integration
def test_a_sampler_that_is_the_trainers_model_is_not_checked(small_run):
    spec, folder = small_run("base")
    run_trial(spec, folder)
    (evaluation,) = RunHistory.read(folder).evaluations.values()
    assert not evaluation.checks_sampler


def test_of_each_call_the_first_responses_are_compared_at_its_temperature(nano):
    prompts = nano.tokenizer(["a1b+2c=", "a3b*4c=", "a5b-6c=", "a7b+8c="])["input_ids"]
    checked = CheckedEngine(Copy(nano, syncs=True), calls=3)
    for sampling in (Sampling(0.0, 12), Sampling(0.6, 12, seed=1), Sampling(1.0, 12, top_p=0.5)):
        groups = checked.generate(prompts, samples=2, sampling=sampling)
        assert len(groups) == 4
    # Of three calls two responses each; what top_p has cut cannot be compared.
    assert [kept[0] for kept in checked.kept] == [1.0, 1.0, 0.6, 0.6]
    assert checked.mismatch(nano) < 1e-5
    checked.kept = [(2.0, *kept[1:]) for kept in checked.kept]
    assert checked.mismatch(nano) > 0.01
