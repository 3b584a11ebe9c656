"""What has happened to each run, read from its folder every time it is asked: nothing is remembered elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tepo_lab.errors import RecordError
from tepo_lab.execute.running.provenance import changed_inputs
from tepo_lab.records.files import RunFolder, readable_runs
from tepo_lab.records.footers import Events, condition_told, evaluated_in_full, generations_of
from tepo_lab.records.lease_file import is_held
from tepo_lab.records.repair import makes_again
from tepo_lab.registry.expand import PlannedRun
from tepo_lab.registry.identity import folder_name
from tepo_lab.schema.run import RunSpec

State = Literal[
    "pending",
    "running",
    "interrupted",
    "partial",
    "past",
    "damaged",
    "other files",
    "complete",
    "collapsed",
    "stopped",
    "failed",
]
Action = Literal["run", "resume", "extend", "skip", "retry", "wait", "blocked"]

ACTIONS: dict[State, Action] = {
    "pending": "run",
    "running": "wait",
    "interrupted": "resume",
    "partial": "extend",
    "past": "blocked",
    "damaged": "blocked",
    "other files": "blocked",
    "complete": "skip",
    "collapsed": "skip",
    "stopped": "skip",
    "failed": "retry",
}


@dataclass(frozen=True)
class EndFault:
    """What is amiss with the evaluation at a run's end, and the mend; lost when nothing is left to make it from."""

    said: str
    mend: str
    is_lost: bool = True

    def __str__(self) -> str:
        return f"{self.said}; {self.mend}"


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
    if is_held(folder):
        steps = _steps_behind(events)
        return Entry(planned, folder, "running", steps, f"running, at step {steps}")
    state, reason = _standing(folder, planned.spec, events)
    return Entry(planned, folder, state, _steps_behind(events), reason)


def has_work(folder: RunFolder, spec: RunSpec) -> bool:
    """Whether a run that the caller holds has anything left to do of what is asked, and nothing stands in its way."""
    state, _ = _standing(folder, spec, folder.events())
    return ACTIONS[state] not in ("skip", "blocked")


def _standing(folder: RunFolder, spec: RunSpec, events: Events) -> tuple[State, str]:
    """State and reason of a run that nobody else holds."""
    if not events and not folder.run_file.exists():
        return "pending", "not run yet"
    steps, run, over = _steps_behind(events), _readable_run(folder), _is_over(folder, spec, events)
    if spec.steps < steps and not (run and over):
        # Going back would cost what was made since, its evaluations among it.
        return "past", _why_past(folder, spec, events, steps)
    if not run:
        fault = "damaged" if folder.run_file.exists() else "gone"
        return "interrupted", f"its run.json is {fault} and will be written anew"
    # What nothing was made from yet may change.
    if (over or keeps_something(folder)) and (changed := changed_inputs(run.get("provenance") or {}, spec)):
        mend = f"restore the files, give the new ones other names, or {anew(folder)}"
        return "other files", f"made with other files of {' and '.join(changed)}; {mend}"
    return _at_rest(folder, spec, events, steps, over=over)


def _steps_behind(events: Events) -> int:
    """How far the run has come."""
    return max((event.get("step", 0) for event in events), default=0)


def _at_rest(folder: RunFolder, spec: RunSpec, events: Events, steps: int, *, over: bool) -> tuple[State, str]:
    """State and reason of a run that nobody holds, that has not gone past what is asked, and whose records are whole.

    Args: `steps` that it has behind it; `over`, whether it has nothing left to do.
    """
    last: Mapping[str, Any] = events[-1] if events else {"event": None}
    # A run that once went further may have all that is asked, whatever became of its end.
    fault = None if over else fault_at_end(folder, events, spec.steps, generations_of(spec.suite))
    if fault is not None and fault.is_lost:
        return "damaged", str(fault)
    if fault is not None:
        return "interrupted", f"{last['event']} at step {last['step']}; {fault}"
    match last["event"]:
        case "stopped":
            return "stopped", f"stopped at step {last['step']} by the search ({last['by']})"
        case "failed":
            return "failed", f"failed ({last['kind']}): {last['error']}"
        case "collapsed":
            return "collapsed", f"collapsed at step {last['step']} ({last['rule']})"
        case "complete" if over:
            return "complete", f"complete at step {steps}"
        case "complete":
            first = lacking_evaluations(folder, spec, events)[0]
            if first < steps and not makes_again(folder, first):
                return "past", f"at step {steps}, past {first} without an evaluation there; {anew(folder)}"
            return "partial", f"complete at step {steps}, asked for {spec.steps}"
    return "interrupted", f"stopped at step {steps}"


def _is_over(folder: RunFolder, spec: RunSpec, events: Events) -> bool:
    """Whether the run has nothing left to do.

    That is: stopped by a search, collapsed and evaluated there, or complete with every evaluation it was asked for. One
    on the way that was made, and whose file is damaged or gone since, is not waited for.
    """
    last: Mapping[str, Any] = events[-1] if events else {"event": None}
    if last["event"] == "collapsed":
        return last["step"] in evaluated_in_full(folder, spec.suite, events)
    if last["event"] == "complete":
        return not lacking_evaluations(folder, spec, events)
    return bool(last["event"] == "stopped")


def fault_at_end(folder: RunFolder, events: Events, steps: int, generations: int | None) -> EndFault | None:
    """What is amiss with the evaluation at the end of a run that has trained to its end; else None.

    A run that a search has stopped is left as it is. One that is asked for more steps goes on with those, unless it
    has no checkpoint from which it can without dropping what it has.
    Args: `events`, its last ones; `steps`, how many it is asked for; `generations` of an evaluation.
    """
    last: Mapping[str, Any] = events[-1] if events else {}
    step = last.get("step")
    if not isinstance(step, int):
        return None
    if last.get("event") not in ("complete", "collapsed"):
        return None
    if last["event"] == "complete" and step < steps:
        if _goes_on(folder, step, generations, events):
            return None
        said = f"complete at step {step}, asked for {steps}, and its checkpoint to go on from is gone"
        return EndFault(said, anew(folder))
    found = condition_told(folder, step, generations, events)
    if found == "whole":
        return None
    if makes_again(folder, step):
        fault = "its evaluation is damaged, not graded in full, or gone"
        return EndFault(fault, "the same command again makes it anew", is_lost=False)
    if found == "lacks grades":
        mend = f"tepo-lab regrade {folder.name} gives it the grades that it lacks"
        return EndFault(f"its evaluation at step {step} is not graded in full, and its checkpoints are gone", mend)
    return EndFault(f"its evaluation at step {step} is damaged or gone, and so are its checkpoints", anew(folder))


def _goes_on(folder: RunFolder, step: int, generations: int | None, events: Events) -> bool:
    """Whether a run that is complete at `step` can train on, and loses no evaluation by it."""
    newest = max(folder.checkpoint_steps(), default=0)
    if step == 0 or newest >= step:
        return True
    return newest > 0 and condition_told(folder, step, generations, events) != "whole"


def anew(folder: RunFolder) -> str:
    """The mend for what cannot be made again."""
    return f"remove {folder.path} to run it anew"


def lacking_evaluations(folder: RunFolder, spec: RunSpec, events: Events) -> list[int]:
    """Steps, ascending, at which the run must still be evaluated."""
    # Made once, on the way to the end: to go back for it would cost the end.
    made = {event["step"] for event in events if event["event"] == "evaluated"} - {spec.steps}
    return sorted(set(spec.evaluation_steps) - evaluated_in_full(folder, spec.suite, events) - made)


def _why_past(folder: RunFolder, spec: RunSpec, events: Events, steps: int) -> str:
    if spec.steps not in evaluated_in_full(folder, spec.suite, events):
        return f"at step {steps}, past {spec.steps} without an evaluation there"
    return f"at step {steps}, past {spec.steps}, and not whole; ask for trainer.steps={steps} to go on with it"


def keeps_something(folder: RunFolder) -> bool:
    """Whether the run goes on from something that it has made."""
    return bool(folder.checkpoint_steps() or folder.evaluated_steps())


def _readable_run(folder: RunFolder) -> dict[str, Any]:
    """The run's run.json; empty where it is damaged or gone."""
    try:
        return folder.run()
    except RecordError:
        return {}


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
    """The seeds of the runs that differ from `planned` in nothing else and whose run.json is damaged or gone."""
    spec = planned.spec
    paths = home.glob(f"runs/{spec.arm.name}-{spec.profile.name}-s*")
    seeds = {path.name.rsplit("-", 2)[1].removeprefix("s") for path in paths}
    # Of a run.json that is lost the folder's name alone tells which run it was.
    folders = {
        int(seed): RunFolder(home / "runs" / folder_name(spec.model_copy(update={"seed": int(seed)})))
        for seed in seeds
        if seed.isdecimal()
    }
    begun = (seed for seed, folder in folders.items() if folder.run_file.exists() or folder.events_file.exists())
    return tuple(sorted(seed for seed in begun if not _readable_run(folders[seed])))
