"""The names that a stop rule may watch are those that a training step records: no more, and no fewer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.schema.step_metrics import STEP_METRICS
from tepo_lab.train.trial import Trial

#: Arms that between them use a penalty, a selection, token weights, a dual clip and none of these.
ARMS = ("tepo", "clip_cov", "steel", "grpo_dapo")

#: Settings that make a nano step learn from problems of a file, graded symbolically.
FROM_A_FILE = ("data=gsm8k", "trainer.dynamic_sampling='off'")


@pytest.fixture
def recorded(small_run, monkeypatch, tmp_path):
    """Makes the names of the first step's metrics of an arm."""

    generate = TransformersEngine.generate

    def claim(*arguments, **settings):
        # A sampler that tells its log-probabilities, as vLLM does.
        groups = generate(*arguments, **settings)
        return [[replace(each, log_probs=(-1.0,) * len(each.token_ids)) for each in group] for group in groups]

    problems = tmp_path / "problems.jsonl"
    lines = [{"problem": f"{first}+{first}=", "answer": str(2 * first), "id": str(first)} for first in range(2, 40)]
    problems.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def first_step(arm, *overrides):
        spec, folder = small_run(arm, "trainer.steps=2", "trainer.gradient_ratio_every=1", *overrides)
        trial = Trial(spec, folder)
        trial.advance()
        trial.close()
        return set(folder.metrics()[0]) - {"step", "time"}

    def make(arm):
        monkeypatch.setattr(TransformersEngine, "generate", claim)
        with_file = {*first_step("grpo_dapo", *FROM_A_FILE, f"data.path={problems}")} if arm == "grpo_dapo" else set()
        return first_step(arm) | with_file

    return make


@pytest.mark.integration
def test_the_names_are_those_that_steps_record(recorded):
    found = {arm: recorded(arm) for arm in ARMS}
    assert set().union(*found.values()) == STEP_METRICS.keys()
    assert "mask/share" in found["tepo"] - found["grpo_dapo"]
