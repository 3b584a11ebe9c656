"""What running a sweep would do with each of its runs: one action, decided from the run's history and what is asked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.made_with import changed_inputs
from tepo_lab.records.files import RunFolder, run_folders
from tepo_lab.records.history import RunHistory, State, read_run
from tepo_lab.registry.expand import PlannedRun
from tepo_lab.schema.run import RunSpec


class Action(StrEnum):
    RUN = "run"
    RESUME = "resume"
    EXTEND = "extend"
    RETRY = "retry"
    SKIP = "skip"
    WAIT = "wait"
    BLOCKED = "blocked"

    @property
    def is_pending(self) -> bool:
        """Whether running the sweep now would start the run."""
        return self in (Action.RUN, Action.RESUME, Action.EXTEND, Action.RETRY)


@dataclass(frozen=True)
class Entry:
    """A planned run, its history, and what running the sweep now would do with it and why."""

    planned: PlannedRun
    history: RunHistory
    action: Action
    reason: str

    @property
    def folder(self) -> RunFolder:
        return self.history.folder


def entry(home: Path, planned: PlannedRun) -> Entry:
    """The entry of one planned run in `home`."""
    history = RunHistory.read(find_folder(home, planned))
    return Entry(planned, history, *action(history, planned.spec))


def action(history: RunHistory, spec: RunSpec) -> tuple[Action, str]:
    """What is to be done for a run to have what `spec` asks for, and the reason in a phrase."""
    match history.state:
        case State.PENDING:
            return Action.RUN, history.description
        case State.RUNNING:
            return Action.WAIT, history.description
        case State.DAMAGED:
            return Action.BLOCKED, history.description
    again = f"remove {history.folder.path} to run it again"
    # Inputs of a run that has made nothing yet may change.
    if (history.checkpoints or history.evaluations) and history.made_with:
        changed = changed_inputs(history.made_with[-1], spec)
        if changed:
            fix = f"restore the files, give the new ones other names, or {again}"
            return Action.BLOCKED, f"made with other files of {' and '.join(changed)}; {fix}"
    if history.state in (State.COLLAPSED, State.STOPPED):
        return Action.SKIP, history.description
    missing = missing_evaluations(history, spec)
    if history.step > spec.steps:
        if not missing:
            return Action.SKIP, history.description
        return Action.BLOCKED, f"at step {history.step}, past {spec.steps} without an evaluation there; {again}"
    match history.state:
        case State.COMPLETE if not missing:
            return Action.SKIP, history.description
        case State.COMPLETE if history.step == spec.steps or missing[0] < history.step:
            return Action.BLOCKED, f"at step {history.step}, past {missing[0]} without an evaluation there; {again}"
        case State.COMPLETE if history.step and history.step not in history.checkpoints:
            return Action.BLOCKED, f"complete at step {history.step}, and its checkpoint there is deleted; {again}"
        case State.COMPLETE:
            return Action.EXTEND, f"complete at step {history.step}, asked for {spec.steps}"
        case State.FAILED:
            return Action.RETRY, history.description
    return Action.RESUME, history.description


def missing_evaluations(history: RunHistory, spec: RunSpec) -> list[int]:
    """Steps, ascending, at which the run must still be evaluated.

    One on the way that was made once and is damaged or deleted now is not asked for again: to go back would cost the
    end.
    """
    made = set(history.evaluations) - {spec.steps}
    return sorted(set(spec.evaluation_steps) - set(history.complete_evaluations) - made)


def find_folder(home: Path, planned: PlannedRun) -> RunFolder:
    """The run's folder. A run made under another arm's or profile's name is found by its id."""
    named = home / "runs" / planned.folder
    if named.is_dir() or not named.parent.is_dir():
        return RunFolder(named)
    same = sorted(home.glob(f"runs/*-{planned.run_id[:8]}"))
    return RunFolder(same[0] if same else named)


def families(home: Path) -> set[str]:
    """The families (identities without their seed) of the home's runs."""
    families = set()
    for folder in run_folders(home):
        # A damaged run is shown where its folder's name belongs (`damaged_seeds`).
        with suppress(RecordError):
            families.add(str(read_run(folder)["family"]))
    return families


def damaged_seeds(home: Path, planned: PlannedRun) -> tuple[int, ...]:
    """The seeds of damaged runs that differ from `planned` in nothing else, by the names of their folders."""
    prefix = f"{planned.spec.arm.name}-{planned.spec.profile.name}-s"
    damaged = []
    for folder in run_folders(home):
        seed = folder.name.removeprefix(prefix).partition("-")[0]
        if not folder.name.startswith(prefix) or not seed.isdecimal():
            continue
        if folder.name == planned.with_seed(int(seed)).folder:
            damaged += [int(seed)] if RunHistory.read(folder).state is State.DAMAGED else []
    return tuple(sorted(damaged))
