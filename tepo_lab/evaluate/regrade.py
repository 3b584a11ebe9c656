"""Grades a run's recorded generations again, without generating."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo_lab.errors import RecordError, nearest
from tepo_lab.evaluate.suite import counts
from tepo_lab.records.files import RunFolder, run_folders, tell_passed_over, write_whole
from tepo_lab.records.generations import GENERATION_COLUMNS, read_generations, with_column, write_generations
from tepo_lab.schema.base import validate
from tepo_lab.schema.run import RunSpec
from tepo_lab.tasks.grading import GRADER, benchmark_grader, grade_all

if TYPE_CHECKING:
    import pyarrow

#: Events that end a run, and are its state as long as they stand last.
_ENDS = ("complete", "collapsed", "stopped", "failed")


@dataclass(frozen=True)
class Regraded:
    """How many answers of a run were graded again, and how many came out otherwise."""

    run: str
    generations: int
    changed: int


def named_folders(home: Path, names: Sequence[str]) -> list[RunFolder]:
    """The runs of a home whose folders' names begin with one of `names`; all for none. Raises `RecordError` for a name
    that no run has. Damaged ones that are not named are passed over, as standard error says."""
    folders = run_folders(home)
    for name in names:
        if not any(folder.name.startswith(name) for folder in folders):
            raise RecordError(f"{home} has no run {name!r}.{nearest(name, [folder.name for folder in folders])}")
    if names:
        return [folder for folder in folders if folder.name.startswith(tuple(names))]
    return [folder for folder in folders if _is_readable(folder)]


def _is_readable(folder: RunFolder) -> bool:
    try:
        folder.run()
        folder.events()
    except RecordError as error:
        tell_passed_over(folder, error)
        return False
    return True


def regrade(folder: RunFolder) -> Regraded:
    """Grade every generation of a run again. The caller holds the run.

    Files are written whole, with their other columns as they were. Each evaluation is recorded in the events again,
    with its new counts, and after them the event that ended the run, if one did. Raises `RecordError` for damaged
    records, before any file is written.
    """
    spec = validate(RunSpec, folder.run()["spec"], where=str(folder.run_file))
    events, recorded = folder.events(), []
    total = changed = 0
    steps = folder.evaluated_steps()
    for step in steps:
        _generations(folder.generations(step), spec)
    for step in steps:
        rows, different = _regrade_file(folder.generations(step), spec)
        scores = {name: asdict(count) for name, count in counts(rows).items()}
        recorded.append(
            {"event": "evaluated", "step": step, "benchmarks": scores, "grader": GRADER, "grades_changed": different}
        )
        total, changed = total + len(rows), changed + different
    if recorded:
        lines = [{"time": time.time(), **event} for event in recorded]
        lines += [event for event in events[-1:] if event["event"] in _ENDS]
        text = "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines)
        write_whole(folder.events_file, _whole_lines(folder.events_file) + text.encode())
    return Regraded(folder.name, total, changed)


def _regrade_file(path: Path, spec: RunSpec) -> tuple[list[dict[str, Any]], int]:
    """The rows of a generations file, graded again and written back, and how many grades changed."""
    import pyarrow as pa

    table = _generations(path, spec)
    rows: list[dict[str, Any]] = table.select(["benchmark", "response", "answer"]).to_pylist()
    before = table["correct"].to_pylist() if "correct" in table.column_names else [None] * len(rows)
    for name in dict.fromkeys(row["benchmark"] for row in rows):
        asked = [row for row in rows if row["benchmark"] == name]
        grader = benchmark_grader(spec.suite.benchmarks[name], spec.prompt)
        grades = grade_all([row["response"] for row in asked], [row["answer"] for row in asked], grader)
        for row, grade in zip(asked, grades, strict=True):
            row |= {"extracted": grade.extracted, "correct": grade.correct, "how": grade.how, "grader": GRADER}
    changed = sum(row["correct"] != old for row, old in zip(rows, before, strict=True))
    for column, kind in (
        ("extracted", pa.string()),
        ("correct", pa.int64()),
        ("how", pa.string()),
        ("grader", pa.string()),
    ):
        table = with_column(table, column, pa.array([row[column] for row in rows], type=kind))
    write_generations(path, table)
    return rows, changed


def _generations(path: Path, spec: RunSpec) -> pyarrow.Table:
    """A file of generations, whatever its grades. Raises `RecordError` for damage or benchmarks of another suite."""
    import pyarrow.compute as compute

    table = read_generations(path, GENERATION_COLUMNS, graded=False)
    for name in compute.unique(table["benchmark"]).to_pylist():
        if name not in spec.suite.benchmarks:
            raise RecordError(f"{path} has generations of {name!r}, which the run's suite does not have: remove it.")
    return table


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]
