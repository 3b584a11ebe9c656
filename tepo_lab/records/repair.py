"""Before a run goes on: what a crash or a bad disk left damaged in its records is taken out of its way."""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tepo_lab.errors import RecordError, is_machine_failure
from tepo_lab.records.files import RunFolder, parsed_line, step_of, tail, write_json
from tepo_lab.records.generations import LASTING, fault_of, ungraded
from tepo_lab.schema.profile import Suite

if TYPE_CHECKING:
    import pyarrow

Condition = Literal["whole", "lacks grades", "damaged"]

#: What a damaged file is kept as, for whoever wants to look at it; a further one of that name gets a number.
DAMAGED = ".damaged"

#: Events after which a run is not gone on with, but to make again the evaluation at its end.
_OVER = ("complete", "collapsed", "stopped")


def go_back_to_records(folder: RunFolder, checkpoint_every: int) -> list[int]:
    """Remove the checkpoints past the last step that metrics.jsonl has without a gap; those steps are made again.

    Returns the steps of the checkpoints removed. Raises `RecordError` when no checkpoint is left to go back to although
    the run has come far: then the records were lost by something else than a crash.
    """
    recorded = {step["step"] for step in folder.metrics()}
    last = 0
    while last + 1 in recorded:
        last += 1
    steps = folder.checkpoint_steps()
    ahead = [step for step in steps if step > last]
    if ahead and len(ahead) == len(steps) and steps[0] > 2 * checkpoint_every:
        raise RecordError(
            f"{folder.metrics_file} ends at step {last} and the oldest checkpoint is of step {steps[0]}: put the file "
            "back, or remove the folder to run it again from the start."
        )
    for step in ahead:
        shutil.rmtree(folder.checkpoint(step))
    return ahead


def set_aside_damaged(folder: RunFolder, suite: Suite | None = None) -> list[Path]:
    """Rename the generations and token files that cannot be read, so that they count as not made.

    Pages of generations carry checksums, which are verified. Generations that going on with the run would not make
    again stay where they are, and are marked (`marked_steps`). Args: `suite`, of which generations must be graded in
    full. Returns the new paths.
    """
    moved = [_set_aside(path) for path in sorted(folder.path.glob("tokens/step-*.json")) if _mapping(path) is None]
    for path in folder.path.glob("generations/step-*.parquet"):
        step, found = step_of(path), condition_of(path, suite)
        if found != "whole" and not makes_again(folder, step):
            write_json(_marker(folder, step), _stamp(path) | {"lacks_grades": found == "lacks grades"})
            continue
        _marker(folder, step).unlink(missing_ok=True)
        if found != "whole":
            moved.append(_set_aside(path))
    return sorted(moved)


def makes_again(folder: RunFolder, step: int) -> bool:
    """Whether going on with the run makes the evaluation at `step` again, at no cost of what was made since.

    It goes on from its newest checkpoint. One that is over is gone on with for the evaluation at its end alone; without
    a checkpoint, and trained, it would have to be trained anew.
    """
    newest = max(folder.checkpoint_steps(), default=None)
    last = (tail(folder.events_file, 1) or [{}])[-1]
    if last.get("event") not in _OVER:
        return newest is None or newest <= step
    is_end = last.get("event") != "stopped" and last.get("step") == step
    return is_end and (step == 0 or (newest is not None and newest <= step))


def marked_steps(folder: RunFolder) -> set[int]:
    """Steps whose generations were found not to be whole, stayed for want of a checkpoint, and are still the same."""
    steps = {step_of(path) for path in folder.path.glob("generations/step-*.marked.json")}
    return {step for step in steps if is_marked(folder, step)}


def is_marked(folder: RunFolder, step: int) -> bool:
    """Whether `marked_steps` has this step."""
    return bool(_mark(folder, step))


def lacks_grades_alone(folder: RunFolder, step: int) -> bool:
    """Whether a marked step's generations are all there, and only grades are not."""
    return bool(_mark(folder, step).get("lacks_grades"))


def _mark(folder: RunFolder, step: int) -> dict[str, Any]:
    """What was found of a step's generations; nothing where they were not marked, or are others now."""
    found = _mapping(_marker(folder, step)) or {}
    try:
        return found if _stamp(folder.generations(step)).items() <= found.items() else {}
    except OSError:
        return {}


def _marker(folder: RunFolder, step: int) -> Path:
    return folder.generations(step).with_suffix(".marked.json")


def _stamp(path: Path) -> dict[str, int]:
    """What tells a file from another that is put in its place."""
    found = path.stat()
    return {"size": found.st_size, "modified_ns": found.st_mtime_ns}


def _set_aside(path: Path) -> Path:
    aside, number = path.with_name(path.name + DAMAGED), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}{DAMAGED}.{number}")
    return path.rename(aside)


def _mapping(path: Path) -> dict[str, Any] | None:
    """What a JSON file holds; None where it cannot be read, or holds no mapping."""
    try:
        return parsed_line(path.read_bytes())
    except OSError:
        return None


def condition_of(path: Path, suite: Suite | None = None) -> Condition:
    """How a file of generations is, read from its beginning to its end.

    Args: `suite`, which the generations must be those of: each sample of each problem once, and with a grade. What the
    machine lacks to read it is raised.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        rows = parquet.read_table(path, page_checksum_verification=True)
        is_graded = fault_of(rows, LASTING) is None
        if not is_graded and fault_of(rows := ungraded(rows), LASTING) is not None:
            return "damaged"
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        # What cannot be read just now is not damaged; what the disk cannot give back is.
        if is_machine_failure(error) and getattr(error, "errno", None) != errno.EIO:
            raise
        return "damaged"
    if suite is None:
        return "whole" if is_graded else "lacks grades"
    rows = rows.select(["benchmark", "problem", "correct"])
    if _has_all(suite, rows.filter(rows["correct"].is_valid())):
        return "whole"
    return "lacks grades" if _has_all(suite, rows) else "damaged"


def _has_all(suite: Suite, rows: pyarrow.Table) -> bool:
    """Whether the rows, of which none repeats another, are of as many samples and problems as the suite's."""
    problems = rows.group_by(["benchmark", "problem"]).aggregate([([], "count_all")])
    found = Counter(zip(problems["benchmark"].to_pylist(), problems["count_all"].to_pylist(), strict=True))
    return found == {(name, benchmark.samples): benchmark.problems for name, benchmark in suite.benchmarks.items()}
