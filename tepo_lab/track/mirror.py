"""A sweep's records shown in MLflow while it runs, and the whole mirror made again from the records.

An experiment per sweep, in it a parent run and a child run per trial. Nothing is remembered beside MLflow itself: what
the records say is compared with what MLflow holds, the missing part is logged, and a child that holds anything else
(a step of a history that was cut back to a checkpoint, the params of a run that was extended) is replaced. So an
interrupted write, a restart or a lost database need no repair of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mlflow import MlflowClient
from mlflow.entities import Run, RunTag

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder
from tepo_lab.track.address import artifact_folder, database_file, own_address, shown, tracking_address
from tepo_lab.track.child import Child
from tepo_lab.track.state import REMOVE, RunState, read_json, run_state, signature, started_at
from tepo_lab.track.steps import Steps
from tepo_lab.track.store import FAILURES, BusyError, keeps_artifacts_here, one_writer, open_client

Outcome = Literal["complete", "failed", "interrupted"]

#: A sweep's table as text and as plain values, and its page.
Printed = tuple[str, Any, str | None]

LONGEST_WAIT_SECONDS = 60.0

_PARENT_STATUS: dict[Outcome, str] = {"complete": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


@dataclass
class _Connection:
    client: MlflowClient
    experiment: str
    parent: str
    #: Start of the parent run, milliseconds since 1970.
    started: int
    children: dict[str, Child]
    inode: int | None
    #: sweep.json as last logged.
    snapshot: Any = None
    #: run -> signature of the records last compared.
    seen: dict[str, object] = field(default_factory=dict)
    #: run that goes on -> its steps, as far as they have been logged.
    steps: dict[str, Steps] = field(default_factory=dict)


class Mirror:
    """The one writer of a sweep's mirror in this process.

    Nothing that goes wrong in MLflow is raised: `on_problem` is told once in an outage, and the calls that follow try
    again after growing waits. Every call returns whether MLflow now says what the records say.
    """

    def __init__(
        self,
        home: Path,
        tracking_uri: str | None,
        sweep: str,
        on_problem: Callable[[str], None],
        *,
        verify: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: `tracking_uri` as for `tracking_address`; `verify` compares finished runs too, value by value.

        Raises `ConfigError` for a tracking URI that cannot be used.
        """
        self.home = home.resolve()
        self.uri = tracking_address(home, tracking_uri)
        self.sweep = sweep
        self._on_problem = on_problem
        self._verify = verify
        self._clock = clock
        self._connection: _Connection | None = None
        self._folders: list[RunFolder] = []
        self._over = False
        self._outcome: Outcome | None = None
        self._table: Printed | None = None
        self._wait_seconds = 0.0
        self._not_before = float("-inf")
        self._out = False
        self._told: set[str] = set()

    @property
    def is_out(self) -> bool:
        """Whether the last attempt found MLflow unable to take what it was told."""
        return self._out

    def prepare(self) -> bool:
        """Make the database, the experiment and the sweep's parent run where they are missing."""
        return self._attempt(self._sync_snapshot)

    def update(self, folders: Iterable[RunFolder]) -> bool:
        """Show what is new in the records of these runs, which are all of the sweep's that have a folder."""
        self._folders, self._over = list(folders), False
        return self._attempt(self._sync)

    def log_table(self, text: str, table: Any, page: str | None = None) -> bool:
        """Keep the sweep's table with the parent run, as table.md, table.json and, where there is one, page.html.

        Later calls try again if it fails.
        """
        self._table = (text, table, page)
        return self._attempt(self._sync)

    def finish(self, outcome: Outcome | None = None, *, at_once: bool = True) -> bool:
        """Show the rest, mark unfinished runs that nobody holds as killed, and end the parent run.

        Args: without an `outcome` it follows from the runs; `at_once` does not wait out the pause after a failure.
        """
        self._over, self._outcome = True, outcome
        if at_once:
            self._not_before = float("-inf")
        return self._attempt(self._end)

    def sync_or_raise(self, folders: Iterable[RunFolder], table: Printed | None) -> int:
        """Show these runs and this table and delete the children whose run folder is gone. Returns how many are shown.

        Raises `BusyError`, `RecordError` and what MLflow raises.
        """
        self._folders, self._table, self._over = list(folders), table, True
        with one_writer(self.home, wait_seconds=60):
            connection = self._connect()
            for name in sorted(connection.children):
                if not (self.home / "runs" / name).is_dir():
                    connection.client.delete_run(connection.children.pop(name).run_id)
            self._end(connection)
            return sum(folder.name in connection.seen for folder in self._folders)

    def _attempt(self, action: Callable[[_Connection], None]) -> bool:
        if self._clock() < self._not_before:
            return False
        try:
            with one_writer(self.home, wait_seconds=5):
                if self._connection is not None and self._connection.inode != self._inode():
                    self._connection = None
                self._connection = self._connection or self._connect()
                action(self._connection)
        except BusyError:
            return False
        except (*FAILURES, RecordError) as error:
            # What was written before the failure is not known: ask MLflow again.
            self._connection = None
            self._wait_seconds = min(max(1.0, 2 * self._wait_seconds), LONGEST_WAIT_SECONDS)
            self._not_before = self._clock() + self._wait_seconds
            if not self._out:
                self._out = True
                self._on_problem(
                    f"{trouble(self.uri, error)} The runs go on, and the mirror catches up when it answers."
                )
            return False
        self._out, self._wait_seconds = False, 0.0
        return True

    def _inode(self) -> int | None:
        """Identity of the home's own database file, when that is what we write to."""
        if self.uri != own_address(self.home):
            return None
        try:
            return database_file(self.home).stat().st_ino
        except FileNotFoundError:
            return None

    def _connect(self) -> _Connection:
        client = open_client(self.home, self.uri)
        experiment = self._experiment(client)
        parent, started = self._parent(client, experiment)
        children: dict[str, Child] = {}
        for run in _search(client, experiment, f"tags.`mlflow.parentRunId` = '{parent}'"):
            if str(run.info.run_name) in children:
                client.delete_run(run.info.run_id)
            else:
                children[str(run.info.run_name)] = Child.of(run)
        return _Connection(client, experiment, parent, started, children, self._inode())

    def _experiment(self, client: MlflowClient) -> str:
        artifacts = str(artifact_folder(self.home)) if keeps_artifacts_here(self.uri) else None
        found = client.get_experiment_by_name(self.sweep)
        if found is None:
            return str(client.create_experiment(self.sweep, artifact_location=artifacts))
        location = found.artifact_location.removeprefix("file://")
        if self.uri == own_address(self.home) and location != artifacts:
            raise RecordError(
                f"{database_file(self.home)} was made for another place ({location}); remove it and {artifacts}, then "
                "run 'tepo-lab mirror --rebuild'."
            )
        if found.lifecycle_stage != "active":
            client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _parent(self, client: MlflowClient, experiment: str) -> tuple[str, int]:
        tags = {"tepo_lab": "sweep", "sweep": self.sweep, "mlflow.source.name": "tepo-lab"}
        # A server may be shared by homes with sweeps of the same name.
        tags |= {} if self.uri == own_address(self.home) else {"home": str(self.home)}
        parents = _search(client, experiment, "tags.tepo_lab = 'sweep'")
        run = next((run for run in parents if run.data.tags.get("home") == tags.get("home")), None)
        run = run or client.create_run(experiment, self._earliest(), tags, self.sweep)
        if run.info.status != "RUNNING" and not self._over:
            client.update_run(run.info.run_id, status="RUNNING")
        return str(run.info.run_id), int(run.info.start_time)

    def _earliest(self) -> int:
        """When the first of the known runs was made, else now, in milliseconds since 1970."""
        started = [int(time.time() * 1000)]
        for folder in self._folders:
            # A damaged record is told of when its run is shown.
            with suppress(RecordError):
                started.append(started_at(folder))
        return min(started)

    def _sync_snapshot(self, connection: _Connection) -> None:
        snapshot = read_json(self.home / "sweeps" / self.sweep / "sweep.json")
        if snapshot and snapshot != connection.snapshot:
            tags = [RunTag(key, str(snapshot[key])) for key in ("title", "profile") if snapshot.get(key)]
            connection.client.log_batch(connection.parent, tags=tags)
            connection.client.log_text(connection.parent, json.dumps(snapshot, indent=1) + "\n", "sweep.json")
            connection.snapshot = snapshot

    def _sync(self, connection: _Connection) -> None:
        self._sync_snapshot(connection)
        for folder in self._folders:
            seen = (signature(folder), self._over)
            if connection.seen.get(folder.name) == seen or not folder.run_file.exists():
                continue
            try:
                state = self._state(connection, folder)
                self._sync_run(connection, folder, state)
            except RecordError as error:
                connection.steps.pop(folder.name, None)
                self._tell_once(f"MLflow does not show {folder.name}: {error}")
                continue
            connection.seen[folder.name] = seen
        if self._table is not None:
            text, table, page = self._table
            connection.client.log_text(connection.parent, text, "table.md")
            connection.client.log_text(connection.parent, json.dumps(table, indent=1) + "\n", "table.json")
            if page is not None:
                connection.client.log_text(connection.parent, page, "page.html")
            self._table = None

    def _state(self, connection: _Connection, folder: RunFolder, *, anew: bool = False) -> RunState:
        """The run as its records tell it: what is new of it since it was logged, or all of it."""
        if anew or folder.name not in connection.steps:
            connection.steps[folder.name] = Steps(folder)
        return run_state(folder, self.sweep, over=self._over, steps=connection.steps[folder.name])

    def _sync_run(self, connection: _Connection, folder: RunFolder, state: RunState) -> None:
        client, child = connection.client, connection.children.get(state.name)
        if child is not None and not self._verify and child.in_step(state):
            self._rest(connection, folder, child)
            return
        held = child.held(client, state) if child is not None else {}
        if child is not None and child.contradicts(client, state, held):
            client.delete_run(child.run_id)
            child, held = None, {}
        if child is None:
            if not state.is_whole:
                state = self._state(connection, folder, anew=True)
            tags = state.tags | {"mlflow.parentRunId": connection.parent, "mlflow.source.name": "tepo-lab"}
            child = Child.of(client.create_run(connection.experiment, state.started, tags, state.name))
            connection.children[state.name] = child
        child.log_missing(client, state, held)
        if state.ended is not None:
            self._rest(connection, folder, child)

    def _rest(self, connection: _Connection, folder: RunFolder, child: Child) -> None:
        """Keep nothing of a run that has ended: should it go on, its records and MLflow are asked anew."""
        child.rest()
        del connection.steps[folder.name]

    def _end(self, connection: _Connection) -> None:
        self._sync(connection)
        children = connection.children.values()
        if self._outcome is None and any(child.status in {"RUNNING", "SCHEDULED"} for child in children):
            # Another process of this home still works on them, and will end the sweep.
            return
        statuses = {child.status for child in children}
        derived: Outcome = "failed" if "FAILED" in statuses else "interrupted" if "KILLED" in statuses else "complete"
        ended = max([connection.started, *(child.ended for child in children if child.ended)])
        connection.client.set_terminated(connection.parent, _PARENT_STATUS[self._outcome or derived], ended)

    def _tell_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self._on_problem(message)


def _refuse(problem: str) -> None:
    raise RecordError(problem)


def rebuild(
    home: Path,
    tracking_uri: str | None = None,
    *,
    on_problem: Callable[[str], None] = _refuse,
    verify: bool = True,
) -> int:
    """Make the mirror again from the records: every sweep under HOME/sweeps, every run it lists that has a folder.

    What MLflow already shows rightly stays as it is; children whose run folder is gone are deleted. Damaged records are
    told to `on_problem`, and all others shown.
    Args: `verify` compares runs that have ended value by value, not only by the digest that MLflow keeps with them.
    Returns the number of runs shown, one of two sweeps counted in both.
    Raises `RecordError` when MLflow cannot be written, and for damaged records where nobody is told of them.
    """
    uri = tracking_address(home, tracking_uri)
    shown_runs = 0
    for path in sorted(home.glob("sweeps/*/sweep.json")):
        try:
            folders = _recorded_runs(home, path)
        except RecordError as error:
            on_problem(f"MLflow does not show sweep {path.parent.name}: {error}")
            continue
        try:
            printed = _printed(path.parent)
        except RecordError as error:
            on_problem(f"MLflow does not show the table of sweep {path.parent.name}: {error}")
            printed = None
        shown_runs += _catch_up_with(Mirror(home, uri, path.parent.name, on_problem, verify=verify), folders, printed)
    return shown_runs


def _recorded_runs(home: Path, sweep_file: Path) -> list[RunFolder]:
    """The runs of a sweep that have a folder. Raises `RecordError` where its record is damaged."""
    values = read_json(sweep_file)
    names = values.get("runs") if isinstance(values, dict) else None
    if not isinstance(names, list) or not all(isinstance(each, str) and Path(each).name == each for each in names):
        raise RecordError(f"{sweep_file} is damaged (its runs are no names of folders): {REMOVE}.")
    return [folder for folder in (RunFolder(home / "runs" / name) for name in names) if folder.run_file.exists()]


def _printed(sweep: Path) -> Printed | None:
    """The table of a sweep, None when there is none. Raises `RecordError` where a file of it is damaged."""
    text, page = (_read_text(sweep / name) for name in ("table.md", "page.html"))
    table = read_json(sweep / "table.json")
    return None if text is None or table is None else (text, table, page)


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is damaged ({error}): {REMOVE}.") from None


def _catch_up_with(mirror: Mirror, folders: Sequence[RunFolder], printed: Printed | None) -> int:
    """Show these runs. Returns how many are."""
    home, uri = mirror.home, mirror.uri
    try:
        return mirror.sync_or_raise(folders, printed)
    except BusyError:
        raise RecordError(f"Another process is writing to the mirror of {home}: call again when it is done.") from None
    except FAILURES as error:
        raise RecordError(
            f"{trouble(uri, error)} If the database is damaged, move it away and call again: it is made anew from the "
            "records."
        ) from error


def _search(client: MlflowClient, experiment: str, condition: str) -> list[Run]:
    runs: list[Run] = []
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment], condition, max_results=500, order_by=["attributes.start_time ASC"], page_token=token
        )
        runs += page
        token = page.token
        if not token:
            return runs


def trouble(uri: str, error: Exception) -> str:
    """What is wrong with the mirror at `uri`, in one sentence without passwords."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if len(text) > 200 and not isinstance(error, RecordError):
        text = text[:199] + "…"
    return shown(f"MLflow ({uri}) cannot be written: {text.rstrip('.')}.")
