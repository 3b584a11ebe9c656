"""What has happened to each run, read from its folder every time it is asked: nothing is remembered elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tepo_lab.execute.lease import is_held
from tepo_lab.registry.expand import PlannedRun
from tepo_lab.schema.record import RunFolder, run_folders

State = Literal["pending", "running", "interrupted", "partial", "complete", "collapsed", "failed"]
Action = Literal["run", "resume", "extend", "skip", "retry", "wait"]

ACTIONS: dict[State, Action] = {
    "pending": "run",
    "running": "wait",
    "interrupted": "resume",
    "partial": "extend",
    "complete": "skip",
    "collapsed": "skip",
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
    if not folder.run_file.exists():
        return Entry(planned, folder, "pending", 0, "not run yet")
    events = folder.events()
    steps = max((int(event.get("step", 0)) for event in events), default=0)
    if is_held(folder):
        return Entry(planned, folder, "running", steps, f"running, at step {steps}")
    last = events[-1] if events else {"event": "none"}
    if last["event"] == "collapsed":
        return Entry(planned, folder, "collapsed", steps, f"collapsed at step {last['step']} ({last['rule']})")
    if last["event"] == "failed":
        return Entry(planned, folder, "failed", steps, f"failed ({last['kind']}): {last['error']}")
    missing = [step for step in planned.spec.evaluation_steps if step not in folder.evaluated_steps()]
    if last["event"] == "complete" and not missing:
        return Entry(planned, folder, "complete", steps, f"complete at step {steps}")
    if last["event"] == "complete":
        return Entry(planned, folder, "partial", steps, f"complete at step {steps}, asked for {planned.spec.steps}")
    return Entry(planned, folder, "interrupted", steps, f"stopped at step {steps}")


def find_folder(home: Path, planned: PlannedRun) -> RunFolder:
    """The run's folder. A run made under another arm's or profile's name is found by its id."""
    named = home / "runs" / planned.folder
    if named.is_dir():
        return RunFolder(named)
    same = sorted(home.glob(f"runs/*-{planned.run_id[:8]}"))
    return RunFolder(same[0] if same else named)


def has_any(home: Path, families: Iterable[str]) -> bool:
    """Whether the home holds a run of any of these families (identities without their seed)."""
    wanted = set(families)
    return any(folder.run().get("family") in wanted for folder in run_folders(home))
