"""Tune's part in an exploratory sweep: which points go on, by their validation scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from tepo_lab.schema.sweep import Search


class Halving(ASHAScheduler):  # type: ignore[misc]
    """Asynchronous successive halving that calls `stopped` for each trial that it ends, with the step.

    A run that has reached `steps` ends by itself, with its evaluation.
    """

    def __init__(self, *, steps: int, stopped: Callable[[Any, int], None], **settings: Any) -> None:
        super().__init__(max_t=steps + 1, **settings)
        self.steps = steps
        self.stopped = stopped

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Tune's decision on a result; those without the metric (steps between validations) pass."""
        decision = str(super().on_trial_result(tune_controller, trial, result))
        if decision == self.STOP and not result.get("done"):
            if int(result["step"]) >= self.steps:
                return str(self.CONTINUE)
            self.stopped(trial, int(result["step"]))
        return decision


def scheduler(search: Search, *, steps: int, stopped: Callable[[Any, int], None]) -> Halving | FIFOScheduler:
    """Tune's scheduler for a search over runs of `steps` training steps; without one every point gets all its steps."""
    if search.scheduler == "none":
        return FIFOScheduler()
    return Halving(
        steps=steps,
        stopped=stopped,
        time_attr="step",
        metric=search.metric,
        mode=search.mode,
        grace_period=min(search.grace_steps, steps),
        reduction_factor=search.reduction_factor,
    )
