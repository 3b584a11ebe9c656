"""Grades a run's recorded generations again, without generating."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo_lab.errors import RecordError, nearest
from tepo_lab.evaluate.suite import counts
from tepo_lab.records.events import Evaluated
from tepo_lab.records.files import RunFolder, report_left_out
from tepo_lab.records.generations import GENERATION_COLUMNS, read_generations, with_column, write_generations
from tepo_lab.records.history import RunHistory, append_event, read_histories
from tepo_lab.schema.base import validate
from tepo_lab.schema.run import RunSpec
from tepo_lab.tasks.grading import GRADER, benchmark_grader, grade_all

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Regraded:
    """How many answers of a run were graded again, and how many grades changed."""

    run: str
    generations: int
    changed: int


def named_folders(home: Path, names: Sequence[str]) -> list[RunFolder]:
    """The runs of a home whose folders' names begin with one of `names`; all undamaged ones for none, with a note on
    standard error for each of the others. Raises `RecordError` for a name that no run has."""
    histories = list(read_histories(home))
    for name in names:
        if not any(history.name.startswith(name) for history in histories):
            raise RecordError(f"{home} has no run {name!r}.{nearest(name, [history.name for history in histories])}")
    if names:
        return [history.folder for history in histories if history.name.startswith(tuple(names))]
    for history in histories:
        if history.damage is not None:
            report_left_out(history.folder, history.damage)
    return [history.folder for history in histories if history.damage is None]


def regrade(folder: RunFolder) -> Regraded:
    """Grade every recorded generation of a run again, and record the new counts. The caller owns the run's lock.

    Raises `RecordError` for damaged records, before any file is written.
    """
    history = RunHistory.read(folder, owned_by_us=True)
    if history.damage is not None:
        raise RecordError(history.damage)
    spec = validate(RunSpec, history.run["spec"], where=str(folder.run_file))
    recorded = [
        evaluation for step, evaluation in sorted(history.evaluations.items()) if os.path.exists(evaluation.path)
    ]
    tables = [_ungraded(evaluation.path, spec) for evaluation in recorded]
    changed = 0
    for evaluation, table in zip(recorded, tables, strict=True):
        rows, different = _graded(table, spec)
        write_generations(evaluation.path, rows)
        event: dict[str, Any] = {
            "step": evaluation.step,
            "benchmarks": counts(rows.select(["benchmark", "correct"]).to_pylist()),
            "grader": GRADER,
            "grades_changed": different,
        }
        if evaluation.checks_sampler:
            event["sampler_mismatch"] = evaluation.sampler_mismatch
        append_event(folder, Evaluated.model_validate(event))
        changed += different
    return Regraded(folder.name, sum(table.num_rows for table in tables), changed)


def _ungraded(path: Path, spec: RunSpec) -> pyarrow.Table:
    """A file of generations, whatever its grades. Raises `RecordError` for damage or benchmarks of another suite."""
    import pyarrow.compute as compute

    table = read_generations(path, GENERATION_COLUMNS, graded=False)
    for name in compute.unique(table["benchmark"]).to_pylist():
        if name not in spec.suite.benchmarks:
            raise RecordError(f"{path} has generations of {name!r}, which the run's suite does not have: remove it.")
    return table


def _graded(table: pyarrow.Table, spec: RunSpec) -> tuple[pyarrow.Table, int]:
    """The generations with the grades of today, and how many grades changed."""
    import pyarrow as pa

    benchmarks, responses, answers = (table[name].to_pylist() for name in ("benchmark", "response", "answer"))
    before = table["correct"].to_pylist() if "correct" in table.column_names else [None] * table.num_rows
    grades: list[Any] = [None] * table.num_rows
    for name in set(benchmarks):
        places = [place for place, benchmark in enumerate(benchmarks) if benchmark == name]
        grader = benchmark_grader(spec.suite.benchmarks[name], spec.prompt)
        new = grade_all([responses[place] for place in places], [answers[place] for place in places], grader)
        for place, grade in zip(places, new, strict=True):
            grades[place] = grade
    for column, kind in (("extracted", pa.string()), ("correct", pa.int64()), ("how", pa.string())):
        table = with_column(table, column, pa.array([getattr(grade, column) for grade in grades], type=kind))
    table = with_column(table, "grader", pa.array([GRADER] * table.num_rows))
    return table, sum(grade.correct != old for grade, old in zip(grades, before, strict=True))
