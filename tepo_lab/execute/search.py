"""Tune's part in an exploratory sweep: which points go on, by their validation scores."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from tepo_lab.schema.sweep import Search


class Halving(ASHAScheduler):  # type: ignore[misc]
    """Asynchronous successive halving that remembers which runs it ended, and at which step.

    `stopped` maps the run's folder to that step.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.stopped: dict[str, int] = {}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Tune's decision on a result; those without the metric (steps between validations) pass."""
        decision = str(super().on_trial_result(tune_controller, trial, result))
        if decision == self.STOP and not result.get("done"):
            self.stopped[trial.config["folder"]] = int(result["step"])
        return decision


class Everything(FIFOScheduler):  # type: ignore[misc]
    """Ends nothing: every point gets all its steps."""

    stopped: dict[str, int] = {}  # noqa: RUF012 - never written to


def scheduler(search: Search, *, steps: int) -> Halving | Everything:
    """Tune's scheduler for a search over runs of `steps` training steps.

    A run that comes to its last step always ends by itself, with its evaluation, hence the limit beyond it.
    """
    if search.scheduler == "none":
        return Everything()
    return Halving(
        time_attr="step",
        metric=search.metric,
        mode=search.mode,
        max_t=steps + 1,
        grace_period=min(search.grace_steps, steps),
        reduction_factor=search.reduction_factor,
    )
