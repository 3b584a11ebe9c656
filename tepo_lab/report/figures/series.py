"""What figures over training steps are drawn from: the step metrics of each arm's seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tepo_lab.errors import ConfigError, RecordError, nearest
from tepo_lab.records.files import RunFolder, tell_passed_over
from tepo_lab.report.table.frame import Table, WantedRow
from tepo_lab.report.table.scan import STATUS_EVENTS, scan
from tepo_lab.schema.step_metrics import STEP_METRICS

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SeedRun:
    """One seed's run of an arm."""

    seed: int
    folder: RunFolder

    @cached_property
    def metrics(self) -> dict[int, dict[str, Any]]:
        """Step metrics by training step."""
        return {int(line["step"]): line for line in self.folder.whole_metrics()}

    @cached_property
    def collapsed_at(self) -> int | None:
        """The step at which the run collapsed, if it ended so."""
        statuses = [event for event in self.folder.events() if event["event"] in STATUS_EVENTS]
        collapsed = bool(statuses) and statuses[-1]["event"] == "collapsed"
        return int(statuses[-1]["step"]) if collapsed else None


@dataclass(frozen=True)
class ArmRuns:
    """An arm with the runs of its seeds, ascending.

    `lacking` are seeds that were expected and have no run, `damaged` those whose records cannot be read.
    """

    arm: str
    label: str
    panel: str | None
    runs: tuple[SeedRun, ...]
    lacking: tuple[int, ...] = ()
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
        parts = [f"seed {seed} not run" for seed in self.lacking]
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
        return self._extreme(np.inf, np.minimum)

    @property
    def high(self) -> Array:
        """The highest seed's value at each step, (N,)."""
        return self._extreme(-np.inf, np.maximum)

    def _extreme(self, nothing: float, of: np.ufunc) -> Array:
        found = of.reduce(np.where(np.isnan(self.values), nothing, self.values), axis=0)
        return np.where(np.isfinite(found), found, np.nan)

    def overall(self) -> float:
        """The mean over steps of each seed, averaged over seeds."""
        each = [values[~np.isnan(values)] for values in self.values]
        return float(np.mean([values.mean() for values in each if len(values)]))


def wanted_arms(home: Path, rows: Sequence[WantedRow]) -> list[ArmRuns]:
    """The runs under `home` behind rows asked for. Rows of one family count once. Raises as `scan`."""
    found = sorted(scan(home, (row.family for row in rows), ()).items(), key=_seed)
    arms = []
    once: dict[str, WantedRow] = {}
    for row in rows:
        once.setdefault(row.family, row)
    for row in once.values():
        there = {seed: run for (family, seed), run in found if family == row.family}
        seeds = row.seeds or tuple(there)
        damaged = tuple(seed for seed in seeds if seed in there and there[seed].damaged is not None)
        runs = tuple(SeedRun(seed, there[seed].folder) for seed in seeds if seed in there and seed not in damaged)
        lacking = tuple(seed for seed in seeds if seed not in there)
        arms.append(ArmRuns(row.arm, row.label, row.panel, runs, lacking, damaged))
    return arms


def _seed(item: tuple[tuple[str, int], object]) -> int:
    return item[0][1]


def shown_arms(home: Path, table: Table) -> list[ArmRuns]:
    """The runs under `home` behind the rows of a table, row by row, but those whose logs are damaged."""
    whole: dict[str, SeedRun | None] = {}
    arms = []
    for row in table.rows:
        for line in row.runs:
            if line.id not in whole:
                whole[line.id] = _whole(SeedRun(line.seed, _folder(home, line.id)))
        runs = tuple(run for line in row.runs if (run := whole[line.id]) is not None)
        damaged = tuple(line.seed for line in row.runs if whole[line.id] is None)
        arms.append(ArmRuns(row.arm, row.label, row.panel, runs, damaged=damaged))
    return arms


def _whole(run: SeedRun) -> SeedRun | None:
    """The run, if its logs can be read."""
    try:
        _ = run.metrics, run.collapsed_at
    except RecordError as error:
        tell_passed_over(run.folder, error)
        return None
    return run


def _folder(home: Path, identity: str) -> RunFolder:
    # A run's folder ends in the first eight digits of its id.
    (path,) = home.glob(f"runs/*-{identity[:8]}")
    return RunFolder(path)


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
