"""Running a sweep as a user sees it: the plan, Ray, the display, the MLflow mirror, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from tepo_lab.execute.executor import Executor, write_sweep
from tepo_lab.execute.ledger import Entry, entry
from tepo_lab.execute.plan import Plan, make_plan
from tepo_lab.execute.progress import Watch, duration
from tepo_lab.registry.expand import Expansion
from tepo_lab.schema.record import RunFolder
from tepo_lab.track.thread import MirrorThread

#: Seconds that the mirror may take to catch up when all runs are over.
MIRROR_SECONDS = 60.0


@dataclass
class Session:
    """A sweep's run as it ended."""

    plan: Plan
    console: Console
    mirror: MirrorThread | None
    began: float = field(default_factory=time.time)
    ended: list[Entry] = field(default_factory=list)

    @property
    def failed(self) -> list[Entry]:
        """Runs that did not come to their end."""
        return [each for each in self.ended if each.state not in ("complete", "collapsed")]

    def log_table(self, text: str, table: Any) -> None:
        """Keep the sweep's table in MLflow, if it is open."""
        if self.mirror is not None:
            self.mirror.log_table(text, table)

    def say_what_it_cost(self) -> None:
        """Print wall time, trial time, tokens; nothing when every run was done before."""
        ran = self.plan.pending
        if not ran:
            self.console.print("All runs were done before; nothing was started.", highlight=False)
            return
        trials, tokens = 0.0, 0.0
        for each in ran:
            steps = [step for step in each.folder.metrics() if step["time"] >= self.began]
            trials += sum(step["seconds/step"] for step in steps)
            tokens += sum(step["rollout/tokens"] for step in steps)
            events = [event for event in each.folder.events() if event["time"] >= self.began]
            trials += sum(event["seconds"] for event in events if event["event"] == "evaluated")
        self.console.print(
            f"Cost: {duration(time.time() - self.began)} wall, {len(ran)} runs, {duration(trials)} in trials, "
            f"{tokens:,.0f} tokens sampled in training.",
            highlight=False,
        )
        for each in self.failed:
            self.console.print(f"Not done: {each.folder.name}: {each.reason}", style="red", highlight=False)


@contextmanager
def run_sweep(
    home: Path, expansion: Expansion, *, console: Console, address: str | None = None, mlflow: str | None = None
) -> Iterator[Session]:
    """Run what is pending of a sweep; yields when trials are over, with the mirror still open for the table.

    Raises `ResourceError` when a run cannot fit, `ConfigError` for an unusable tracking URI; both before any trial.
    """
    plan = make_plan(home, [expansion])
    if not plan.pending:
        session = Session(plan, console, None, ended=list(plan.entries))
        yield session
        return
    folders = [each.folder for each in plan.entries]
    mirror = MirrorThread(
        home, mlflow, expansion.sweep.name, lambda: _begun(folders),
        lambda problem: console.print(problem, style="yellow", highlight=False),
    )
    session = Session(plan, console, mirror)
    console.print(_opening(plan, expansion), highlight=False)
    with Executor(home, address=address) as executor:
        write_sweep(home, expansion, folders)
        mirror.start()
        slots = _slots(plan, executor)
        watch = Watch(expansion.sweep.title, plan.pending, slots, console)
        executor.run(expansion, plan.pending, watch)
        session.ended = [entry(home, each.planned) for each in plan.entries]
    try:
        yield session
    finally:
        mirror.stop(timeout_seconds=MIRROR_SECONDS)


def _begun(folders: list[RunFolder]) -> list[RunFolder]:
    return [folder for folder in folders if folder.run_file.exists()]


def _slots(plan: Plan, executor: Executor) -> int:
    asked = plan.pending[0].planned.spec.resources
    by_cpu = executor.cluster.cpus // asked.cpus
    by_gpu = executor.cluster.gpus // asked.gpus if asked.gpus else by_cpu
    return max(1, int(min(by_cpu, by_gpu, len(plan.pending))))


def _opening(plan: Plan, expansion: Expansion) -> str:
    done = len(plan.entries) - len(plan.pending)
    rest = f", {done} done before" if done else ""
    sweep = expansion.sweep
    return f"{sweep.title}: {len(plan.pending)} runs on profile {sweep.profile}{rest}."
