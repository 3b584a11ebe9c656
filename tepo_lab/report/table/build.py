"""Builds a table from a home's records: which runs fill which rows, their scores, intervals and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tepo_lab.errors import ConfigError
from tepo_lab.report.table.at_k import at_k, check_pass_at
from tepo_lab.report.table.budget import Budget, equal_budget
from tepo_lab.report.table.compare import comparisons
from tepo_lab.report.table.frame import Table, Untrained
from tepo_lab.report.table.rows import (
    Row,
    Score,
    check_same_problems,
    generation_weights,
    read_row,
    shares_of,
    step_to_read,
)
from tepo_lab.report.table.runs import read_runs
from tepo_lab.report.table.wanted import GradedBenchmark, Wanted, WantedRow, graded_benchmarks
from tepo_lab.schema.table import Report
from tepo_lab.stats.bootstrap import DRAWS, Estimate, estimate


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
    have spent the same, instead of at a step; `pass_at`, each k of pass@k; `notes`, the first of the footnotes;
    `seed` and `draws` are the bootstrap's.
    A seed whose records are damaged has no score but a reason.
    Raises `RecordError` when two runs of the table were graded on different problems, or none has spent a budget;
    `ConfigError` for profiles that differ in their benchmarks, or a k that no benchmark has the samples for.
    """
    benchmarks = graded_benchmarks(wanted[0].suite)
    for other in wanted[1:]:
        if graded_benchmarks(other.suite) != benchmarks:
            raise ConfigError(
                f"profiles {wanted[0].profile} and {other.profile} differ in their benchmarks: ask for one of them."
            )
    check_pass_at(pass_at, benchmarks)
    rows: list[Row] = []
    footnotes = list(notes)
    for profile in wanted:
        own, own_notes = _read(profile, report, home, benchmarks, equal)
        rows += own
        footnotes += own_notes
    check_same_problems(rows, benchmarks)
    rows = _scored(rows, benchmarks, draws, seed)
    if pass_at:
        rows = at_k(rows, benchmarks, pass_at, draws, seed)
    untrained = [_untrained(profile, rows) for profile in wanted]
    trained = [row for row in rows if all(row.wanted is not profile.base for profile in wanted)]
    steps = {row.asked for row in trained}
    return Table(
        name=report.name,
        title=report.title,
        profiles=tuple(profile.profile for profile in wanted),
        paper_profiles=report.profiles,
        benchmarks=benchmarks,
        panels={name: panel.title for name, panel in report.panels.items()},
        untrained=tuple(untrained),
        rows=tuple(trained),
        steps=steps.pop() if len(steps) == 1 and equal is None else None,
        comparisons=tuple(comparisons(trained, benchmarks, draws, seed, at_budget=equal is not None)),
        notes=tuple(footnotes),
        interval=(
            f"95 %, two-level bootstrap over seeds and over problems within each benchmark, {draws} draws, "
            f"bootstrap seed {seed}; a problem's samples stay together; with one seed over problems only"
        ),
        pass_at=tuple(sorted(set(pass_at))),
    )


def _read(
    wanted: Wanted, report: Report, home: Path, benchmarks: Sequence[GradedBenchmark], equal: Budget | None
) -> tuple[list[Row], list[str]]:
    """A profile's rows without scores, the untrained model first where it is asked for, and the profile's notes."""
    bases = [wanted.base] if wanted.base else []
    runs = read_runs(home, [*bases, *wanted.rows], benchmarks, metrics=equal is not None)
    at_table_step = [row for row in wanted.rows if row.steps is None]
    step = step_to_read(at_table_step, runs, wanted.steps)
    budget = None
    if equal is not None:
        budget = equal_budget(runs, equal, untrained=wanted.base.family if wanted.base else None)

    def result(row: WantedRow) -> Row:
        asked = step if row.steps is None else row.steps
        return read_row(
            row,
            runs,
            budget.steps if budget else asked,
            report.suspect_above,
            profile=wanted.profile,
            asked=asked,
            earlier=budget is None and row.steps is None and step != wanted.steps,
        )

    rows = [read_row(base, runs, 0, report.suspect_above, profile=wanted.profile, asked=0) for base in bases]
    rows += map(result, wanted.rows)
    notes = _notes(report, wanted)
    if budget is not None:
        notes.append(budget.note)
    elif at_table_step and wanted.steps not in (None, step) and step is not None:
        notes.append(f"No run has a full evaluation at step {wanted.steps}: the table is read at step {step}.")
    return rows, notes


def _notes(report: Report, wanted: Wanted) -> list[str]:
    """What a reader must know of a profile's benchmarks."""
    notes = []
    if all(benchmark.data.kind == "chain" for benchmark in wanted.suite.benchmarks.values()):
        notes.append(
            f"Profile {wanted.profile}: its benchmarks belong to the embedded task (a running total modulo 100). They "
            "are not AIME, AMC, MATH-500 or any other public benchmark."
        )
    if report.published is not None and wanted.profile not in report.profiles:
        notes.append(
            f"The paper's table is about {report.profile}; these numbers are of {wanted.profile} and cannot be "
            "compared with it."
        )
    return notes


def _scored(rows: Sequence[Row], benchmarks: Sequence[GradedBenchmark], draws: int, seed: int) -> list[Row]:
    """Rows with their scores, the intervals of all of them drawn together."""
    counted = [row for row in rows if row.counted]
    weightings = [generation_weights(benchmarks), *np.eye(len(benchmarks))]
    shares = [shares_of(row.counted.values(), benchmarks) for row in counted]
    estimates = iter(estimate(shares, weightings, draws=draws, seed=seed))
    return [_with_scores(row, benchmarks, next(estimates)) if row.counted else row for row in rows]


def _with_scores(row: Row, benchmarks: Sequence[GradedBenchmark], estimates: Sequence[Estimate]) -> Row:
    scores = {}
    for benchmark, one in zip(benchmarks, estimates[1:], strict=True):
        counts = [result.counts[benchmark.name] for result in row.counted.values()]
        correct, graded = (sum(int(getattr(one, name).sum()) for one in counts) for name in ("correct", "graded"))
        scores[benchmark.name] = Score(correct, graded, (100 * one.low, 100 * one.high))
    average = Score(
        sum(score.correct for score in scores.values()),
        sum(score.graded for score in scores.values()),
        (100 * estimates[0].low, 100 * estimates[0].high),
    )
    return replace(row, scores=scores, average=average)


def _untrained(wanted: Wanted, rows: Sequence[Row]) -> Untrained:
    row = next((row for row in rows if row.wanted is wanted.base), None)
    if row is None:
        return Untrained(wanted.profile, None, "not asked for")
    return Untrained(wanted.profile, row if row.reason is None else None, row.reason)
