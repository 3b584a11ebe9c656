"""Builds a table from a home's records: which runs fill which rows, their counts, intervals and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tepo_lab.errors import ConfigError
from tepo_lab.report.table.budget import Budget, EqualBudget, equal_budget
from tepo_lab.report.table.compare import Part, comparisons
from tepo_lab.report.table.frame import Average, Cell, Column, Row, RunLine, Table, Untrained, WantedRow
from tepo_lab.report.table.pass_at_k import at_k, check_pass_at
from tepo_lab.report.table.rows import (
    Found,
    RowResult,
    check_same_problems,
    generation_weights,
    read_row,
    scores_of,
    step_to_read,
    tell_damaged,
)
from tepo_lab.report.table.scan import scan
from tepo_lab.schema.profile import Suite
from tepo_lab.schema.table import Report
from tepo_lab.stats.bootstrap import DRAWS, Estimate, estimate


@dataclass(frozen=True)
class Wanted:
    """What one profile gives to a table: its rows in order, the untrained model, and the benchmarks.

    `steps` is where the rows that name no step are read: when no run has a full evaluation there (or it is None), at
    the step at which most have one, and a note says so.
    """

    profile: str
    suite: Suite
    rows: tuple[WantedRow, ...]
    base: WantedRow | None = None
    steps: int | None = None


@dataclass(frozen=True)
class _Read:
    """A profile's rows as they were found. `step` is where those without a step of their own were read."""

    wanted: Wanted
    rows: list[RowResult]
    base: RowResult | None
    step: int | None
    budget: EqualBudget | None

    @property
    def results(self) -> list[RowResult]:
        return [*([self.base] if self.base else []), *self.rows]

    @property
    def part(self) -> Part:
        return Part(self.wanted.profile, self.rows, None if self.budget else self.step)

    def asked(self, row: RowResult) -> int | None:
        """The step at which a row was asked for."""
        return 0 if row is self.base else self.step if row.wanted.steps is None else row.wanted.steps


def columns_of(suite: Suite) -> tuple[Column, ...]:
    """A suite's benchmarks as columns."""
    return tuple(
        Column(name, each.label, each.problems, each.samples, each.temperature)
        for name, each in suite.benchmarks.items()
    )


def build_table(
    report: Report,
    wanted: Sequence[Wanted],
    *,
    home: Path,
    equal: Budget | None = None,
    pass_at: Sequence[int] = (),
    notes: Sequence[str] = (),
    draws: int = DRAWS,
    seed: int = 0,
) -> Table:
    """The report's table from the records under `home`: one frame, whatever steps and profiles its rows are of.

    Args: `wanted`, one for each profile, all of the same benchmarks; `equal` reads each run where all of its profile
    have spent the same, instead of at a step; `pass_at`, each k of pass@k; `notes`, what else is said under the table;
    `seed` and `draws` are the bootstrap's.
    A seed whose records are damaged has no score, and says so.
    Raises `RecordError` when two runs of the table were graded on different problems, or none has spent a budget;
    `ConfigError` for profiles that differ in their benchmarks, or a k that no benchmark has the samples for.
    """
    columns = columns_of(wanted[0].suite)
    for each in wanted[1:]:
        if columns_of(each.suite) != columns:
            raise ConfigError(
                f"profiles {wanted[0].profile} and {each.profile} differ in their benchmarks: ask for one of them."
            )
    check_pass_at(pass_at, columns)
    read = [_read(each, report, home, columns, equal) for each in wanted]
    results = [row for each in read for row in each.results]
    check_same_problems(results, columns)
    built = iter(_rows(read, columns, pass_at, draws, seed))
    untrained, rows = [], []
    for part in read:
        untrained.append(_untrained(part, next(built) if part.base else None))
        rows += [next(built) for _ in part.rows]
    asked = {part.asked(row) for part in read for row in part.rows}
    return Table(
        name=report.name,
        title=report.title,
        profiles=tuple(each.profile for each in wanted),
        paper_profiles=report.profiles,
        columns=columns,
        panels={name: panel.title for name, panel in report.panels.items()},
        untrained=tuple(untrained),
        rows=tuple(rows),
        steps=asked.pop() if len(asked) == 1 and equal is None else None,
        comparisons=tuple(comparisons([each.part for each in read], columns, draws, seed)),
        notes=(*notes, *(note for each in read for note in _notes(report, each))),
        interval=(
            f"95 %, two-level bootstrap over seeds and over problems within each benchmark, {draws} draws, "
            f"bootstrap seed {seed}; a problem's samples stay together; with one seed over problems only"
        ),
        pass_at=tuple(sorted(set(pass_at))),
    )


def _read(wanted: Wanted, report: Report, home: Path, columns: Sequence[Column], equal: Budget | None) -> _Read:
    base = wanted.base
    families = (each.family for each in (*wanted.rows, *([base] if base else [])))
    found = scan(home, families, columns, metrics=equal is not None)
    step = step_to_read([row for row in wanted.rows if row.steps is None], found, wanted.steps)
    budget = _budget(found, base, equal) if equal else None
    limits = report.suspect_above

    def result(row: WantedRow) -> RowResult:
        if budget is not None:
            return read_row(row, found, budget.steps, columns, limits)
        if row.steps is not None:
            return read_row(row, found, row.steps, columns, limits)
        return read_row(row, found, step, columns, limits, earlier=step != wanted.steps)

    untrained = read_row(base, found, 0, columns, limits) if base else None
    read = _Read(wanted, [result(row) for row in wanted.rows], untrained, step, budget)
    tell_damaged(read.results)
    return read


def _budget(found: Found, base: WantedRow | None, equal: Budget) -> EqualBudget:
    return equal_budget((run for run in found.values() if base is None or run.family != base.family), equal)


def _untrained(read: _Read, row: Row | None) -> Untrained:
    reason = "not asked for" if row is None else row.average.reason
    return Untrained(read.wanted.profile, row if reason is None else None, reason)


def _rows(read: Sequence[_Read], columns: Sequence[Column], pass_at: Sequence[int], draws: int, seed: int) -> list[Row]:
    """Rows in order, each profile's untrained model first, intervals of all of them drawn together."""
    placed = [(each, row) for each in read for row in each.results]
    scored = [row for _, row in placed if row.counted]
    weightings = [generation_weights(columns), *np.eye(len(columns))]
    scores = [scores_of(list(row.counted.values()), columns) for row in scored]
    estimates = dict(
        zip((id(row) for row in scored), estimate(scores, weightings, draws=draws, seed=seed), strict=True)
    )
    built = [_row(each, row, columns, estimates.get(id(row))) for each, row in placed]
    if not pass_at:
        return built
    found = at_k([row for _, row in placed], [row.cells for row in built], columns, pass_at, draws, seed)
    return [
        replace(row, cells={name: replace(cell, at_k=held.get(name, {})) for name, cell in row.cells.items()})
        for row, held in zip(built, found, strict=True)
    ]


def _row(read: _Read, row: RowResult, columns: Sequence[Column], estimates: list[Estimate] | None) -> Row:
    counted = list(row.counted.values())
    if estimates is None:
        reason, missing = row.reason
        cells = {column.name: Cell(reason=reason, missing=missing) for column in columns}
        average = Average(reason=reason, missing=missing)
    else:
        cells = {
            column.name: Cell(
                correct=sum(int(each.counts[column.name].correct.sum()) for each in counted),
                graded=sum(int(each.counts[column.name].graded.sum()) for each in counted),
                ci95=_percent_interval(found),
            )
            for column, found in zip(columns, estimates[1:], strict=True)
        }
        average = _average(cells, estimates[0])
    wanted = row.wanted
    return Row(
        panel=wanted.panel,
        arm=wanted.arm,
        label=wanted.label,
        seeds=tuple(row.counted),
        steps=max((each.step for each in counted if each.step is not None), default=read.asked(row)),
        outcome=row.outcome,
        cells=cells,
        average=average,
        runs=_run_lines(row),
        profile=read.wanted.profile,
        published=wanted.published_name,
        suspect=row.suspect,
        provenance=row.provenance,
        collapses=row.collapses,
    )


def _average(cells: Mapping[str, Cell], found: Estimate) -> Average:
    correct = sum(cell.correct or 0 for cell in cells.values())
    graded = sum(cell.graded or 0 for cell in cells.values())
    percents = [cell.percent for cell in cells.values() if cell.percent is not None]
    return Average(
        generation_weighted=100 * correct / graded,
        macro=sum(percents) / len(percents),
        ci95=_percent_interval(found),
        seeds=found.seeds,
    )


def _run_lines(row: RowResult) -> tuple[RunLine, ...]:
    return tuple(
        RunLine(each.run.arm, each.seed, each.run.id, each.run.commit, each.step, each.outcome)
        for each in row.results
        if each.run is not None
    )


def _percent_interval(found: Estimate) -> tuple[float, float]:
    return 100 * found.low, 100 * found.high


def _notes(report: Report, read: _Read) -> list[str]:
    profile, asked, step = read.wanted.profile, read.wanted.steps, read.step
    notes = []
    if all(benchmark.data.kind == "chain" for benchmark in read.wanted.suite.benchmarks.values()):
        notes.append(
            f"Profile {profile}: its benchmarks belong to the embedded task (a running total modulo 100). They are not "
            "AIME, AMC, MATH-500 or any other public benchmark."
        )
    if report.published is not None and profile not in report.profiles:
        notes.append(
            f"The paper's table is about {report.profile}; these numbers are of {profile} and cannot be compared with "
            "it."
        )
    if read.budget is not None:
        notes.append(read.budget.note)
    elif (
        asked is not None and step is not None and asked != step and any(row.wanted.steps is None for row in read.rows)
    ):
        notes.append(f"No run has a full evaluation at step {asked}: the table is read at step {step}.")
    return notes
