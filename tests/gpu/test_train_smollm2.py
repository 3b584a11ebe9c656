"""SmolLM2 learns sums on a GPU. `pytest -m gpu tests/gpu`, after `tepo-lab model import`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

CHECKPOINT = Path("~/.cache/tepo-lab/models/smollm2-135m").expanduser()


@pytest.mark.gpu
@pytest.mark.skipif(not CHECKPOINT.is_dir(), reason="tepo-lab model import makes the checkpoint")
@pytest.mark.parametrize("arm", ["grpo_dapo", "tepo"])
def test_the_reward_rises_in_thirty_steps(arm: str) -> None:
    from train_smollm2 import main

    result = main(["--checkpoint", str(CHECKPOINT), "--arm", arm])
    assert result["reward_last_quarter"] > result["reward_first_quarter"]
    assert result["agreement_after"]["mean"] < 0.05
