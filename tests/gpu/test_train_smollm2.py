"""SmolLM2 learns sums on a GPU, and on two of them. `pytest -m gpu tests/gpu`, after `tepo-lab model import`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

CHECKPOINT = Path("~/.cache/tepo-lab/models/smollm2-135m").expanduser()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU"),
    pytest.mark.skipif(not CHECKPOINT.is_dir(), reason="tepo-lab model import makes the checkpoint"),
]


@pytest.mark.parametrize(("arm", "engine"), [("grpo_dapo", "transformers"), ("tepo", "transformers"), ("tepo", "vllm")])
def test_the_reward_rises_in_thirty_steps(arm: str, engine: str) -> None:
    from train_smollm2 import main

    if engine == "vllm":
        pytest.importorskip("vllm")
    result = main(["--checkpoint", str(CHECKPOINT), "--arm", arm, "--engine", engine])
    assert_learned(result)
    if engine == "vllm":
        assert_sampled_from_the_policy(result)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs")
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_two_gpus_share_a_run_and_sample_from_the_policy_that_is_trained(engine: str) -> None:
    if engine == "vllm":
        pytest.importorskip("vllm")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(Path(__file__).with_name("train_smollm2.py")), "--checkpoint", str(CHECKPOINT)]
    done = subprocess.run(
        [*launcher, *script, "--arm", "tepo", "--engine", engine, "--steps", "12"], stdout=subprocess.PIPE, check=True
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["processes"] == 2
    assert_learned(result)
    assert_sampled_from_the_policy(result)


def assert_learned(result: dict[str, Any]) -> None:
    """The reward has risen, and bfloat16 does not stray from float32."""
    assert result["reward_last_quarter"] > result["reward_first_quarter"]
    assert result["agreement_after"]["mean"] < 0.05


def assert_sampled_from_the_policy(result: dict[str, Any]) -> None:
    """Every step and every evaluation says how far the sampler's weights were from the trainer's, and they were not."""
    assert result["steps"]
    assert result["evaluated"]
    assert all(step["sampler_mismatch_mean"] < 0.05 for step in result["steps"])
    assert all(event["sampler_mismatch"] < 0.05 for event in result["evaluated"])
