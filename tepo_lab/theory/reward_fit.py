"""R = -a exp(H) + b (Cui et al., arXiv 2505.22617; cited by arXiv 2604.12736, Sec. 1) fitted to a home's runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tepo_lab.errors import RecordError
from tepo_lab.records.files import report_left_out
from tepo_lab.records.history import State, read_histories
from tepo_lab.theory.check import Array, Check

REWARD, ENTROPY = "reward/mean", "actor/entropy"

#: Fewer steps than this are not fitted.
MIN_STEPS = 5

SOURCE, STATEMENT = "R = -a exp(H) + b", "a > 0: reward rises as entropy falls"


@dataclass(frozen=True)
class RewardFit:
    """One run's least-squares fit over its steps: mean reward of the rollouts (0 to 1) against exp(entropy in nats)."""

    run: str
    a: float
    b: float
    r_squared: float
    reward: Array
    entropy: Array

    def to_dict(self) -> dict[str, Any]:
        """The fit without its points."""
        return {
            "run": self.run,
            "steps": len(self.reward),
            "a": self.a,
            "b": self.b,
            "r_squared": self.r_squared,
        }


def fit_runs(home: Path) -> list[RewardFit]:
    """The fit of every run of the home with enough recorded steps whose entropy varies.

    Runs whose steps cannot be read are named on standard error.
    """
    fits = []
    for history in read_histories(home):
        try:
            if history.state is State.DAMAGED:
                raise RecordError(str(history.damage))
            metrics = history.metrics()
        except RecordError as error:
            report_left_out(history.folder, str(error))
            continue
        # A value that was not finite is recorded as null.
        lines = [line for line in metrics if line.get(REWARD) is not None and line.get(ENTROPY) is not None]
        if len(lines) >= MIN_STEPS:
            reward, entropy = (np.array([line[name] for line in lines], np.float64) for name in (REWARD, ENTROPY))
            fits.append(fit_line(history.name, reward, entropy))
    return [fit for fit in fits if fit is not None]


def fit_line(run: str, reward: Array, entropy: Array) -> RewardFit | None:
    """Least squares of reward on exp(entropy); None where the entropy does not vary."""
    x = np.exp(entropy)
    if not np.isfinite(x).all() or np.ptp(x) == 0:
        return None
    slope, intercept = np.linalg.lstsq(np.stack([x, np.ones_like(x)], axis=-1), reward, rcond=None)[0]
    residual = reward - slope * x - intercept
    total = float(((reward - reward.mean()) ** 2).sum())
    r_squared = 1 - float((residual**2).sum()) / total if total else 0.0
    return RewardFit(run, -float(slope), float(intercept), r_squared, reward, entropy)


def check_fits(fits: Sequence[RewardFit], home: Path) -> Check:
    """How many runs' fits have a > 0, with the medians of a, b and R²."""
    among = "runs of the home"
    if not fits:
        note = (
            f"{home / 'runs'} holds no run with {MIN_STEPS} steps or more of {REWARD} and {ENTROPY}; "
            "tepo-lab run panel-e makes some"
        )
        return Check(SOURCE, STATEMENT, among, 0, 0, note=note)
    medians = {
        f"median_{name}": round(float(np.median([getattr(fit, name) for fit in fits])), 4)
        for name in ("a", "b", "r_squared")
    }
    return Check(SOURCE, STATEMENT, among, len(fits), sum(fit.a > 0 for fit in fits), medians)
