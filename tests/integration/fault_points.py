"""The moments at which the long matrix strikes, and how the runs go on afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tepo_lab.records.files import RunFolder
from tests.integration.faults import Bench, Driver, Matrix, Position, newest_checkpoint, owner, wait_for

#: Steps of the matrix's runs.
STEPS = 24


def reached(moment: str, folder: RunFolder, steps_before: int) -> bool:
    """Whether a run has come to the moment; `steps_before` are those it had when its driver was started."""
    if moment == "run.json written":
        return folder.run_file.exists()
    if moment == "opened":
        return owner(folder) is not None
    if moment == "saving a checkpoint":
        return any(folder.checkpoints.glob(".*.partial"))
    steps = len(folder.metrics()) if folder.metrics_file.exists() else 0
    if moment == "after a checkpoint":
        checkpoint = newest_checkpoint(folder)
        return bool(checkpoint) and int(checkpoint.name[-6:]) > steps_before and owner(folder) is not None
    if moment == "evaluating":
        return steps == STEPS and owner(folder) is not None
    if moment == "evaluated":
        return bool(folder.generation_steps())
    more = {"first step": 1, "third step": 3, "sixth step": 6}[moment]
    return steps >= steps_before + more and owner(folder) is not None


def first_at(moment: str, driver: Driver, folders: Sequence[RunFolder]) -> RunFolder | None:
    """The first of the runs to come to the moment from where they stand; None when the driver ends before."""
    before = [len(folder.metrics()) for folder in folders]
    # Remembered, for a moment may have passed when it is looked at again.
    arrived: list[RunFolder] = []

    def is_now() -> bool:
        arrived.extend(run for run, steps in zip(folders, before, strict=True) if reached(moment, run, steps))
        return bool(arrived)

    wait_for(is_now, driver)
    return arrived[0] if arrived else None


def summary(folders: Sequence[RunFolder], before: Mapping[str, Position]) -> str:
    """Where the runs were at the fault and what was repeated since. Fails when that is too much."""
    repeated = [before[folder.name].repeated(folder) for folder in folders]
    stood = ", ".join(
        "done" if run.is_done else f"step {run.steps} (checkpoint {run.checkpoint})" for run in before.values()
    )
    return f"{stood}; repeated {sum(repeated)}"


def check_difference(matrix: Matrix, bench: Bench, home: Path, undisturbed: Path) -> None:
    """Fails unless the runs are bit for bit those left undisturbed."""
    difference = bench.difference(home, undisturbed)
    assert difference == "", difference
    matrix.row("driver", "at rest", "bit for bit as undisturbed")
