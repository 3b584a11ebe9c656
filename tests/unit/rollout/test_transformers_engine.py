from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tepo_lab.rollout.engine import Sampling
from tepo_lab.rollout.transformers_engine import TransformersEngine, _choose

PROMPTS = ["a59b*3c*5=", "a10b+1c+2d+3e+4=", "a77b-9c*2d+1=", "a12b+5c-6d*2e+3f-1="]


@pytest.fixture
def engine(nano):
    return TransformersEngine(nano.model, end_ids=nano.end_ids, pad_id=nano.pad_id)


@pytest.fixture
def prompts(nano):
    return nano.tokenizer(PROMPTS)["input_ids"]


def test_greedy_decoding_equals_generate(nano, engine, prompts):
    found = engine.generate(prompts, samples=1, sampling=Sampling(0.0, 60))
    for prompt, (response,) in zip(prompts, found, strict=True):
        theirs = nano.model.generate(torch.tensor([prompt]), max_new_tokens=60, do_sample=False)[0, len(prompt) :]
        assert list(response.token_ids) == theirs.tolist()


def test_responses_end_with_an_end_token_or_are_truncated(nano, engine, prompts):
    for limit in (3, 60):
        for group in engine.generate(prompts, samples=8, sampling=Sampling(1.0, limit, seed=5)):
            for response in group:
                assert response.truncated == (response.token_ids[-1] not in nano.end_ids)
                assert not set(response.token_ids[:-1]) & set(nano.end_ids)
                if response.truncated:
                    assert len(response.token_ids) == limit


def test_the_same_seed_gives_the_same_responses_and_another_seed_others(engine, prompts):
    first, again, other = (
        engine.generate(prompts, samples=4, sampling=Sampling(1.0, 40, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_leaving_finished_rows_out_does_not_change_the_others(engine, prompts, monkeypatch):
    sampling = Sampling(1.0, 60, seed=3)
    compacted = engine.generate(prompts, samples=8, sampling=sampling)
    monkeypatch.setattr("tepo_lab.rollout.transformers_engine.COMPACT_AT", 2.0)
    assert engine.generate(prompts, samples=8, sampling=sampling) == compacted


def test_counting_seldom_does_not_change_the_responses(engine, prompts):
    sampling = Sampling(1.0, 60, seed=3)
    expected = engine.generate(prompts, samples=8, sampling=sampling)
    engine.counts_every = 16
    assert engine.generate(prompts, samples=8, sampling=sampling) == expected


@pytest.mark.parametrize("rows", [3, 512])
def test_each_response_is_reported_once_and_some_before_others_are_sampled(nano, prompts, rows, monkeypatch):
    engine = TransformersEngine(nano.model, end_ids=nano.end_ids, pad_id=nano.pad_id, sequences_per_batch=rows)
    events = []
    forward = nano.model.forward
    monkeypatch.setattr(nano.model, "forward", lambda **given: events.append("token") or forward(**given))
    groups = engine.generate(
        prompts, samples=8, sampling=Sampling(1.0, 60, seed=3), finished=lambda *given: events.append(given)
    )
    reported = [event for event in events if event != "token"]
    assert sorted(reported) == [(p, s, response) for p, group in enumerate(groups) for s, response in enumerate(group)]
    assert "token" in events[events.index(reported[0]) :]


def test_neither_batches_nor_shares_change_what_a_prompt_samples(nano, engine, prompts):
    sampling = Sampling(1.0, 60, seed=3)
    whole = engine.generate(prompts, samples=8, sampling=sampling)
    narrow = TransformersEngine(nano.model, end_ids=nano.end_ids, pad_id=nano.pad_id, sequences_per_batch=3)
    assert narrow.generate(prompts, samples=8, sampling=sampling) == whole
    share = engine.generate(prompts[2:], samples=8, sampling=replace(sampling, first_prompt=2))
    assert share == whole[2:]
    assert engine.generate(prompts[2:], samples=8, sampling=sampling) != whole[2:]


def test_batches_hold_at_most_the_rows_asked_for(nano, prompts):
    engine = TransformersEngine(nano.model, end_ids=nano.end_ids, pad_id=nano.pad_id, sequences_per_batch=6)
    shapes = []
    forward = nano.model.forward

    def recording(*args, **kwargs):
        shapes.append(kwargs["input_ids"].shape[0])
        return forward(*args, **kwargs)

    nano.model.forward = recording
    try:
        found = engine.generate(prompts, samples=4, sampling=Sampling(1.0, 5))
    finally:
        nano.model.forward = forward
    assert max(shapes) <= 6
    assert [len(group) for group in found] == [4] * len(prompts)


def test_sampling_follows_the_softmax():
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    logits = probabilities.log().float().expand(20000, 4)
    uniform = torch.rand(20000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = torch.bincount(_choose(logits, Sampling(1.0, 1), uniform), minlength=4) / 20000
    for share, expected in zip(counts.tolist(), probabilities.tolist(), strict=True):
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / 20000)


def test_a_large_vocabulary_is_searched_in_two_stages_with_the_same_result(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 5000, generator=generator)
    uniform = torch.rand(500, 1, generator=generator, dtype=torch.float64)
    for sampling in (Sampling(1.0, 1), Sampling(0.7, 1, top_p=0.8)):
        staged = _choose(logits, sampling, uniform)
        monkeypatch.setattr("tepo_lab.rollout.transformers_engine.BLOCK", 4096)
        assert torch.equal(staged, _choose(logits, sampling, uniform))
        monkeypatch.undo()


def test_temperature_sharpens_and_top_p_cuts_the_tail():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(1001, 4)
    uniform = torch.linspace(0, 0.999, 1001, dtype=torch.float64).unsqueeze(-1)
    sharp = torch.bincount(_choose(logits, Sampling(0.5, 1), uniform), minlength=4) / 1001
    assert sharp[0].item() == pytest.approx(0.25 / (0.25 + 0.09 + 0.0225 + 0.0025), abs=0.01)
    cut = torch.bincount(_choose(logits, Sampling(1.0, 1, top_p=0.8), uniform), minlength=4) / 1001
    assert cut[0].item() == pytest.approx(0.5 / 0.8, abs=0.01)
    assert cut[2:].tolist() == [0.0, 0.0]
