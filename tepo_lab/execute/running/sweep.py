"""Running a sweep as a user sees it: the plan, Ray, the display, the MLflow mirror, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from tepo_lab.execute.planning.actions import Action, Entry, entry
from tepo_lab.execute.planning.gpu_memory import check_memory
from tepo_lab.execute.planning.hub_commits import check_hub
from tepo_lab.execute.planning.plan import Plan, make_plan
from tepo_lab.execute.planning.preflight import check_hub_counts, check_inputs
from tepo_lab.execute.planning.selection import write_selection
from tepo_lab.execute.running.cluster import check_before_start, check_supported
from tepo_lab.execute.running.executor import ClusterLostError, Executor
from tepo_lab.execute.running.failures import retry_seconds
from tepo_lab.execute.running.prepare import write_sweep
from tepo_lab.execute.running.session_cost import process_began, session_cost
from tepo_lab.execute.showing.progress import Progress
from tepo_lab.execute.showing.text import counted
from tepo_lab.records.events import Collapsed
from tepo_lab.records.files import write_json, write_whole
from tepo_lab.records.history import State
from tepo_lab.registry.expand import Expansion
from tepo_lab.track.thread import MirrorThread

#: Times that a Ray of our own is started again after it died.
CLUSTER_RETRIES = 3

#: Times that a session starts a run that ends without a word.
STARTS = 3

#: Seconds that the mirror may take to catch up when all runs are over.
MIRROR_SECONDS = 60.0


@dataclass
class Session:
    """A sweep's run as it ended."""

    home: Path
    sweep: str
    plan: Plan
    console: Console
    mirror: MirrorThread | None
    began: float = field(default_factory=process_began)
    ended: list[Entry] = field(default_factory=list)
    cores: float | None = None
    cpu_seconds: float | None = None

    @property
    def failed(self) -> list[Entry]:
        """Runs that did not come to their end."""
        return [each for each in self.ended if not each.history.state.is_final]

    def log_table(self, text: str, table: Any, page: str | None = None) -> None:
        """Keep the sweep's table, and its page, in its folder and, if that is open, in MLflow."""
        folder = self.home / "sweeps" / self.sweep
        write_whole(folder / "table.md", text.encode())
        write_json(folder / "table.json", table)
        if page is not None:
            write_whole(folder / "page.html", page.encode())
        if self.mirror is not None:
            self.mirror.log_table(text, table, page)

    def say_what_it_cost(self) -> None:
        """Print what it cost, and which runs are not done and why.

        The cost is kept as cost.json in the sweep's folder; not when nothing was started.
        """
        ran = self.plan.pending
        if ran:
            cost = session_cost(ran, began=self.began, cores=self.cores, cpu_seconds=self.cpu_seconds)
            write_json(self.home / "sweeps" / self.sweep / "cost.json", cost.as_json())
            self.console.print(f"Cost: {cost}.", highlight=False, soft_wrap=True)
        elif self.failed:
            what = f"{counted(len(self.failed), 'run')} not done, as told below"
            self.console.print(f"Nothing was started; {what}.", highlight=False)
        else:
            self.console.print("All runs were done before; nothing was started.", highlight=False)
        for each in self.failed:
            said = f"Not done: {each.folder.name}: {each.reason.rstrip('.')}."
            self.console.print(said, style="red", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def run_sweep(
    home: Path, expansion: Expansion, *, console: Console, address: str | None = None, mlflow: str | None = None
) -> Iterator[Session]:
    """Run what is pending of a sweep; yields when trials are over, with the mirror still open for the table.

    Runs that another process holds are waited for, and taken over if it dies.
    Raises `ResourceError` when a run cannot fit, `ConfigError` for an unusable tracking URI; both before any trial.
    """
    plan = make_plan(home, [expansion])
    if plan.pending:
        check_before_start(address, plan.pending)
    for line in _other_rules(plan, expansion):
        console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if all(each.action in ("skip", "blocked") for each in plan.entries):
        if expansion.sweep.search is not None:
            write_selection(home, expansion.sweep, plan.entries)
        yield Session(home, expansion.sweep.name, plan, console, None, ended=list(plan.entries))
        return
    _check(plan.pending)
    folders = [each.folder for each in plan.entries]
    mirror = MirrorThread(
        home,
        mlflow,
        expansion.sweep.name,
        # A run is shown once it has begun; until then its folder says only what is asked for.
        lambda: [folder for folder in folders if folder.events_file.exists()],
        lambda problem: console.print(problem, style="yellow", highlight=False),
    )
    session = Session(home, expansion.sweep.name, plan, console, mirror)
    console.print(_opening(plan, expansion), highlight=False)
    with ExitStack() as closing:
        lost = 0
        while True:
            try:
                with Executor(home, address=address) as executor:
                    executor.check_fits(plan.entries)
                    if not lost:
                        write_sweep(home, expansion, folders)
                        mirror.start()
                        closing.callback(mirror.stop, timeout_seconds=MIRROR_SECONDS)
                    _run_all(home, expansion, executor, console)
                    session.cores = executor.cluster.cpus
                    # Processes of a cluster that was there before are not this session's.
                    session.cpu_seconds = executor.meter.seconds if address is None else None
                break
            except ClusterLostError:
                lost += 1
                if lost > CLUSTER_RETRIES or address is not None:
                    raise
                console.print("Ray has died; it is started again.", style="yellow", highlight=False)
                time.sleep(retry_seconds(lost))
        session.ended = [entry(home, each.planned) for each in plan.entries]
        if expansion.sweep.search is not None:
            write_selection(home, expansion.sweep, session.ended)
        yield session


def _check(pending: Sequence[Entry]) -> None:
    """Raise the error of a run that cannot be carried out, as far as it shows before Ray starts."""
    for each in pending:
        check_supported(each)
    for check in (check_inputs, check_hub, check_hub_counts, check_memory):
        check(each.planned.spec for each in pending)


def _other_rules(plan: Plan, expansion: Expansion) -> Iterator[str]:
    """A line for each run that collapsed by a stop rule of another sweep: it is a result, and not run again here."""
    own = {rule.when for rule in expansion.sweep.stop}
    for each in plan.entries:
        end = each.history.outcome
        if isinstance(end, Collapsed) and end.rule not in own:
            yield (
                f"Not run again: {each.folder.name} collapsed at step {end.step} by {end.rule}, which is no rule of "
                f"this sweep; remove {each.folder.path} to run it again."
            )


def _run_all(home: Path, expansion: Expansion, executor: Executor, console: Console) -> None:
    """Run pending trials until none is left that is neither done, nor tried by this session, nor held by another."""
    left = {each.planned.run_id: STARTS for each in make_plan(home, [expansion]).entries}
    told = False
    while True:
        entries = make_plan(home, [expansion]).entries
        pending = [each for each in entries if each.action.is_pending and left[each.planned.run_id] > 0]
        held = [each for each in entries if each.action is Action.WAIT]
        if pending:
            watch = Progress(expansion.sweep.title, pending, _slots(pending, executor), console)
            executor.run(expansion, pending, watch)
            for each in pending:
                state = entry(home, each.planned).history.state
                # A run that another process took first has not been tried: it is waited for. One that ended without
                # a word (its processes were taken away, and not by its own fault) is started again.
                if state is not State.RUNNING:
                    left[each.planned.run_id] -= 1 if state in (State.INTERRUPTED, State.PENDING) else STARTS
        elif held:
            if not told:
                console.print(f"Waiting for {counted(len(held), 'run')} that another process has.", highlight=False)
                told = True
            time.sleep(1)
        else:
            return


def _slots(pending: Sequence[Entry], executor: Executor) -> int:
    return max(1, min(executor.cluster.slots(pending[0].planned.spec.resources), len(pending)))


def _opening(plan: Plan, expansion: Expansion) -> str:
    done = sum(each.action == "skip" for each in plan.entries)
    blocked = sum(each.action == "blocked" for each in plan.entries)
    rest = (f", {done} done before" if done else "") + (f", {blocked} blocked" if blocked else "")
    return f"{expansion.sweep.title}: {counted(len(plan.entries) - done - blocked, 'run')} to do{rest}."
