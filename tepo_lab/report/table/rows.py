"""The rows of a table: each seed's counts at one step, or why it has none, and the scores over the seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tepo_lab.errors import RecordError
from tepo_lab.records.events import Collapsed, Complete, Failed
from tepo_lab.records.generations import COUNTED, read_generations
from tepo_lab.records.history import RunHistory
from tepo_lab.report.table.counts import ProblemCounts, shortfall
from tepo_lab.report.table.runs import (
    OWN_INPUTS,
    HomeRuns,
    Missing,
    end_of,
    evaluation_at,
    missing_reason,
    unusual_inputs,
)
from tepo_lab.report.table.suspect import suspicions
from tepo_lab.report.table.wanted import GradedBenchmark, WantedRow
from tepo_lab.schema.table import SuspectLimits
from tepo_lab.stats.bootstrap import Array, Scores


@dataclass(frozen=True)
class Score:
    """k right of n graded generations, summed over the seeds, with the 95 % interval of the percent."""

    correct: int
    graded: int
    ci95: tuple[float, float]

    @property
    def percent(self) -> float:
        return 100 * self.correct / self.graded


@dataclass(frozen=True)
class PublishedScore:
    """The paper's number for a cell, ours minus it in points, and whether it lies in our 95 % interval.

    Where we have no score the latter two are None.
    """

    percent: float
    difference: float | None = None
    inside: bool | None = None


@dataclass(frozen=True)
class Collapse:
    """The end of a seed's run by a stop rule, named as it is written."""

    seed: int
    step: int
    rule: str


@dataclass(frozen=True)
class SeedResult:
    """What one seed gives to a row: its counts, or why it has none.

    `is_counted`: it has them; `collapsed` is the step at which the run they are of collapsed; `unended` is how that run
    is not as far as it was to train; `suspect` is why the counts may not be what they seem;
    `unusual_benchmarks` have other files here than in most other runs of the table.
    """

    seed: int
    run: RunHistory | None
    step: int | None
    counts: dict[str, ProblemCounts]
    outcome: str
    reason: str | None = None
    missing: Missing | None = None
    collapsed: int | None = None
    unended: str | None = None
    suspect: tuple[str, ...] = ()
    unusual_benchmarks: tuple[str, ...] = ()

    @property
    def is_counted(self) -> bool:
        return self.missing is None

    def column(self, name: str) -> Array:
        """A numeric column of the evaluation's generations, (N,). Raises `RecordError` for a damaged file."""
        assert self.run is not None
        assert self.step is not None
        rows = read_generations(self.run.folder.generations(self.step), [*COUNTED, name])
        return np.asarray(rows[name].to_numpy(), dtype=np.float64)


@dataclass(frozen=True)
class Row:
    """A wanted row with the results of its seeds in order, and the scores over those that are counted.

    `asked` is the step at which it was asked for. `scores` are by benchmark, `average` over all generations (as the
    paper's "Avg."); both are empty without counts. `at_k` has avg@n and pass@k by benchmark and name, as percent and
    interval; `published` the paper's numbers by column.
    """

    wanted: WantedRow
    profile: str
    asked: int | None
    results: tuple[SeedResult, ...] = field(compare=False)
    scores: Mapping[str, Score] = field(default_factory=dict)
    average: Score | None = None
    at_k: Mapping[str, Mapping[str, tuple[float, tuple[float, float]]]] = field(default_factory=dict)
    published: Mapping[str, PublishedScore] = field(default_factory=dict)

    @property
    def panel(self) -> str | None:
        return self.wanted.panel

    @property
    def arm(self) -> str:
        return self.wanted.arm

    @property
    def label(self) -> str:
        return self.wanted.label

    @property
    def counted(self) -> dict[int, SeedResult]:
        """The results that are counted, by seed."""
        return {result.seed: result for result in self.results if result.is_counted}

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that are counted."""
        return tuple(self.counted)

    @property
    def scored_seeds(self) -> int:
        """How many seeds the intervals are over (1: over problems only)."""
        return len(self.counted) if self.average else 0

    @property
    def steps(self) -> int | None:
        """Where the counted seeds were evaluated at the latest."""
        return max((result.step for result in self.counted.values() if result.step is not None), default=self.asked)

    @property
    def macro(self) -> float | None:
        """The plain mean of the benchmarks' percents."""
        percents = [score.percent for score in self.scores.values()]
        return sum(percents) / len(percents) if percents else None

    def mean_of(self, column: str) -> float | None:
        """The mean of a numeric column over all counted generations."""
        values = [result.column(column) for result in self.counted.values()]
        return float(np.concatenate(values).mean()) if values else None

    @property
    def parent(self) -> str | None:
        """The parent's name as the runs recorded it."""
        return next((result.run.parent for result in self.results if result.run is not None), None)

    @property
    def reason(self) -> str | None:
        """Why the row has no score; None where it has one."""
        if self.counted:
            return None
        return "; ".join(dict.fromkeys(result.reason for result in self.results if result.reason)) or "not run"

    @property
    def missing(self) -> Missing:
        """`reason` in one word."""
        missing = (result.missing for result in self.results if result.missing is not None)
        return next((word for word in missing if word != "not run"), "not run")

    @property
    def outcome(self) -> str:
        """What became of the row's seeds, in one phrase."""
        total, counted = len(self.results), list(self.counted.values())
        if not counted:
            return "; ".join(dict.fromkeys(result.outcome for result in self.results)) or "not run"

        def share(count: int) -> str:
            return "" if count == total else f" ({count} of {total} seeds)"

        ends = []
        if steps := [result.collapsed for result in counted if result.collapsed is not None]:
            ends.append(f"collapsed at step {', '.join(map(str, sorted(set(steps))))}{share(len(steps))}")
        if unended := [result for result in counted if result.unended is not None]:
            by_state = Counter(result.unended for result in unended)
            states = ", ".join(f"{state}{share(count)}" for state, count in by_state.items())
            ends.append(f"{states}, read at step {max(result.step or 0 for result in unended)}")
        if len(counted) == total:
            return "; ".join(ends) or "complete"
        others = ", ".join(dict.fromkeys(result.outcome for result in self.results if not result.is_counted))
        return "; ".join([f"partly: {len(counted)} of {total} seeds ({others})", *ends])

    @property
    def collapses(self) -> tuple[Collapse, ...]:
        """The collapses in the row's outcome, evaluated or not."""
        return tuple(
            Collapse(result.seed, result.run.outcome.step, result.run.outcome.rule)
            for result in self.results
            if (result.collapsed is not None or result.missing == "collapsed")
            and result.run is not None
            and isinstance(result.run.outcome, Collapsed)
        )

    @property
    def suspect(self) -> tuple[str, ...]:
        """Why the row is suspect, each reason with its seeds; empty where it is not."""
        seeds: dict[str, list[int]] = {}
        for result in self.counted.values():
            for reason in result.suspect:
                seeds.setdefault(reason, []).append(result.seed)
        return tuple(f"{seed_names(named)}: {reason}" for reason, named in seeds.items())

    @property
    def provenance(self) -> tuple[str, ...]:
        """Which of the counted runs were made from a changed source tree, by other code, or from other files."""
        runs = {seed: result.run for seed, result in self.counted.items() if result.run is not None}
        seeds = {
            "from a changed source tree": [seed for seed, run in runs.items() if run.is_dirty],
            "partly made with other code, versions or hardware": [seed for seed, run in runs.items() if run.is_mixed],
        }
        for seed, unusual in unusual_inputs(runs).items():
            others = [f"most of the row's other seeds ({what})" for what in unusual if what in OWN_INPUTS]
            others += [f"most other runs here ({what})" for what in self.counted[seed].unusual_benchmarks]
            for other in others:
                seeds.setdefault(f"made with other files than {other}", []).append(seed)
        return tuple(f"{seed_names(named)}: {phrase}" for phrase, named in seeds.items() if named)

    def run_lines(self) -> list[dict[str, Any]]:
        """The runs behind the row, for the footer."""
        return [
            {
                "arm": result.run.arm,
                "seed": result.seed,
                "id": result.run.id,
                "commit": result.run.commit,
                "step": result.step,
                "state": result.outcome,
            }
            for result in self.results
            if result.run is not None
        ]


def seed_names(seeds: Sequence[int]) -> str:
    """seed 1, seeds 1 2."""
    return f"seed{'s' if len(seeds) > 1 else ''} {' '.join(map(str, seeds))}"


def step_to_read(rows: Sequence[WantedRow], runs: HomeRuns, steps: int | None) -> int | None:
    """`steps` when a run wanted has a full evaluation there, else the (largest) step at which most have one, if any."""
    wanted = [run for row in rows for run in runs.of(row).values() if run is not None]
    if steps is not None and any(evaluation_at(run, steps) in runs.full_steps(run) for run in wanted):
        return steps
    # A run that collapsed late must not move the table past the steps that the others reached.
    going = [step for run in wanted if run.collapsed_at is None for step in runs.full_steps(run)]
    reached = Counter(going or [step for run in wanted for step in runs.full_steps(run)])
    return max(reached, key=lambda step: (reached[step], step), default=steps)


def read_row(
    row: WantedRow,
    runs: HomeRuns,
    step: int | Mapping[tuple[str, int], int] | None,
    limits: SuspectLimits,
    *,
    profile: str = "",
    asked: int | None = None,
    earlier: bool = False,
) -> Row:
    """The results of a row's seeds at `step`, without scores: the seeds wanted, or all of the home when none are named.

    Args: `step`, one for all, or by (family, seed); `limits` above which a result is suspect; `asked`, the step that
    the row was asked for; `earlier`: `step` is not what was asked for, so that a run which is not as far as it was to
    train must be named as such.
    """
    results = []
    for seed, run in runs.of(row).items():
        at = step.get((row.family, seed)) if isinstance(step, Mapping) else step
        results.append(_seed_result(seed, run, at, runs, limits, earlier))
    return Row(row, profile, asked, tuple(results))


def _seed_result(
    seed: int, run: RunHistory | None, step: int | None, runs: HomeRuns, limits: SuspectLimits, earlier: bool
) -> SeedResult:
    at = evaluation_at(run, step) if run is not None and step is not None else None
    if run is None or at is None:
        missing, outcome, reason = missing_reason(run, step)
        return SeedResult(seed, run if run is not None and run.id else None, None, {}, outcome, reason, missing)
    try:
        counts = runs.counts(run, at)
    except RecordError as error:
        return SeedResult(seed, run, at, {}, "records damaged", f"its records are damaged: {error}", "damaged")
    ungraded = shortfall(counts, runs.benchmarks)
    if ungraded is not None:
        reason = f"under-graded at step {at} ({ungraded})"
        return SeedResult(seed, run, at, {}, "under-graded", reason, "incomplete")
    collapsed = run.collapsed_at if run.collapsed_at is not None and run.collapsed_at <= at else None
    unended = _unended(run, at) if earlier and collapsed is None else None
    outcome = "complete"
    if collapsed is not None:
        outcome = f"collapsed at step {collapsed}"
    elif unended is not None:
        outcome = f"{unended}, read at step {at}"
    return SeedResult(
        seed,
        run,
        at,
        counts,
        outcome,
        collapsed=collapsed,
        unended=unended,
        suspect=tuple(suspicions(run, at, counts, limits)),
        unusual_benchmarks=runs.unusual_benchmarks.get(run.id, ()),
    )


def _unended(run: RunHistory, at: int) -> str | None:
    """How a run evaluated at step `at` is not as far as it was to train; None where it is, or is complete."""
    if at >= run.asked_steps or isinstance(run.outcome, Complete):
        return None
    step = max(at, run.step)
    ended = end_of(run, step)
    return f"{ended} at step {step}" if isinstance(run.outcome, Failed) else ended


def check_same_problems(rows: Sequence[Row], benchmarks: Sequence[GradedBenchmark]) -> None:
    """Raises `RecordError` for runs that were graded on different problems: pooling and pairing need the same."""
    results = [result for row in rows for result in row.counted.values()]
    for benchmark in benchmarks:
        for result in results[1:]:
            if result.counts[benchmark.name].ids != results[0].counts[benchmark.name].ids:
                folders = [str(other.run.folder.path) for other in (results[0], result) if other.run is not None]
                raise RecordError(
                    f"{' and '.join(folders)} were graded on different problems of {benchmark.name}: remove the one "
                    "whose data set is out of date and run it again."
                )


def generation_weights(benchmarks: Sequence[GradedBenchmark]) -> Array:
    """Each benchmark's share of the generations: the weights of the paper's "Avg."."""
    weights = np.array([benchmark.generations for benchmark in benchmarks], dtype=np.float64)
    return np.asarray(weights / weights.sum())


def shares_of(results: Iterable[SeedResult], benchmarks: Sequence[GradedBenchmark]) -> Scores:
    """Shares of right samples by seed (rows) and problem (columns), one array for each benchmark."""
    counted = list(results)
    return tuple(
        np.stack([result.counts[benchmark.name].correct / result.counts[benchmark.name].graded for result in counted])
        for benchmark in benchmarks
    )
