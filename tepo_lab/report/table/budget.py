"""Where to read each run so that all have spent the same: generated tokens or seconds instead of steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from tepo_lab.errors import RecordError
from tepo_lab.records.history import RunHistory
from tepo_lab.report.table.runs import HomeRuns

Budget = Literal["tokens", "seconds"]

#: What runs can have spent alike; at equal steps there is no budget to look up.
BUDGETS: dict[str, Budget | None] = {"steps": None, "tokens": "tokens", "seconds": "seconds"}

#: The step metric that adds up to each budget, and its name in text.
SPENT: dict[Budget, tuple[str, str]] = {
    "tokens": ("rollout/tokens", "tokens sampled in training"),
    "seconds": ("seconds/step", "seconds of training"),
}


@dataclass(frozen=True)
class EqualBudget:
    """`limit` in tokens or seconds, and the evaluated step at which each run, by (family, seed), is within it.

    `beyond` counts the runs whose first evaluation is beyond it: they are read nowhere.
    """

    kind: Budget
    limit: float
    steps: Mapping[tuple[str, int], int]
    beyond: int = 0

    @property
    def note(self) -> str:
        """The footnote of a table read so."""
        note = (
            f"Read at an equal budget of {self.limit:,.0f} {SPENT[self.kind][1]}, the most that every run has spent at "
            "its last evaluation: each run at its last evaluation within it."
        )
        if not self.beyond:
            return note
        return (
            f"{note} {self.beyond} run{'s have' if self.beyond > 1 else ' has'} none: run the sweep in another home "
            "(--home) with trainer.evaluate_at=[...] set to earlier steps."
        )


def equal_budget(runs: HomeRuns, kind: Budget, *, untrained: str | None = None) -> EqualBudget:
    """The largest budget that every run has spent, and where each run is read within it.

    A collapsed run keeps its collapsed evaluation and does not lower the budget; nor does one with damaged records,
    which has none. Args: `untrained`, the family of the untrained model, which spends nothing.
    Raises `RecordError` when no run has an evaluation after a training step.
    """
    trained = {key: run for key, run in runs.by_key.items() if run.damage is None and run.family != untrained}
    steps = {key: run.collapsed_at for key, run in trained.items() if run.collapsed_at is not None}
    spent = {key: _spent_at(run, runs.full_steps(run), kind) for key, run in trained.items() if key not in steps}
    totals = [max(costs.values()) for costs in spent.values() if costs]
    if not totals:
        raise RecordError("no run of this table was evaluated after training: there is no budget to read it at.")
    limit = min(totals)
    beyond = 0
    for key, costs in spent.items():
        within = [step for step, cost in costs.items() if cost <= limit]
        if within:
            steps[key] = max(within)
        beyond += bool(costs) and not within
    return EqualBudget(kind, limit, steps, beyond)


def _spent_at(run: RunHistory, evaluated: Collection[int], kind: Budget) -> dict[int, float]:
    """Evaluated step -> what the run had spent by then; empty for a run without one."""
    metric = SPENT[kind][0]
    total, spent = 0.0, {}
    for values in run.metrics():
        total += float(values.get(metric) or 0.0)
        if values["step"] in evaluated:
            spent[int(values["step"])] = total
    return spent
