"""Tune's part in an exploratory sweep: which points go on, by their validation scores."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from tepo_lab.schema.sweep import Search


class Halving(ASHAScheduler):  # type: ignore[misc]
    """Asynchronous successive halving that remembers which runs it ended, and at which step.

    `stopped` maps the run's folder to that step. A run that has come to `steps` ends by itself, with its evaluation.
    """

    def __init__(self, *, steps: int, **settings: Any) -> None:
        super().__init__(max_t=steps + 1, **settings)
        self.steps = steps
        self.stopped: dict[str, int] = {}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Tune's decision on a result; those without the metric (steps between validations) pass."""
        decision = str(super().on_trial_result(tune_controller, trial, result))
        if decision == self.STOP and not result.get("done"):
            if int(result["step"]) >= self.steps:
                return str(self.CONTINUE)
            self.stopped[trial.config["folder"]] = int(result["step"])
        return decision


class Everything(FIFOScheduler):  # type: ignore[misc]
    """Ends nothing: every point gets all its steps."""

    stopped: dict[str, int] = {}  # noqa: RUF012 - never written to


def scheduler(search: Search, *, steps: int) -> Halving | Everything:
    """Tune's scheduler for a search over runs of `steps` training steps."""
    if search.scheduler == "none":
        return Everything()
    return Halving(
        steps=steps,
        time_attr="step",
        metric=search.metric,
        mode=search.mode,
        grace_period=min(search.grace_steps, steps),
        reduction_factor=search.reduction_factor,
    )
