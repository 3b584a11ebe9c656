"""Builds a table from a home's records: which runs fill which rows, their counts, intervals and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tepo_lab.report.budget import Budget, equal_budget
from tepo_lab.report.compare import comparisons
from tepo_lab.report.frame import Average, Cell, Column, Row, RunLine, Table, WantedRow
from tepo_lab.report.rows import RowResult, check_same_problems, generation_weights, read_row, scores_of, step_to_read
from tepo_lab.report.scan import scan
from tepo_lab.schema.profile import Suite
from tepo_lab.schema.table import Report
from tepo_lab.stats.bootstrap import DRAWS, Estimate, estimate


def build_table(
    report: Report,
    rows: Sequence[WantedRow],
    *,
    base: WantedRow | None,
    home: Path,
    suite: Suite,
    profile: str,
    steps: int | None = None,
    exact_steps: bool = False,
    equal: Budget | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Table:
    """The report's table from the records under `home`.

    Args: `rows` in the table's order; `base` the untrained model's row; `suite` the columns; `profile` the one whose
    runs were asked for; `steps` the training steps to read at. When no run has a full evaluation there (or `steps` is
    None), the step at which most have one is taken, and a note says so; with `exact_steps` no other step is. `equal`
    reads each run where all have spent the same instead. `seed` and `draws` are the bootstrap's.
    Raises `RecordError` for a damaged record, or when two runs of the table were graded on different problems.
    """
    columns = tuple(
        Column(name, each.label, each.problems, each.samples, each.temperature)
        for name, each in suite.benchmarks.items()
    )
    found = scan(home, (each.family for each in (*rows, *([base] if base else []))), columns)
    step = steps if exact_steps else step_to_read(rows, found, steps)
    budget = (
        equal_budget((run for run in found.values() if base is None or run.family != base.family), equal)
        if equal
        else None
    )
    results = [read_row(each, found, budget.steps if budget else step, columns) for each in rows]
    base_results = [read_row(base, found, 0, columns)] if base else []
    check_same_problems([*base_results, *results], columns)
    built = _rows([*base_results, *results], columns, step, draws, seed)
    untrained = built.pop(0) if base_results else None
    base_reason = untrained.average.reason if untrained else "not asked for"
    return Table(
        name=report.name,
        title=report.title,
        profile=profile,
        paper_profile=report.profile,
        steps=None if budget else step,
        columns=columns,
        panels={name: panel.title for name, panel in report.panels.items()},
        base=untrained if base_reason is None else None,
        base_reason=base_reason,
        rows=tuple(built),
        comparisons=tuple(comparisons(results, columns, draws, seed)),
        notes=(*_notes(report, profile, suite, None if budget else steps, step), *([budget.note] if budget else [])),
        interval=(
            f"95 %, two-level bootstrap over seeds and over problems within each benchmark, {draws} draws, "
            f"bootstrap seed {seed}; with one seed over problems only"
        ),
    )


def _rows(rows: Sequence[RowResult], columns: Sequence[Column], step: int | None, draws: int, seed: int) -> list[Row]:
    """Rows in the order given, intervals of all of them drawn together."""
    scored = [row for row in rows if row.counted]
    weightings = [generation_weights(columns), *np.eye(len(columns))]
    scores = [scores_of(list(row.counted.values()), columns) for row in scored]
    estimates = dict(
        zip((id(row) for row in scored), estimate(scores, weightings, draws=draws, seed=seed), strict=True)
    )
    return [_row(row, columns, step, estimates.get(id(row))) for row in rows]


def _row(row: RowResult, columns: Sequence[Column], step: int | None, estimates: list[Estimate] | None) -> Row:
    outcome = row.outcome
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
    reached = max((each.step for each in counted if each.step is not None), default=step)
    seeds = tuple(row.counted)
    return Row(wanted.panel, wanted.arm, wanted.label, seeds, reached, outcome, cells, average, _run_lines(row))


def _average(cells: Mapping[str, Cell], found: Estimate) -> Average:
    correct = sum(cell.correct or 0 for cell in cells.values())
    graded = sum(cell.graded or 0 for cell in cells.values())
    percents = [cell.percent for cell in cells.values() if cell.percent is not None]
    return Average(
        generation_weighted=100 * correct / graded,
        macro=round(sum(percents) / len(percents), 6),
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
    return round(100 * found.low, 4), round(100 * found.high, 4)


def _notes(report: Report, profile: str, suite: Suite, asked: int | None, step: int | None) -> list[str]:
    notes = []
    if all(benchmark.data.kind == "chain" for benchmark in suite.benchmarks.values()):
        notes.append(
            f"Profile {profile}: its benchmarks belong to the embedded task (a running total modulo 100). They are not "
            "AIME, AMC, MATH-500 or any other public benchmark."
        )
    if profile != report.profile:
        notes.append(
            f"The paper's table is about {report.profile}; these numbers are of {profile} and cannot be compared with "
            "it."
        )
    if asked is not None and step is not None and asked != step:
        notes.append(f"No run has a full evaluation at step {asked}: the table is read at step {step}.")
    return notes
