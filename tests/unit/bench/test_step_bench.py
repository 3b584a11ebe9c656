from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tepo_lab.bench.floors import Work
from tepo_lab.bench.step import StepBench, measure_step
from tepo_lab.cli import app
from tepo_lab.errors import TepoLabError
from tepo_lab.rollout.engine import Response
from tepo_lab.schema.problem import Problem
from tepo_lab.train.step.collect import Group

NANO = Path(str(resources.files("tepo_lab"))) / "assets" / "nano"


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"a{number}b+1c=", "answer": str(number + 1)} for number in range(10, 30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.integration
def test_a_step_is_measured_in_its_phases(prompts):
    bench = StepBench(NANO, prompts, arm="tepo", prompts_per_step=4, group=2, updates=2, max_new=6, steps=2, warmup=1)
    found = measure_step(bench)
    assert sum(found["split"].values()) == pytest.approx(found["cpu_s_per_step"], rel=0.2)
    assert 0 < found["tokens_per_step"] <= 4 * 2 * 6
    assert found["mfu"] == pytest.approx(found["floor_flops_s"] / found["cpu_s_per_step"], rel=1e-3)


def test_useful_arithmetic_is_counted_by_hand(nano):
    work = Work(nano.model, updates=1)
    responses = [Response((5, 6, 2), False), Response((2,), False)]
    work.add([Group(Problem(id="1", prompt="", answer=""), [7, 8], responses, [1.0, 0.0], [1.0, -1.0])])
    config = nano.model.config
    layers = config.num_hidden_layers
    linear = [each for each in nano.model.modules() if isinstance(each, torch.nn.Linear)]
    body = sum(each.weight.numel() for each in linear) - nano.model.lm_head.weight.numel()
    # Run: the prompt's two tokens and the first response's first two. They attend to 1 + 2 and 3 + 4 tokens.
    forward = 2 * body * 4 + 2 * nano.model.lm_head.weight.numel() * 4
    forward += 4 * layers * config.num_attention_heads * config.head_dim * 10
    assert work.flops == {"rollout": forward, "old_log_probs": forward, "update": 3 * forward}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint": Path("nowhere")}, "--checkpoint nowhere: not a folder with a checkpoint"),
        ({"updates": 3}, "--updates 3 does not divide --prompts-per-step 64"),
        ({"prompts": Path("nowhere.jsonl")}, "nowhere.jsonl: no such file"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(changes, message, prompts):
    with pytest.raises(TepoLabError, match=message) as error:
        measure_step(StepBench(**{"checkpoint": NANO, "prompts": prompts, **changes}))
    assert "\n" not in str(error.value)


def test_an_unknown_arm_ends_with_exit_code_2(prompts):
    arguments = ["bench", "step", "--checkpoint", str(NANO), "--prompts", str(prompts), "--arm", "tepid"]
    assert CliRunner().invoke(app, arguments).exit_code == 2
