"""Steps to reach a target: how far each run had to train until its reward, or its validation score, was there.

No step is chosen on the benchmarks: they are the test set. A target is set on what training itself sees, the mean
reward of the rollouts, smoothed by a moving mean over the steps before; or on a search's validation problems. What the
benchmarks say at every evaluated step is listed beside it, all of them and none picked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy import special

from tepo_lab.errors import ConfigError, RecordError
from tepo_lab.records.history import RunHistory
from tepo_lab.report.table.columns import TARGET_COLUMNS
from tepo_lab.report.table.rows import check_same_problems, generation_weights, read_row, shares_of
from tepo_lab.report.table.runs import HomeRuns, read_runs
from tepo_lab.report.table.wanted import Wanted, WantedRow, graded_benchmarks
from tepo_lab.schema.table import Report
from tepo_lab.stats.bootstrap import DRAWS, estimate

Metric = Literal["reward/mean", "validation"]
METRICS: tuple[Metric, ...] = get_args(Metric)

#: Steps of the moving mean. One step's reward is of 64 prompts or so, and no two steps have the same.
WINDOW = 5


@dataclass(frozen=True)
class Target:
    """`percent` of `metric`, its mean over the last `window` steps (a validation score stands for itself)."""

    percent: float
    metric: Metric = "reward/mean"
    window: int = WINDOW

    @property
    def words(self) -> str:
        if self.metric == "validation":
            return f"{self.percent:g} % on the validation problems"
        if self.window == 1:
            return f"{self.percent:g} % mean reward in a step"
        return f"{self.percent:g} % mean reward over {self.window} steps"


@dataclass(frozen=True)
class SeedReach:
    """Where a seed's run first was at the target: `step`, and the tokens and seconds of training until then.

    `step` is None where it was not by `last_step`; `or_earlier` says that it is the first at which there is a mean over
    the target's window, so that the run may have been there before. `outcome` is "reached", "not reached", "not
    recorded" (the run has not recorded the metric), "not run" or "records damaged".
    """

    seed: int
    outcome: str
    step: int | None
    last_step: int
    tokens: float | None = None
    seconds: float | None = None
    or_earlier: bool = False

    @property
    def words(self) -> str:
        if self.step is not None:
            return f"{self.seed}: {self.step}{' or earlier' if self.or_earlier else ''}"
        return f"{self.seed}: {self.outcome}" + (f" by {self.last_step}" if self.last_step else "")


@dataclass(frozen=True)
class ArmReach:
    """An arm's seeds. `mean` and `ci95` (Student's t over seeds) of the steps only where every seed reached it.

    No interval where a seed may have been there earlier: the mean is the most that it can be.
    """

    profile: str
    arm: str
    label: str
    seeds: tuple[SeedReach, ...]
    mean: float | None = None
    ci95: tuple[float, float] | None = None

    @property
    def reached(self) -> tuple[SeedReach, ...]:
        return tuple(seed for seed in self.seeds if seed.step is not None)


@dataclass(frozen=True)
class EvaluatedScore:
    """An arm's generation-weighted average at an evaluated step, in percent, over the seeds evaluated there."""

    profile: str
    arm: str
    label: str
    step: int
    seeds: tuple[int, ...]
    percent: float
    ci95: tuple[float, float]


@dataclass(frozen=True)
class TargetTable:
    """Steps to reach a target, arm by arm, and every evaluation on the way."""

    name: str
    title: str
    profiles: tuple[str, ...]
    target: Target
    arms: tuple[ArmReach, ...]
    evaluated: tuple[EvaluatedScore, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values, in the form of `--format json`."""
        return {
            "table": self.name,
            "profile": ", ".join(self.profiles),
            "target": asdict(self.target),
            "rows": [
                {
                    "profile": arm.profile,
                    "arm": arm.arm,
                    "label": arm.label,
                    "reached": len(arm.reached),
                    "steps": None
                    if arm.mean is None
                    else {"mean": arm.mean, "ci95": None if arm.ci95 is None else list(arm.ci95)},
                    "seeds": [asdict(seed) for seed in arm.seeds],
                    **{column.name: column.count(arm, self) for column in TARGET_COLUMNS if column.is_fact},
                }
                for arm in self.arms
            ],
            "evaluated": [
                asdict(score) | {"seeds": list(score.seeds), "ci95": list(score.ci95)} for score in self.evaluated
            ],
            "notes": list(self.notes),
        }


def make_target(percent: float, metric: str, window: int | None) -> Target:
    """A target. Raises `ConfigError` for a metric that no step may be chosen by, and for no share above 0 %."""
    if not 0 < percent <= 100:
        raise ConfigError(f"--target {percent:g}: give a percentage above 0, at most 100.")
    if metric not in METRICS:
        raise ConfigError(
            f"--metric {metric}: steps to a target are read from {' or '.join(METRICS)}; choosing a step by a "
            "benchmark is refused, since the benchmarks are the test set."
        )
    known: Metric = "validation" if metric == "validation" else "reward/mean"
    return Target(percent, known, window or (1 if known == "validation" else WINDOW))


def steps_to_target(
    report: Report,
    wanted: Sequence[Wanted],
    target: Target,
    *,
    home: Path,
    notes: Sequence[str] = (),
    draws: int = DRAWS,
    seed: int = 0,
) -> TargetTable:
    """Each arm's steps to the target from the records under `home`, every arm once however often it has a row.

    Args: as `build_table`. Raises as it does, and `RecordError` where no run of the report has
    recorded the metric.
    """
    arms: list[ArmReach] = []
    evaluated: list[EvaluatedScore] = []
    for profile in wanted:
        benchmarks = graded_benchmarks(profile.suite)
        rows = _distinct_arms(profile.rows)
        runs = read_runs(home, profile.rows, benchmarks)
        arms += [_reach(row, runs, target, profile.profile) for row in rows]
        read = [
            read_row(
                replace(row, seeds=tuple(run.seed for run in there)),
                runs,
                step,
                report.suspect_above,
                profile=profile.profile,
                asked=step,
            )
            for row in rows
            for step, there in _evaluations(row, runs)
        ]
        read = [row for row in read if row.counted]
        check_same_problems(read, benchmarks)
        shares = [shares_of(row.counted.values(), benchmarks) for row in read]
        estimates = estimate(shares, [generation_weights(benchmarks)], draws=draws, seed=seed)
        for row, (score,) in zip(read, estimates, strict=True):
            bounds = (100 * score.low, 100 * score.high)
            step = row.asked or 0
            evaluated.append(
                EvaluatedScore(profile.profile, row.arm, row.label, step, row.seeds, 100 * score.value, bounds)
            )
    if not any(seed.last_step for arm in arms for seed in arm.seeds):
        raise RecordError(
            f"{report.title}: no run of its arms has recorded {target.metric} under {home}: run it first, or name "
            "another home with --home."
        )
    profiles = tuple(profile.profile for profile in wanted)
    return TargetTable(report.name, report.title, profiles, target, tuple(arms), tuple(evaluated), tuple(notes))


def _distinct_arms(rows: Sequence[WantedRow]) -> list[WantedRow]:
    """One row for each family, with all of the seeds that its rows name; all of the home where one names none."""
    families: dict[str, list[WantedRow]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    distinct = []
    for same in families.values():
        seeds = {seed for row in same for seed in row.seeds} if all(row.seeds for row in same) else set()
        distinct.append(replace(same[0], seeds=tuple(sorted(seeds))))
    return distinct


def _evaluations(row: WantedRow, runs: HomeRuns) -> Iterator[tuple[int, list[RunHistory]]]:
    """The steps at which a row's runs are evaluated in full, with the runs that are."""
    own = [run for run in runs.of(row).values() if run is not None]
    for step in sorted({step for run in own for step in runs.full_steps(run)}):
        yield step, [run for run in own if step in runs.full_steps(run)]


def _reach(row: WantedRow, runs: HomeRuns, target: Target, profile: str) -> ArmReach:
    seeds = tuple(_seed_reach(seed, run, target) for seed, run in runs.of(row).items())
    steps = [seed.step for seed in seeds if seed.step is not None]
    if not steps or len(steps) < len(seeds):
        return ArmReach(profile, row.arm, row.label, seeds)
    mean = float(np.mean(steps))
    if len(steps) == 1 or any(seed.or_earlier for seed in seeds):
        return ArmReach(profile, row.arm, row.label, seeds, mean)
    half = float(special.stdtrit(len(steps) - 1, 0.975) * np.std(steps, ddof=1) / np.sqrt(len(steps)))
    return ArmReach(profile, row.arm, row.label, seeds, mean, (max(0.0, mean - half), mean + half))


def _seed_reach(seed: int, run: RunHistory | None, target: Target) -> SeedReach:
    if run is None:
        return SeedReach(seed, "not run", None, 0)
    if run.damage is not None:
        return SeedReach(seed, "records damaged", None, 0)
    lines = {int(line["step"]): line for line in run.metrics()}
    if target.metric == "validation":
        values = dict(run.validations)
    else:
        recorded = {step: line.get(target.metric) for step, line in lines.items()}
        values = {step: 100 * float(value) for step, value in recorded.items() if value is not None}
    if not values:
        return SeedReach(seed, "not recorded", None, 0)
    reached = first_at(values, target.percent, target.window)
    if reached is None:
        return SeedReach(seed, "not reached", None, max(values))
    tokens, seconds = (
        sum(float(line.get(name) or 0.0) for step, line in lines.items() if step <= reached)
        for name in ("rollout/tokens", "seconds/step")
    )
    earliest = sorted(values)[target.window - 1]
    or_earlier = target.window > 1 and reached == earliest
    return SeedReach(seed, "reached", reached, max(values), tokens, seconds, or_earlier)


def first_at(values: Mapping[int, float], level: float, window: int) -> int | None:
    """The first step at which the mean of the last `window` values is at `level` or above; None where it never is."""
    steps = sorted(values)
    for last in range(window, len(steps) + 1):
        if sum(values[step] for step in steps[last - window : last]) / window >= level:
            return steps[last - 1]
    return None
