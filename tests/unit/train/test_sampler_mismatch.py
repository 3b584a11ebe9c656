"""A sampler whose log-probabilities are not the trainer's makes its run suspect."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tepo_lab.train import trial as module
from tepo_lab.train.engines import open_engine
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


def suspicions(folder):
    return [event for event in folder.events() if event["event"] == "suspect"]


def test_a_strayed_sampler_is_recorded_once_with_the_numbers(small_run, sampler):
    sampler(-1000.0)
    spec, folder = small_run("tepo_no_kl", "trainer.steps=2", "trainer.dynamic_sampling='off'")
    assert run_trial(spec, folder).phase == "complete"
    (event,) = suspicions(folder)
    means = [step["rollout/sampler_mismatch_mean"] for step in folder.metrics()]
    assert event["step"] == 1
    assert 950 < means[0] < 1000
    assert event["why"].startswith(f"the sampler's log-probabilities are {means[0]:.3g} nats from the trainer's")
    assert event["why"].endswith("rollout.max_sampler_mismatch (0.001)")


def test_within_the_limit_nothing_is_said(small_run, sampler):
    sampler(-1.0)
    given = ("trainer.steps=1", "trainer.dynamic_sampling='off'", "rollout.max_sampler_mismatch=50")
    spec, folder = small_run("tepo_no_kl", *given)
    run_trial(spec, folder)
    assert folder.metrics()[0]["rollout/sampler_mismatch_mean"] < 50
    assert suspicions(folder) == []


def test_log_probabilities_that_are_no_numbers_are_suspect(small_run, sampler):
    sampler(-math.inf)
    spec, folder = small_run("tepo_no_kl", "trainer.steps=1", "trainer.dynamic_sampling='off'")
    run_trial(spec, folder)
    assert "not finite" in suspicions(folder)[0]["why"]
