"""Running a sweep: plan, run what is pending through Ray, plan again, until no run is left to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from tepo_lab.execute.planning.actions import Action, Entry
from tepo_lab.execute.planning.gpu_memory import check_memory
from tepo_lab.execute.planning.hub_commits import check_hub
from tepo_lab.execute.planning.plan import Plan, make_plan
from tepo_lab.execute.planning.preflight import check_hub_counts, check_inputs
from tepo_lab.execute.planning.selection import write_selection
from tepo_lab.execute.running.cluster import check_fits, check_place, check_supported
from tepo_lab.execute.running.executor import ClusterLostError, Executor
from tepo_lab.execute.running.failures import retry_seconds
from tepo_lab.execute.running.prepare import write_sweep
from tepo_lab.execute.running.session_cost import CpuMeter, SessionCost, session_cost
from tepo_lab.execute.showing.text import counted
from tepo_lab.records.files import write_atomically, write_json
from tepo_lab.records.history import State
from tepo_lab.registry.expand import Expansion

#: Times that a Ray of our own is started again after it died.
CLUSTER_RETRIES = 3

#: Times that a session starts a run that ends without recording an end.
STARTS = 3


class Observer(Protocol):
    """What a caller of `run_sweep` sees of it."""

    def planned(self, plan: Plan) -> None:
        """What will be done, before anything is started."""

    def started(self) -> None:
        """Ray is up and every run fits; called once, and not at all where nothing is to be done."""

    def note(self, line: str) -> None:
        """Something worth knowing, in one line."""

    def watch(self, pending: Sequence[Entry], slots: int) -> Callable[[bool], None]:
        """Called when runs start, `slots` at a time. What it returns is called twice a second, at the end with True."""


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended: `plan` as it was before, `entries` as they are now, `cost` (None: nothing was started)."""

    home: Path
    sweep: str
    plan: Plan
    entries: tuple[Entry, ...]
    cost: SessionCost | None

    @property
    def failed(self) -> list[Entry]:
        """Runs that did not come to their end."""
        return [entry for entry in self.entries if not entry.history.state.is_final]

    def write_table(self, text: str, table: Any, page: str) -> None:
        """Store the sweep's table (Markdown and plain values) and its page in the sweep's folder."""
        folder = self.home / "sweeps" / self.sweep
        write_atomically(folder / "table.md", text.encode())
        write_json(folder / "table.json", table)
        write_atomically(folder / "page.html", page.encode())


def run_sweep(home: Path, expansion: Expansion, observer: Observer, *, address: str | None = None) -> SweepResult:
    """Run what is pending of a sweep, in a Ray of its own or the one at `address`, and return how each run ended.

    Runs that another process owns are waited for, and taken over if it dies.
    Raises `ResourceError` when a run does not fit, and other `TepoLabError` for inputs of a run that cannot be used,
    before any trial; `ClusterLostError` when Ray died too often.
    """
    sweep = expansion.sweep
    plan = make_plan(home, [expansion])
    _check(plan.pending, address)
    observer.planned(plan)
    entries, cost = plan.entries, None
    if any(entry.action.is_pending or entry.action is Action.WAIT for entry in entries):
        meter = CpuMeter()
        entries, cores = _run_all(home, expansion, entries, observer, meter, address)
        # Processes of a cluster that was there before are not this session's.
        cpu_seconds = meter.seconds if address is None else None
        if plan.pending:
            began = psutil.Process().create_time()
            own = [entry for entry in plan.pending if entry.folder.name in meter.begun]
            cost = session_cost(own, began=began, cores=cores, cpu_seconds=cpu_seconds)
            write_json(home / "sweeps" / sweep.name / "cost.json", cost.as_json())
    if sweep.search is not None:
        write_selection(home, sweep, entries)
    return SweepResult(home, sweep.name, plan, entries, cost)


def _check(pending: Sequence[Entry], address: str | None) -> None:
    """Raise the error of a run that cannot be carried out, as far as it shows before Ray starts."""
    if not pending:
        return
    check_place(address, pending)
    for entry in pending:
        check_supported(entry)
    for check in (check_inputs, check_hub, check_hub_counts, check_memory):
        check(entry.planned.spec for entry in pending)


def _run_all(
    home: Path,
    expansion: Expansion,
    entries: tuple[Entry, ...],
    observer: Observer,
    meter: CpuMeter,
    address: str | None,
) -> tuple[tuple[Entry, ...], float]:
    """The runs when none is left to do, and the cluster's cores. A Ray of our own that dies is started again."""
    lost = 0
    while True:
        try:
            with Executor(home, meter, address=address) as executor:
                if not lost:
                    for entry in entries:
                        check_fits(executor.cluster, entry)
                    write_sweep(home, expansion, [entry.folder for entry in entries])
                    observer.started()
                return _run_rounds(home, expansion, entries, observer, executor), executor.cluster.cpus
        except ClusterLostError:
            lost += 1
            if lost > CLUSTER_RETRIES or address is not None:
                raise
            observer.note("Ray has died; it is started again.")
            time.sleep(retry_seconds(lost))
            entries = make_plan(home, [expansion]).entries


def _run_rounds(
    home: Path, expansion: Expansion, entries: tuple[Entry, ...], observer: Observer, executor: Executor
) -> tuple[Entry, ...]:
    """Run pending trials until each is done, has failed in this session, or is blocked. Plans once per round."""
    starts_left = {entry.planned.run_id: STARTS for entry in entries}
    is_waiting = False
    while True:
        pending = [entry for entry in entries if entry.action.is_pending and starts_left[entry.planned.run_id] > 0]
        others = [entry for entry in entries if entry.action is Action.WAIT]
        if pending:
            slots = min(executor.cluster.slots(pending[0].planned.spec.resources), len(pending))
            executor.run(expansion, pending, observer.watch(pending, slots))
        elif others:
            if not is_waiting:
                observer.note(f"Waiting for {counted(len(others), 'run')} that another process runs.")
                is_waiting = True
            time.sleep(1)
        else:
            return entries
        entries = make_plan(home, [expansion]).entries
        states = {entry.planned.run_id: entry.history.state for entry in entries}
        for run_id in (entry.planned.run_id for entry in pending):
            if states[run_id] in (State.INTERRUPTED, State.PENDING):
                # Its processes were killed, by no fault of its own.
                starts_left[run_id] -= 1
            elif states[run_id] is not State.RUNNING:
                # A run that another process took first has not been tried: it is waited for.
                starts_left[run_id] = 0
