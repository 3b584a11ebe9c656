"""A sweep's records shown in MLflow: an experiment for each sweep, in it a run for each trial and one for the sweep.

MLflow can be added to, and takes nothing back. So a run of which it shows what the records no longer contain (steps
after the checkpoint that a run was resumed from, an evaluation that was graded again) is deleted there and made again.
How much of the records a run shows is in its tags `events` and `steps`, which are written after the values: a write
that is cut off is repeated, and MLflow stores an equal value once.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from filelock import Timeout
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag

from tepo_lab.errors import RecordError
from tepo_lab.records.events import Evaluated, Started
from tepo_lab.records.files import RunFolder, parsed_line, read_record
from tepo_lab.records.history import RunHistory
from tepo_lab.records.lock import is_locked
from tepo_lab.track.address import artifact_folder, database_file, masked, own_address, shown, tracking_address
from tepo_lab.track.store import FAILURES, one_writer, open_client, stores_artifacts_here
from tepo_lab.track.view import milliseconds, run_view

LONGEST_WAIT_SECONDS = 60.0

#: More runs than an experiment has; MLflow takes no larger number.
_ALL_RUNS = 50_000

#: Files of a sweep's folder that are artifacts of its run.
_SWEEP_FILES = ("sweep.json", "table.md", "table.json", "page.html")

#: Size and time of change of a file; None where there is none that can be looked at.
_Stamp = tuple[int, int] | None


@dataclass(frozen=True)
class _Shown:
    """A run as it was last shown. Times are in milliseconds since 1970."""

    stamp: tuple[object, ...]
    status: str
    started: int
    ended: int | None


@dataclass
class _Connection:
    client: MlflowClient
    experiment: str
    runs: dict[str, _Shown] = field(default_factory=dict)
    files: dict[Path, _Stamp] = field(default_factory=dict)
    #: Status and end of the sweep's run as last set.
    end: tuple[str, int] | None = None


class Mirror:
    """Writes a sweep's mirror. Two of them, in two processes, may write the same one."""

    def __init__(
        self,
        home: Path,
        tracking_uri: str | None,
        sweep: str,
        on_problem: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: `tracking_uri` as for `tracking_address`; `on_problem` is called with each problem once.

        Raises `ConfigError` for a tracking URI that cannot be used.
        """
        self.home = home.resolve()
        self.uri = tracking_address(home, tracking_uri)
        self.sweep = sweep
        self.is_out = False
        self._on_problem = on_problem
        self._clock = clock
        self._connection: _Connection | None = None
        self._wait_seconds = 0.0
        self._not_before = float("-inf")
        self._reported: set[str] = set()

    def update(self, folders: Iterable[RunFolder], *, over: bool = False, at_once: bool = False) -> bool:
        """Show what is new in the records of these runs and of the sweep. Returns whether MLflow shows all of it.

        Nothing that goes wrong in MLflow is raised: it is reported once in an outage (`is_out`), and calls that follow
        try again after growing waits.
        Args: `over` ends the sweep's run, unless another process works on one of these; `at_once` skips the wait.
        """
        if self._clock() < self._not_before and not at_once:
            return False
        try:
            with one_writer(self.home, wait_seconds=5):
                self.sync(folders, over=over)
        except Timeout:
            return False
        except (*FAILURES, RecordError) as error:
            self._connection = None
            self._wait_seconds = min(max(1.0, 2 * self._wait_seconds), LONGEST_WAIT_SECONDS)
            self._not_before = self._clock() + self._wait_seconds
            if not self.is_out:
                self.is_out = True
                self._on_problem(f"{problem_with(self.uri, error)} The runs go on; it is tried again.")
            return False
        self.is_out, self._wait_seconds = False, 0.0
        return True

    def sync(self, folders: Iterable[RunFolder], earlier: Iterable[RunFolder] = (), *, over: bool = False) -> int:
        """As `update`, under `one_writer` and raising what MLflow raises. Returns how many runs are shown.

        Args: `earlier` runs of the sweep are shown too, and do not count for its status.
        Raises `RecordError` for a database that is another program's, or made for another home.
        """
        folders = list(folders)
        connection = self._connection = self._connection or self._connect()
        count = sum([self._sync_run(connection, folder) for folder in (*folders, *earlier)])
        self._sync_sweep(connection, [folder.name for folder in folders], over)
        return count

    def delete(self, is_unwanted: Callable[[str], bool]) -> None:
        """Delete the runs of these names from MLflow, under `one_writer`. Raises as `sync` does."""
        connection = self._connection = self._connection or self._connect()
        for run in connection.client.search_runs([connection.experiment], max_results=_ALL_RUNS):
            if self._is_ours(run) and is_unwanted(run.info.run_name):
                connection.client.delete_run(run.info.run_id)

    def _connect(self) -> _Connection:
        client = open_client(self.home, self.uri)
        artifacts = str(artifact_folder(self.home)) if stores_artifacts_here(self.uri) else None
        experiment = client.get_experiment_by_name(self.sweep)
        if experiment is None:
            # The kind has MLflow open on the runs, not on its pages for language-model applications.
            kind = {"mlflow.experimentKind": "custom_model_development"}
            return _Connection(client, client.create_experiment(self.sweep, artifacts, kind))
        location = experiment.artifact_location.removeprefix("file://")
        if self.uri == own_address(self.home) and location != artifacts:
            raise RecordError(
                f"{database_file(self.home)} was made for another place ({location}): remove it and {artifacts}, then "
                "run 'tepo-lab mirror'."
            )
        if experiment.lifecycle_stage != "active":
            client.restore_experiment(experiment.experiment_id)
        return _Connection(client, experiment.experiment_id)

    def _is_ours(self, run: Run) -> bool:
        # A server may be shared by homes with sweeps of the same name. In a home's own database, earlier releases did
        # not tag runs with it.
        tags, default = run.data.tags, str(self.home) if self.uri == own_address(self.home) else None
        return bool(tags.get("sweep") == self.sweep and tags.get("home", default) == str(self.home))

    def _find(self, connection: _Connection, name: str) -> Run | None:
        """The run of that name in MLflow; a second one, of a request that was repeated, is deleted."""
        matches = connection.client.search_runs([connection.experiment], f"attributes.run_name = '{name}'")
        runs = list(filter(self._is_ours, matches))
        for run in runs[1:]:
            connection.client.delete_run(run.info.run_id)
        return runs[0] if runs else None

    def _create(self, connection: _Connection, name: str, started: int, tags: dict[str, str]) -> Run:
        ours = {"sweep": self.sweep, "home": str(self.home), "mlflow.source.name": "tepo-lab"}
        return connection.client.create_run(connection.experiment, started, tags | ours, name)

    def _sync_run(self, connection: _Connection, folder: RunFolder) -> bool:
        """Show what is new of a run. Returns whether MLflow shows it: not before it has begun, nor if it is damaged."""
        records = (folder.run_file, folder.metrics_file, folder.events_file)
        stamp = (*map(_stamp, records), is_locked(folder))
        last = connection.runs.get(folder.name)
        if last is not None and last.stamp == stamp:
            return True
        history = RunHistory.read(folder)
        try:
            if history.damage is not None:
                raise RecordError(history.damage)
            if history.events:
                connection.runs[folder.name] = self._show(connection, history, stamp)
        except RecordError as error:
            message = f"MLflow does not show {folder.name}: {error}"
            if message not in self._reported:
                self._reported.add(message)
                self._on_problem(message)
            return False
        return bool(history.events)

    def _show(self, connection: _Connection, history: RunHistory, stamp: tuple[object, ...]) -> _Shown:
        client, run = connection.client, self._find(connection, history.name)
        events, steps = _progress(run)
        if run is not None and _is_outdated(run, history, events):
            client.delete_run(run.info.run_id)
            run, events, steps = None, 0, 0
        view = run_view(history, self.sweep, events=events, steps=steps)
        if run is None:
            run = self._create(connection, history.name, view.started, view.tags)
            client.log_batch(run.info.run_id, params=[Param(*param) for param in view.params.items()])
            client.log_artifact(run.info.run_id, str(history.folder.run_file))
        client.log_batch(run.info.run_id, metrics=[Metric(*point) for point in view.points])
        client.log_batch(run.info.run_id, tags=_changed(run, view.progress))
        _set_status(client, run, view.status, view.ended)
        return _Shown(stamp, view.status, view.started, view.ended)

    def _sync_sweep(self, connection: _Connection, names: list[str], over: bool) -> None:
        """Show the sweep's files, and its status: that of its runs when it is over."""
        client, runs = connection.client, [connection.runs[name] for name in names if name in connection.runs]
        started = min((run.started for run in runs), default=int(time.time() * 1000))
        statuses = {run.status for run in runs}
        if not over or "RUNNING" in statuses:
            status, ended = "RUNNING", None
        else:
            status = next((status for status in ("FAILED", "KILLED") if status in statuses), "FINISHED")
            ended = max((run.ended for run in runs if run.ended), default=started)
        files = {path: _stamp(path) for path in (self.home / "sweeps" / self.sweep / name for name in _SWEEP_FILES)}
        new = [path for path, stamp in files.items() if stamp is not None and connection.files.get(path) != stamp]
        if not new and connection.end == (status, ended or 0):
            return
        run = self._find(connection, self.sweep)
        run = run or self._create(connection, self.sweep, started, {"tepo_lab": "sweep"})
        for path in new:
            client.log_artifact(run.info.run_id, str(path))
            if path.name == "sweep.json":
                values = parsed_line(read_record(path)) or {}
                tags = {key: str(values[key]) for key in ("title", "profile") if values.get(key)}
                client.log_batch(run.info.run_id, tags=_changed(run, tags))
        _set_status(client, run, status, ended)
        connection.files, connection.end = files, (status, ended or 0)


def _stamp(path: Path) -> _Stamp:
    try:
        values = path.stat()
    except OSError:
        return None
    return (values.st_size, values.st_mtime_ns) if stat.S_ISREG(values.st_mode) else None


def _progress(run: Run | None) -> tuple[int, int]:
    """How many events and steps MLflow shows of a run."""
    tags = {} if run is None else run.data.tags
    return int(tags.get("events", 0)), int(tags.get("steps", 0))


def _is_outdated(run: Run, history: RunHistory, events: int) -> bool:
    """Whether MLflow may show what the records no longer contain, given that it shows so many events."""
    before, new = history.events[:events], history.events[events:]
    evaluated = {event.step for event in before if isinstance(event, Evaluated)}
    return (
        events == 0
        or run.info.start_time != milliseconds(history.started or 0.0)
        or any(
            isinstance(event, Started) or (isinstance(event, Evaluated) and event.step in evaluated) for event in new
        )
    )


def _changed(run: Run, tags: dict[str, str]) -> list[RunTag]:
    return [RunTag(key, value) for key, value in tags.items() if run.data.tags.get(key) != value]


def _set_status(client: MlflowClient, run: Run, status: str, ended: int | None) -> None:
    if ended is not None and (run.info.status, run.info.end_time) != (status, ended):
        client.set_terminated(run.info.run_id, status, ended)
    elif ended is None and run.info.status != status:
        client.update_run(run.info.run_id, status=status)


def problem_with(uri: str, error: Exception) -> str:
    """What is wrong with the mirror at `uri`, in one sentence without secrets."""
    lines = [line.strip() for line in str(error).replace(uri, shown(uri)).splitlines() if line.strip()]
    text = masked(lines[0]) if lines else type(error).__name__
    if len(text) > 200 and not isinstance(error, RecordError):
        text = text[:199] + "…"
    return f"MLflow ({shown(uri)}) cannot be written: {text.rstrip('.')}."
