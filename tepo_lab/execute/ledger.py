"""What has happened to each run, read from its folder every time it is asked: nothing is remembered elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tepo_lab.errors import RecordError
from tepo_lab.execute.lease import is_held
from tepo_lab.registry.expand import PlannedRun
from tepo_lab.registry.identity import folder_name
from tepo_lab.schema.record import RunFolder, readable_runs
from tepo_lab.schema.run import RunSpec

State = Literal[
    "pending", "running", "interrupted", "partial", "past", "damaged", "complete", "collapsed", "stopped", "failed"
]
Action = Literal["run", "resume", "extend", "skip", "retry", "wait", "blocked"]

ACTIONS: dict[State, Action] = {
    "pending": "run",
    "running": "wait",
    "interrupted": "resume",
    "partial": "extend",
    "past": "blocked",
    "damaged": "blocked",
    "complete": "skip",
    "collapsed": "skip",
    "stopped": "skip",
    "failed": "retry",
}


@dataclass(frozen=True)
class Entry:
    """One run's state, the steps it has behind it, and why."""

    planned: PlannedRun
    folder: RunFolder
    state: State
    steps_done: int
    reason: str

    @property
    def action(self) -> Action:
        """What running the sweep now would do with it."""
        return ACTIONS[self.state]

    @property
    def is_pending(self) -> bool:
        """Whether running the sweep now would start it."""
        return self.action in ("run", "resume", "extend", "retry")


def entry(home: Path, planned: PlannedRun) -> Entry:
    """The state of one planned run in `home`."""
    folder = find_folder(home, planned)
    try:
        events = folder.events()
    except RecordError as error:
        return Entry(planned, folder, "damaged", 0, str(error))
    if not events and not folder.run_file.exists():
        return Entry(planned, folder, "pending", 0, "not run yet")
    steps = max((int(event.get("step", 0)) for event in events), default=0)
    if is_held(folder):
        return Entry(planned, folder, "running", steps, f"running, at step {steps}")
    readable = _is_readable(folder)
    if planned.spec.steps < steps and not (readable and is_over(folder, planned.spec)):
        # Going back would cost what was made since, its evaluations among it.
        return Entry(planned, folder, "past", steps, _why_past(folder, planned.spec.steps, steps))
    if not readable:
        lost = "damaged" if folder.run_file.exists() else "gone"
        return Entry(planned, folder, "interrupted", 0, f"its run.json is {lost} and will be written anew")
    if over_without_evaluation(folder, planned.spec):
        why = f"its evaluation at step {steps} is damaged or gone, and so are its checkpoints; remove the folder to "
        return Entry(planned, folder, "damaged", steps, f"{why}run it again, or put the file back")
    last = events[-1] if events else {"event": "none"}
    if last["event"] == "collapsed":
        if not is_over(folder, planned.spec):
            why = f"collapsed at step {last['step']}, its evaluation is damaged or gone and will be made anew"
            return Entry(planned, folder, "interrupted", steps, why)
        return Entry(planned, folder, "collapsed", steps, f"collapsed at step {last['step']} ({last['rule']})")
    if last["event"] == "stopped":
        return Entry(planned, folder, "stopped", steps, f"stopped at step {last['step']} by the search ({last['by']})")
    if last["event"] == "failed":
        return Entry(planned, folder, "failed", steps, f"failed ({last['kind']}): {last['error']}")
    if is_over(folder, planned.spec):
        return Entry(planned, folder, "complete", steps, f"complete at step {steps}")
    lacking = sorted(set(planned.spec.evaluation_steps) - set(folder.evaluated_steps()))
    if last["event"] == "complete" and lacking and lacking[0] < steps and not folder.checkpoint(lacking[0]).exists():
        why = f"at step {steps}, past {lacking[0]} without an evaluation there; remove the folder to run it again"
        return Entry(planned, folder, "past", steps, why)
    if last["event"] == "complete":
        return Entry(planned, folder, "partial", steps, f"complete at step {steps}, asked for {planned.spec.steps}")
    return Entry(planned, folder, "interrupted", steps, f"stopped at step {steps}")


def is_over(folder: RunFolder, spec: RunSpec) -> bool:
    """Whether the run has nothing left to do.

    That is: stopped by a search, collapsed and evaluated there, or complete with every evaluation it was asked for.
    """
    events = folder.events()
    last: dict[str, Any] = events[-1] if events else {"event": None}
    if last["event"] == "collapsed":
        return int(last["step"]) in folder.evaluated_steps()
    if last["event"] == "complete":
        return set(spec.evaluation_steps) <= set(folder.evaluated_steps())
    return bool(last["event"] == "stopped")


def over_without_evaluation(folder: RunFolder, spec: RunSpec) -> bool:
    """Whether a run that trained to its end has lost the evaluation there, and every checkpoint to make it from."""
    events = folder.events()
    last: dict[str, Any] = events[-1] if events else {"event": None}
    step = int(last.get("step", 0))
    is_over = last["event"] == "collapsed" or (last["event"] == "complete" and step >= spec.steps)
    if not is_over or step == 0 or step in folder.evaluated_steps():
        return False
    return not any(folder.checkpoints.glob("step-*"))


def _why_past(folder: RunFolder, asked: int, steps: int) -> str:
    if asked not in folder.evaluated_steps():
        return f"at step {steps}, past {asked} without an evaluation there"
    return f"at step {steps}, past {asked}, and not whole; ask for trainer.steps={steps} to go on with it"


def _is_readable(folder: RunFolder) -> bool:
    try:
        return bool(folder.run())
    except RecordError:
        return False


def find_folder(home: Path, planned: PlannedRun) -> RunFolder:
    """The run's folder. A run made under another arm's or profile's name is found by its id."""
    named = home / "runs" / planned.folder
    if named.is_dir() or not named.parent.is_dir():
        return RunFolder(named)
    same = sorted(home.glob(f"runs/*-{planned.run_id[:8]}"))
    return RunFolder(same[0] if same else named)


def families(home: Path) -> set[str]:
    """The families (identities without their seed) of the home's runs. Standard error names a damaged run.json."""
    return {str(values.get("family")) for _, values in readable_runs(home, tell=True)}


def damaged_seeds(home: Path, planned: PlannedRun) -> tuple[int, ...]:
    """The seeds of the runs that differ from `planned` in nothing else and whose run.json cannot be read."""
    spec, seeds = planned.spec, []
    for path in home.glob(f"runs/{spec.arm.name}-{spec.profile.name}-s*/run.json"):
        seed = path.parent.name.rsplit("-", 2)[1].removeprefix("s")
        if _is_readable(RunFolder(path.parent)) or not seed.isdecimal():
            continue
        # Of a run.json that is lost the folder's name alone tells which run it was.
        if path.parent.name == folder_name(spec.model_copy(update={"seed": int(seed)})):
            seeds.append(int(seed))
    return tuple(sorted(seeds))
