"""What figures over training steps are drawn from: the step metrics of each arm's seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.records.files import RunFolder, report_left_out
from tepo_lab.records.history import RunHistory
from tepo_lab.report.table.frame import Table
from tepo_lab.report.table.runs import read_runs, with_metrics
from tepo_lab.report.table.wanted import WantedRow
from tepo_lab.schema.step_metrics import STEP_METRICS

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SeedRun:
    """One seed's run of an arm."""

    seed: int
    history: RunHistory

    @cached_property
    def metrics(self) -> dict[int, dict[str, Any]]:
        """Step metrics by training step."""
        return {int(line["step"]): line for line in self.history.metrics()}

    @property
    def folder(self) -> RunFolder:
        return self.history.folder

    @property
    def collapsed_at(self) -> int | None:
        """The step at which the run collapsed, if it ended so."""
        return self.history.collapsed_at


@dataclass(frozen=True)
class ArmRuns:
    """An arm with the runs of its seeds, ascending.

    `missing` are seeds that were expected and have no run, `damaged` those whose records cannot be read.
    """

    arm: str
    label: str
    panel: str | None
    runs: tuple[SeedRun, ...]
    missing: tuple[int, ...] = ()
    damaged: tuple[int, ...] = ()

    @property
    def begun(self) -> tuple[SeedRun, ...]:
        """Runs that have recorded a step."""
        return tuple(run for run in self.runs if run.metrics)

    @property
    def steps(self) -> int:
        """The last step that any seed recorded."""
        return max((step for run in self.runs for step in run.metrics), default=0)

    def gap(self) -> str | None:
        """What is missing of the arm, in one phrase."""
        if not self.begun and not self.damaged:
            return f"{self.label}: {'no step recorded' if self.runs else 'not run'}"
        parts = [f"seed {seed} not run" for seed in self.missing]
        parts += [f"records of seed {seed} damaged" for seed in self.damaged]
        for run in self.runs:
            last = max(run.metrics, default=0)
            if run.collapsed_at is not None:
                parts.append(f"seed {run.seed} collapsed at step {run.collapsed_at}")
            elif last < self.steps:
                parts.append(f"seed {run.seed} has recorded {last} of {self.steps} steps")
        return f"{self.label}: {', '.join(parts)}" if parts else None

    def series(self, metric: str) -> Series | None:
        """The metric over steps, or None where no seed recorded a number for it."""
        steps = np.array(sorted({step for run in self.begun for step in run.metrics}), dtype=np.int64)
        values = np.array(
            [[_number(run.metrics.get(int(step), {}).get(metric)) for step in steps] for run in self.begun],
            dtype=np.float64,
        ).reshape(len(self.begun), len(steps))
        return None if np.isnan(values).all() else Series(steps, values, tuple(run.seed for run in self.begun))


@dataclass(frozen=True)
class Series:
    """A metric of one arm: steps (N,) and values (S, N) by seed, nan where a seed has none."""

    steps: NDArray[np.int64]
    values: Array
    seeds: tuple[int, ...]

    @property
    def mean(self) -> Array:
        """Over the seeds that have a value at the step, (N,); nan where none has."""
        present = ~np.isnan(self.values)
        counts = present.sum(0)
        sums = np.where(present, self.values, 0.0).sum(0)
        return np.asarray(np.divide(sums, counts, out=np.full(len(self.steps), np.nan), where=counts > 0))

    @property
    def low(self) -> Array:
        """The lowest seed's value at each step, (N,)."""
        return np.asarray(np.fmin.reduce(self.values, axis=0))

    @property
    def high(self) -> Array:
        """The highest seed's value at each step, (N,)."""
        return np.asarray(np.fmax.reduce(self.values, axis=0))

    def overall(self) -> float:
        """The mean over steps of each seed, averaged over seeds."""
        return float(np.mean([np.nanmean(values) for values in self.values if not np.isnan(values).all()]))


def wanted_arms(home: Path, rows: Sequence[WantedRow]) -> list[ArmRuns]:
    """The runs under `home` behind rows asked for. Rows of one family count once."""
    runs = read_runs(home, rows)
    families: dict[str, WantedRow] = {}
    for row in rows:
        families.setdefault(row.family, row)
    return [_arm_runs(row, runs.of(row)) for row in families.values()]


def shown_arms(table: Table) -> list[ArmRuns]:
    """The runs behind the rows of a table, row by row, but those whose records are damaged."""
    runs = {result.run.id: result.run for row in table.rows for result in row.results if result.run is not None}
    checked = {name: with_metrics(run) for name, run in runs.items()}
    for name, run in checked.items():
        if run.damage is not None and runs[name].damage is None:
            report_left_out(run.folder, run.damage)
    return [
        _arm_runs(row.wanted, {result.seed: checked[result.run.id] for result in row.results if result.run is not None})
        for row in table.rows
    ]


def _arm_runs(row: WantedRow, runs: Mapping[int, RunHistory | None]) -> ArmRuns:
    readable = [SeedRun(seed, run) for seed, run in runs.items() if run is not None and run.damage is None]
    damaged = [seed for seed, run in runs.items() if run is not None and run.damage is not None]
    missing = [seed for seed, run in runs.items() if run is None]
    return ArmRuns(row.arm, row.label, row.panel, tuple(readable), tuple(missing), tuple(damaged))


def gaps(arms: Iterable[ArmRuns]) -> list[str]:
    """What is missing of the arms, a phrase each."""
    return [gap for gap in (arm.gap() for arm in arms) if gap is not None]


def check_recorded(arms: Iterable[ArmRuns], metrics: Iterable[str], title: str) -> None:
    """Raises `ConfigError` for a metric that is none of `STEP_METRICS` and that no run has recorded."""
    runs = [run for arm in arms for run in arm.begun]
    recorded = {name for run in runs for line in run.metrics.values() for name in line} - {"step"}
    for metric in metrics:
        if runs and metric not in recorded and metric not in STEP_METRICS:
            raise ConfigError(
                f"{title}: no run records a step metric {metric!r}.{nearest(metric, {*recorded, *STEP_METRICS})}"
            )


def _number(value: Any) -> float:
    # What was not finite stands as null in the record.
    return float("nan") if value is None else float(value)
