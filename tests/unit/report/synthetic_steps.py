"""Step metrics and token files of synthetic runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tepo_lab.records.files import RunFolder, append_line, write_json


def write_steps(folder: RunFolder, steps: int, *, level: float = 1.0, lacking: tuple[str, ...] = ()) -> None:
    """Curves that depend on `level` alone, so that two seeds of one level are equal. `lacking`: metrics left out."""
    for step in range(1, steps + 1):
        wave = level * (1 + 0.1 * math.sin(step))
        share = 0.2 * level
        values = {
            "reward/mean": 1 - math.exp(-step * level / 8),
            "actor/grad_norm": 0.5 * wave,
            "actor/pg_clipfrac": 0.01 * wave,
            "seconds/step": 2.0 * level,
            "actor/entropy": 0.4 * wave / step,
            "actor/ppo_kl": 0.003 * wave,
            "rollout/response_tokens_mean": 20 + step * level,
            "entropy/change_mean": -0.002 * wave,
            "ratio/max": 1 + 0.1 * wave,
            **{f"cells/{sign}_{way}": share for sign in ("positive", "negative") for way in ("falling", "rising")},
        }
        kept = {name: value for name, value in values.items() if name not in lacking}
        append_line(folder.metrics_file, {"step": step, **kept, "time": 1.7e9 + step})


def response(reward: float, *texts: str, **columns: list[float]) -> dict[str, Any]:
    """A response of a token file; columns not given are made from its length."""
    size = len(texts)
    made: dict[str, Any] = {
        "log_prob": [-0.5] * size,
        "old_log_prob": [-0.75] * size,
        "ratio": [1.284] * size,
        "weight": [1.1] * size,
        "entropy": [0.3] * size,
        "entropy_change": [-0.05] * size,
        "mask": [0] * size,
    }
    head = {"reward": reward, "advantage": 2 * reward - 1, "truncated": False, "length": size, "tokens": list(texts)}
    return head | made | columns


def write_token_file(folder: RunFolder, step: int, *groups: Mapping[str, Any]) -> None:
    write_json(folder.tokens(step), {"step": step, "groups": list(groups)})
