"""The example makes the updates that a run makes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from tepo_lab.objectives import PolicyLoss
from tepo_lab.registry.compose import compose_run
from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.tasks.sources import open_source
from tepo_lab.train.step.collect import Collector
from tepo_lab.train.step.learner import Learner
from tests.conftest import load_nano

FILE = Path(__file__).parents[2] / "examples" / "minimal_rl.py"
SMALL = ("trainer.prompts_per_step=8", "trainer.mini_batch_prompts=2", "rollout.max_new_tokens=40")


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("minimal_rl", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["minimal_rl"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("arm", "steps"), [("tepo", 2), ("clip_cov", 1), ("max_entropy", 1)])
def test_the_example_makes_the_updates_of_a_run(arm, steps, example):
    # In float64, so that the two layouts of a batch, padded and packed, differ by too little to change a sampled token.
    spec = compose_run(arm, "nano", SMALL, seed=1)
    loaded, own = load_nano(), load_nano()
    loaded.model.double()
    own.model.double()
    engine = TransformersEngine(loaded.model, end_ids=loaded.end_ids, pad_id=loaded.pad_id)
    collector = Collector(spec, engine, loaded.tokenizer, open_source(spec.data))
    learner = Learner(spec, loaded)
    optimizer, policy_loss, position = example.adamw(spec, own.model), PolicyLoss(spec.objective), 0
    for step in range(1, steps + 1):
        experience = collector.collect(step, position)
        position = experience.position
        expected = experience.metrics | learner.learn(step, experience.groups)
        metrics = example.train_step(spec, own.model, own.tokenizer, optimizer, policy_loss, step)
        assert metrics["actor/updates"] == 4
        assert metrics == pytest.approx({name: expected[name] for name in metrics}, rel=1e-4, abs=1e-7)
    weights, own_weights, initial = (
        torch.cat([each.detach().double().flatten() for each in model.parameters()])
        for model in (loaded.model, own.model, load_nano().model)
    )
    assert (own_weights - weights).norm() < 1e-4 * (weights - initial).norm()
    assert (weights - initial).abs().max() > 1e-4


def test_the_example_runs_from_the_command_line(example, capsys):
    example.main(["--arm", "grpo_dapo", "--steps", "1", *SMALL])
    assert capsys.readouterr().out.startswith("step 1: reward/mean ")
