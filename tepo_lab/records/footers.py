"""How evaluations are, as far as the ends of their files tell: those of thousands of runs are looked at in a second.

A Parquet file ends with how many rows it has, how many of them have no value, and the least and the largest one. A file
older than the event that tells of its grades is not opened at all. What only the rows tell (a bit that a disk has
changed, a sample that stands there twice) is found when a sweep is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo_lab.records.files import RunFolder
from tepo_lab.records.repair import Condition, is_marked, lacks_grades_alone
from tepo_lab.schema.profile import Suite

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

#: What a run's events.jsonl says, in order.
Events = Sequence[Mapping[str, Any]]


def generations_of(suite: Suite | Mapping[str, Any] | None) -> int | None:
    """How many generations an evaluation of the suite has; None where what a run.json holds as one does not say."""
    values: Any = suite.model_dump(include={"benchmarks"}) if isinstance(suite, Suite) else suite
    try:
        return sum(int(each["problems"]) * int(each["samples"]) for each in values["benchmarks"].values())
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def evaluated_in_full(folder: RunFolder, suite: Suite, events: Events = ()) -> set[int]:
    """Steps at which the run has an evaluation of the whole suite. Args: `events`, as `condition_told`."""
    generations = generations_of(suite)
    return {step for step in folder.evaluated_steps() if condition_told(folder, step, generations, events) == "whole"}


def condition_told(folder: RunFolder, step: int, generations: int | None, events: Events = ()) -> Condition:
    """How a run's evaluation at `step` is: by the end of its file, or as it was found when it was read in full.

    Args: `generations` that it must have; None: as many as it has; `events` of the run, its last ones at least, which
    may save opening the file. An evaluation that is gone is damaged.
    """
    told: Condition = "whole"
    if not _is_as_recorded(folder.generations(step), step, generations, events):
        told = _condition_of_file(folder.generations(step), generations)
    if told != "damaged" and is_marked(folder, step):
        return "lacks grades" if lacks_grades_alone(folder, step) else "damaged"
    return told


def _is_as_recorded(path: Path, step: int, generations: int | None, events: Events) -> bool:
    """Whether the run has recorded that it graded as many, and nobody has written the file since."""
    for event in reversed(events):
        if event.get("event") == "evaluated" and event.get("step") == step:
            graded = sum(each["graded"] for each in event.get("benchmarks", {}).values())
            return graded == generations and path.exists() and path.stat().st_mtime <= event.get("time", 0)
    return False


def _condition_of_file(path: Path, generations: int | None) -> Condition:
    import pyarrow
    from pyarrow import parquet

    try:
        return _condition(parquet.read_metadata(path), generations)
    except (pyarrow.ArrowException, OSError):
        return "damaged"


def _condition(footer: FileMetaData, generations: int | None) -> Condition:
    if generations not in (None, footer.num_rows):
        return "damaged"
    if "correct" not in (names := footer.schema.names):
        return "lacks grades"
    column, lacking = names.index("correct"), 0
    for number in range(footer.num_row_groups):
        told = footer.row_group(number).column(column).statistics
        # A file that another program has written need not tell.
        if told is not None and told.has_null_count:
            lacking += told.null_count
        # Nor is what is neither 0 nor 1 a grade.
        if told is not None and told.has_min_max:
            lacking += len({told.min, told.max} - {0, 1})
    return "lacks grades" if lacking else "whole"
