"""Before a run goes on: what a crash or a bad disk left damaged in its records is taken out of its way."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

from tepo_lab.errors import RecordError
from tepo_lab.schema.profile import Suite
from tepo_lab.schema.record import GENERATION_COLUMNS, RunFolder

#: Columns without which generations count for nothing, and their types; a file of an older version may lack the others.
NEEDED = {name: "string" for name in GENERATION_COLUMNS if name not in ("how", "grader", "extracted")} | {
    "sample": "int64",
    "tokens": "int64",
    "truncated": "bool",
    "correct": "int64",
}

#: What a damaged file is kept as, for whoever wants to look at it.
DAMAGED = ".damaged"


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

    Pages of generations carry checksums, which are verified. Args: `suite`, of which generations must be graded in
    full. Returns the new paths.
    """
    paths = sorted([*folder.path.glob("generations/step-*.parquet"), *folder.path.glob("tokens/step-*.json")])
    return [path.rename(path.with_name(path.name + DAMAGED)) for path in paths if not _counts(path, suite)]


def _counts(path: Path, suite: Suite | None) -> bool:
    if suite is None or path.suffix == ".json":
        return is_readable(path)
    return is_readable(path) and is_graded_in_full(path, suite)


def is_graded_in_full(path: Path, suite: Suite) -> bool:
    """Whether generations that can be read are those of the suite: each sample of each problem once, and graded."""
    from pyarrow import parquet

    rows = parquet.read_table(path, columns=["benchmark", "problem", "sample", "correct"])
    samples = rows.group_by(["benchmark", "problem", "sample"]).aggregate([])
    problems = rows.group_by(["benchmark", "problem"]).aggregate([("correct", "count")])
    graded = Counter(zip(problems["benchmark"].to_pylist(), problems["correct_count"].to_pylist(), strict=True))
    wanted = {(name, benchmark.samples): benchmark.problems for name, benchmark in suite.benchmarks.items()}
    return samples.num_rows == rows.num_rows and graded == Counter(wanted)


def is_readable(path: Path) -> bool:
    """Whether a file of generations (.parquet) or of tokens (.json) can be read from its beginning to its end."""
    import pyarrow
    from pyarrow import parquet

    try:
        if path.suffix == ".json":
            return isinstance(json.loads(path.read_bytes()), dict)
        table = parquet.read_table(path, page_checksum_verification=True)
        return NEEDED.items() <= {field.name: str(field.type) for field in table.schema}.items()
    except (pyarrow.ArrowException, OSError, ValueError):
        return False
