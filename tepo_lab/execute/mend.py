"""Before a run goes on: what a crash or a bad disk left damaged in its records is taken out of its way."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo_lab.errors import RecordError
from tepo_lab.schema.profile import Suite
from tepo_lab.schema.record import GENERATION_COLUMNS, RunFolder, tail, write_json

if TYPE_CHECKING:
    import pyarrow

#: Columns without which generations count for nothing, and their types; a file of an older version may lack the others.
NEEDED = {name: "string" for name in GENERATION_COLUMNS if name not in ("how", "grader", "extracted")} | {
    "sample": "int64",
    "tokens": "int64",
    "truncated": "bool",
    "correct": "int64",
}

#: What a damaged file is kept as, for whoever wants to look at it; a further one of that name gets a number.
DAMAGED = ".damaged"

#: Events after which a run is not gone on with, but to make again the evaluation at its end.
_OVER = ("complete", "collapsed", "stopped")


def go_back_to_records(folder: RunFolder, checkpoint_every: int) -> list[int]:
    """Remove the checkpoints past the last step that metrics.jsonl has without a gap; those steps are made again.

    Returns the steps of the checkpoints removed. Raises `RecordError` when no checkpoint is left to go back to although
    the run has come far: then the records were lost by something else than a crash.
    """
    recorded = {int(step["step"]) for step in folder.metrics()}
    last = 0
    while last + 1 in recorded:
        last += 1
    steps = sorted(int(path.name.removeprefix("step-")) for path in folder.checkpoints.glob("step-*"))
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
    moved = [_set_aside(path) for path in sorted(folder.path.glob("tokens/step-*.json")) if not is_readable(path)]
    for path in sorted(folder.path.glob("generations/step-*.parquet"), reverse=True):
        step, is_whole = _step(path), is_readable(path, suite)
        if is_whole or makes_again(folder, step):
            _marker(folder, step).unlink(missing_ok=True)
        else:
            lacks_grades = suite is not None and is_readable(path, suite, graded=False)
            write_json(_marker(folder, step), _stamp(path) | {"lacks_grades": lacks_grades})
        if not is_whole and makes_again(folder, step):
            moved.append(_set_aside(path))
    return sorted(moved)


def makes_again(folder: RunFolder, step: int) -> bool:
    """Whether going on with the run makes the evaluation at `step` again, at no cost of what was made since.

    It goes on from its newest checkpoint. One that is over is gone on with for the evaluation at its end alone; without
    a checkpoint, and trained, it would have to be trained anew.
    """
    newest = max((_step(path) for path in folder.checkpoints.glob("step-*")), default=None)
    last = (tail(folder.events_file, 1) or [{}])[-1]
    if last.get("event") not in _OVER:
        return newest is None or newest <= step
    is_end = last.get("event") != "stopped" and last.get("step") == step
    return is_end and (step == 0 or (newest is not None and newest <= step))


def marked_steps(folder: RunFolder) -> set[int]:
    """Steps whose generations were found not to be whole, stayed for want of a checkpoint, and are still the same."""
    steps = {_step(path) for path in folder.path.glob("generations/step-*.marked.json")}
    return {step for step in steps if is_marked(folder, step)}


def is_marked(folder: RunFolder, step: int) -> bool:
    """Whether `marked_steps` has this step."""
    return bool(_mark(folder, step))


def lacks_grades_alone(folder: RunFolder, step: int) -> bool:
    """Whether a marked step's generations are all there, and only grades are not."""
    return bool(_mark(folder, step).get("lacks_grades"))


def _mark(folder: RunFolder, step: int) -> dict[str, Any]:
    """What was found of a step's generations; nothing where they were not marked, or are others now."""
    try:
        found = json.loads(_marker(folder, step).read_bytes())
        is_same = isinstance(found, dict) and _stamp(folder.generations(step)).items() <= found.items()
    except (OSError, ValueError):
        return {}
    return found if is_same else {}


def _marker(folder: RunFolder, step: int) -> Path:
    return folder.generations(step).with_suffix(".marked.json")


def _stamp(path: Path) -> dict[str, int]:
    """What tells a file from another that is put in its place."""
    found = path.stat()
    return {"size": found.st_size, "modified_ns": found.st_mtime_ns}


def _step(path: Path) -> int:
    return int(path.name.partition(".")[0].removeprefix("step-"))


def _set_aside(path: Path) -> Path:
    aside, number = path.with_name(path.name + DAMAGED), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}{DAMAGED}.{number}")
    return path.rename(aside)


def is_readable(path: Path, suite: Suite | None = None, *, graded: bool = True) -> bool:
    """Whether a file of generations (.parquet) or of tokens (.json) can be read from its beginning to its end.

    Args: `suite`, which generations must be those of: each sample of each problem once, and, if `graded`, with a grade.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        if path.suffix == ".json":
            return isinstance(json.loads(path.read_bytes()), dict)
        table = parquet.read_table(path, page_checksum_verification=True)
        if not NEEDED.items() <= {field.name: str(field.type) for field in table.schema}.items():
            return False
        return suite is None or _is_complete(table, suite, graded)
    except (pyarrow.ArrowException, OSError, ValueError):
        return False


def _is_complete(rows: pyarrow.Table, suite: Suite, graded: bool) -> bool:
    from pyarrow.compute import CountOptions

    counted = CountOptions(mode="only_valid" if graded else "all")
    samples = rows.group_by(["benchmark", "problem", "sample"]).aggregate([])
    problems = rows.group_by(["benchmark", "problem"]).aggregate([("correct", "count", counted)])
    found = Counter(zip(problems["benchmark"].to_pylist(), problems["correct_count"].to_pylist(), strict=True))
    wanted = {(name, benchmark.samples): benchmark.problems for name, benchmark in suite.benchmarks.items()}
    return samples.num_rows == rows.num_rows and found == Counter(wanted)
