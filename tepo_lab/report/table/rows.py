"""What each wanted row finds in the home: its seeds' counts at one step, or why there are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tepo_lab.errors import RecordError
from tepo_lab.records.files import tell_passed_over
from tepo_lab.report.table.frame import Collapse, Column, Missing, WantedRow
from tepo_lab.report.table.scan import (
    OWN_INPUTS,
    Counts,
    FoundRun,
    end_of,
    missing_reason,
    read_counts,
    shortfall,
    unusual_inputs,
)
from tepo_lab.report.table.suspect import suspicions
from tepo_lab.schema.table import SuspectLimits
from tepo_lab.stats.bootstrap import Array, Scores

Found = Mapping[tuple[str, int], FoundRun]

_DAMAGED = "its records are damaged: "


@dataclass(frozen=True)
class SeedResult:
    """What one seed gives to a row: its counts, or why it has none.

    `counted` says that it has them; `collapsed` is the step at which the run they are of collapsed; `unended` is how
    that run is not as far as it was to train; `suspect` is why the counts may not be what they seem.
    """

    seed: int
    run: FoundRun | None
    step: int | None
    counts: dict[str, Counts]
    outcome: str
    reason: str | None = None
    missing: Missing | None = None
    collapsed: int | None = None
    unended: str | None = None
    suspect: tuple[str, ...] = ()

    @property
    def counted(self) -> bool:
        return self.missing is None


@dataclass(frozen=True)
class RowResult:
    """A wanted row with the results of its seeds, in order."""

    wanted: WantedRow
    results: tuple[SeedResult, ...]

    @property
    def counted(self) -> dict[int, SeedResult]:
        return {each.seed: each for each in self.results if each.counted}

    @property
    def parent(self) -> str | None:
        """The parent's name as the runs recorded it."""
        return next((each.run.parent for each in self.results if each.run is not None), None)

    @property
    def outcome(self) -> str:
        """What became of the row's seeds, in one phrase."""
        results = self.results
        if not results:
            return "not run"
        counted = list(self.counted.values())
        if not counted:
            return "; ".join(dict.fromkeys(each.outcome for each in results))
        at = "; ".join(self._ends(counted))
        if len(counted) == len(results):
            return at or "complete"
        others = ", ".join(dict.fromkeys(each.outcome for each in results if not each.counted))
        partly = f"partly: {len(counted)} of {len(results)} seeds ({others})"
        return f"{partly}; {at}" if at else partly

    def _ends(self, counted: Sequence[SeedResult]) -> Iterator[str]:
        steps = [each.collapsed for each in counted if each.collapsed is not None]
        if steps:
            yield f"collapsed at step {', '.join(str(step) for step in sorted(set(steps)))}{self._share(len(steps))}"
        unended = Counter(each.unended for each in counted if each.unended is not None)
        if unended:
            said = ", ".join(f"{state}{self._share(count)}" for state, count in unended.items())
            yield f"{said}, read at step {max(each.step or 0 for each in counted if each.unended is not None)}"

    def _share(self, count: int) -> str:
        return "" if count == len(self.results) else f" ({count} of {len(self.results)} seeds)"

    @property
    def collapses(self) -> tuple[Collapse, ...]:
        """The collapses that the row's outcome tells of, evaluated or not."""
        ended = (
            (each.seed, each.run)
            for each in self.results
            if each.run is not None and (each.collapsed is not None or each.missing == "collapsed")
        )
        return tuple(Collapse(seed, int(run.status["step"]), str(run.status["rule"])) for seed, run in ended)

    @property
    def suspect(self) -> tuple[str, ...]:
        """Why the row is suspect, each reason with the seeds it holds for."""
        seeds: dict[str, list[int]] = {}
        for each in self.counted.values():
            for reason in each.suspect:
                seeds.setdefault(reason, []).append(each.seed)
        return tuple(f"{_named(held)}: {reason}" for reason, held in seeds.items())

    @property
    def provenance(self) -> tuple[str, ...]:
        """Which of the counted runs were made from a changed source tree, by other code, or from other files."""
        runs = {seed: each.run for seed, each in self.counted.items() if each.run is not None}
        said = {
            "from a changed source tree": [seed for seed, run in runs.items() if run.dirty],
            "partly made with other code, versions or hardware": [seed for seed, run in runs.items() if run.continued],
        }
        for seed, unusual in unusual_inputs(runs).items():
            words = [f"most of the row's other seeds ({what})" for what in unusual if what in OWN_INPUTS]
            words += [f"most other runs here ({what})" for what in runs[seed].unusual_benchmarks]
            for each in words:
                said.setdefault(f"made with other files than {each}", []).append(seed)
        return tuple(f"{_named(seeds)}: {words}" for words, seeds in said.items() if seeds)

    @property
    def reason(self) -> tuple[str, Missing]:
        """Why the row has no score: in full, and in one word."""
        reasons = dict.fromkeys(each.reason for each in self.results if each.reason)
        words = [each.missing for each in self.results if each.missing is not None and each.missing != "not run"]
        return "; ".join(reasons) or "not run", words[0] if words else "not run"


def _named(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {' '.join(str(seed) for seed in seeds)}"


def step_to_read(rows: Sequence[WantedRow], found: Found, steps: int | None) -> int | None:
    """`steps` when a run wanted has a full evaluation there, else the (largest) step at which most have one, if any."""
    runs = [run for row in rows for run in runs_of(row, found).values() if run is not None]
    if steps is not None and any(run.evaluation_for(steps) in run.full_steps for run in runs):
        return steps
    # A run that collapsed late must not move the table past the steps that the others reached.
    going = [step for run in runs if run.collapsed_at is None for step in run.full_steps]
    reached = Counter(going or [step for run in runs for step in run.full_steps])
    return max(reached, key=lambda step: (reached[step], step), default=steps)


def runs_of(row: WantedRow, found: Found) -> dict[int, FoundRun | None]:
    """The run of each seed of a row, None where there is none; all seeds that are found where the row names none."""
    seeds = row.seeds or sorted({*row.damaged, *(seed for family, seed in found if family == row.family)})
    return {seed: found.get((row.family, seed)) for seed in seeds}


def read_row(
    row: WantedRow,
    found: Found,
    step: int | Mapping[tuple[str, int], int] | None,
    columns: Sequence[Column],
    limits: SuspectLimits,
    *,
    earlier: bool = False,
) -> RowResult:
    """The results of a row's seeds at `step`: the seeds wanted, or all that are found when none are named.

    Args: `step`, one for all, or by (family, seed); `limits` above which a result is suspect; `earlier`: `step` was
    not asked for, but is what there is, so that a run which is not as far as it was to train must say so.
    """
    results = []
    for seed, run in runs_of(row, found).items():
        at = step.get((row.family, seed)) if isinstance(step, Mapping) else step
        if run is None and seed in row.damaged:
            reason = "its run.json is damaged or gone; the command that ran it writes it anew"
            results.append(SeedResult(seed, None, None, {}, "records damaged", reason, "damaged"))
        else:
            results.append(_seed_result(seed, run, at, columns, limits, earlier))
    return RowResult(row, tuple(results))


def _seed_result(
    seed: int,
    run: FoundRun | None,
    step: int | None,
    columns: Sequence[Column],
    limits: SuspectLimits,
    earlier: bool,
) -> SeedResult:
    at = run.evaluation_for(step) if run is not None and step is not None else None
    if run is None or at is None:
        missing, outcome, reason = missing_reason(run, step)
        return SeedResult(seed, run, None, {}, outcome, reason, missing)
    try:
        counts = read_counts(run, at, columns)
    except RecordError as error:
        reason = f"{_DAMAGED}{error}"
        return SeedResult(seed, run, at, {}, "records damaged", reason, "damaged")
    lacking = shortfall(counts, columns)
    if lacking is not None:
        reason = f"under-graded at step {at} ({lacking})"
        return SeedResult(seed, run, at, {}, "under-graded", reason, "incomplete")
    collapsed = run.collapsed_at if run.collapsed_at is not None and run.collapsed_at <= at else None
    unended = _unended(run, at) if earlier and collapsed is None else None
    outcome = "complete" if collapsed is None else f"collapsed at step {collapsed}"
    if unended is not None:
        outcome = f"{unended}, read at step {at}"
    suspect = tuple(suspicions(run, at, counts, columns, limits))
    return SeedResult(seed, run, at, counts, outcome, collapsed=collapsed, unended=unended, suspect=suspect)


def _unended(run: FoundRun, at: int) -> str | None:
    """How a run evaluated at step `at` is not as far as it was to train; None where it is, or is complete."""
    event = run.status.get("event")
    if at >= run.asked_steps or event == "complete":
        return None
    step = max(at, run.last_step)
    return f"{end_of(run, step)} at step {step}" if event == "failed" else end_of(run, step)


def tell_damaged(rows: Iterable[RowResult]) -> None:
    """Name on standard error, each once, the evaluations wanted that could not be read."""
    results = [each for row in rows for each in row.results if each.missing == "damaged"]
    for run, reason in {(each.run.folder, each.reason): None for each in results if each.run and not each.run.damaged}:
        tell_passed_over(run, RecordError(str(reason).removeprefix(_DAMAGED)))


def check_same_problems(rows: Sequence[RowResult], columns: Sequence[Column]) -> None:
    """Pooling and pairing need the same problems in every run."""
    first: SeedResult | None = None
    for result in (each for row in rows for each in row.counted.values()):
        first = first or result
        for column in columns:
            if result.counts[column.name].ids != first.counts[column.name].ids:
                folders = [str(each.run.folder.path) for each in (first, result) if each.run is not None]
                raise RecordError(
                    f"{' and '.join(folders)} were graded on different problems of {column.name}: remove the one whose "
                    "data set is out of date and run it again."
                )


def generation_weights(columns: Sequence[Column]) -> Array:
    """Each benchmark's share of the generations: what the paper's "Avg." weighs the columns by."""
    weights = np.array([column.generations for column in columns], dtype=np.float64)
    return np.asarray(weights / weights.sum())


def scores_of(results: Sequence[SeedResult], columns: Sequence[Column]) -> Scores:
    """Shares of right samples by seed (rows) and problem (columns), one array for each benchmark."""
    return tuple(
        np.stack([each.counts[column.name].correct / each.counts[column.name].graded for each in results])
        for column in columns
    )
