"""The moments at which the long matrix strikes, and what it says of the runs afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tepo_lab.schema.record import RunFolder
from tests.integration.faults import Standing, holder, newest_checkpoint

#: Steps of the matrix's runs.
STEPS = 24


def reached(moment: str, folder: RunFolder, steps_before: int) -> bool:
    """Whether a run has come to the moment; `steps_before` are those it had when its driver was started."""
    if moment == "run.json written":
        return folder.run_file.exists()
    if moment == "opened":
        return holder(folder) is not None
    if moment == "saving a checkpoint":
        return any(folder.checkpoints.glob(".*.partial"))
    steps = len(folder.metrics()) if folder.metrics_file.exists() else 0
    if moment == "after a checkpoint":
        checkpoint = newest_checkpoint(folder)
        return bool(checkpoint) and int(checkpoint.name[-6:]) > steps_before and holder(folder) is not None
    if moment == "evaluating":
        return steps == STEPS and holder(folder) is not None
    if moment == "evaluated":
        return bool(folder.evaluated_steps())
    more = {"first step": 1, "third step": 3, "sixth step": 6}[moment]
    return steps >= steps_before + more and holder(folder) is not None


def first_at(moment: str, folders: Sequence[RunFolder], before: Mapping[str, int]) -> RunFolder | None:
    return next((each for each in folders if reached(moment, each, before[each.name])), None)


def told(folders: Sequence[RunFolder], before: Mapping[str, Standing]) -> str:
    """Where the runs were at the fault and what was repeated since. Fails when that is too much."""
    repeated = [before[folder.name].repeated(folder) for folder in folders]
    stood = ", ".join(
        "done" if each.is_done else f"step {each.steps} (checkpoint {each.checkpoint})" for each in before.values()
    )
    return f"{stood}; repeated {sum(repeated)}"
