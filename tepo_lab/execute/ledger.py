"""What has happened to each run, read from its folder every time it is asked: nothing is remembered elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tepo_lab.errors import RecordError
from tepo_lab.execute.lease import is_held
from tepo_lab.execute.mend import is_marked, lacks_grades_alone, makes_again, marked_steps
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
        fault = "damaged" if folder.run_file.exists() else "gone"
        return Entry(planned, folder, "interrupted", 0, f"its run.json is {fault} and will be written anew")
    last = events[-1] if events else {"event": "none"}
    lost = lost_for_good(folder, last, planned.spec.steps)
    if lost is not None:
        return Entry(planned, folder, "damaged", steps, f"{lost}; {anew(folder, steps)}")
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
    lacking = _lacking(folder, planned.spec)
    if last["event"] == "complete" and lacking and lacking[0] < steps and not makes_again(folder, lacking[0]):
        why = f"at step {steps}, past {lacking[0]} without an evaluation there; {anew(folder)}"
        return Entry(planned, folder, "past", steps, why)
    if last["event"] == "complete":
        return Entry(planned, folder, "partial", steps, f"complete at step {steps}, asked for {planned.spec.steps}")
    return Entry(planned, folder, "interrupted", steps, f"stopped at step {steps}")


def is_over(folder: RunFolder, spec: RunSpec) -> bool:
    """Whether the run has nothing left to do.

    That is: stopped by a search, collapsed and evaluated there, or complete with every evaluation it was asked for. One
    on the way that was made, and whose file is damaged or gone since, is not waited for.
    """
    events = folder.events()
    last: dict[str, Any] = events[-1] if events else {"event": None}
    if last["event"] == "collapsed":
        return int(last["step"]) in _evaluated(folder)
    if last["event"] == "complete":
        return not _lacking(folder, spec)
    return bool(last["event"] == "stopped")


def lost_for_good(folder: RunFolder, last: Mapping[str, Any], steps: int) -> str | None:
    """What a run that trained to its end has lost, when that is the evaluation there and every checkpoint to make it
    from; else None. Args: `last`, its last event; `steps`, how many it is asked for."""
    step = last.get("step")
    if not isinstance(step, int) or step == 0:
        return None
    if last.get("event") != "collapsed" and (last.get("event") != "complete" or step < steps):
        return None
    if any(folder.checkpoints.glob("step-*")) or (step in folder.evaluated_steps() and not is_marked(folder, step)):
        return None
    return f"its evaluation at step {step} is damaged or gone, and so are its checkpoints"


def anew(folder: RunFolder, step: int | None = None) -> str:
    """The mend for what cannot be made again. Args: `step`, whose evaluation that is."""
    if step is not None and lacks_grades_alone(folder, step):
        return f"tepo-lab regrade {folder.name} gives it the grades that it lacks"
    return f"remove {folder.path} to run it anew"


def _evaluated(folder: RunFolder) -> set[int]:
    return set(folder.evaluated_steps()) - marked_steps(folder)


def _lacking(folder: RunFolder, spec: RunSpec) -> list[int]:
    """Steps, ascending, at which the run must still be evaluated."""
    lacking = set(spec.evaluation_steps) - _evaluated(folder)
    if lacking - {spec.steps}:
        # Made once, on the way to the end: to go back for it would cost the end.
        lacking -= {int(each["step"]) for each in folder.events() if each["event"] == "evaluated"} - {spec.steps}
    return sorted(lacking)


def _why_past(folder: RunFolder, asked: int, steps: int) -> str:
    if asked not in _evaluated(folder):
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
