"""The mirror beside a running sweep: a thread that shows the records in MLflow as they grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from tepo_lab.records.files import RunFolder
from tepo_lab.track.address import own_address, shown, tracking_address

#: Seconds that a sweep which is over waits for an MLflow that cannot be written; one that can has longer to catch up.
OUTAGE_SECONDS = 10.0


class MirrorThread:
    """Runs a `Mirror` in a daemon thread, so that a slow server delays no run.

    mirror = MirrorThread(home, None, "panel-e", folders, print)
    mirror.start()
    ...
    mirror.stop(timeout_seconds=30)
    """

    def __init__(
        self,
        home: Path,
        tracking_uri: str | None,
        sweep: str,
        folders: Iterable[RunFolder],
        on_problem: Callable[[str], None],
        *,
        every_seconds: float = 1.0,
    ) -> None:
        """Args: `folders` of the sweep's runs; `on_problem` is called in the thread.

        Raises `ConfigError` for a tracking URI that cannot be used.
        """
        self._home, self._sweep, self._folders, self._on_problem = home, sweep, folders, on_problem
        self.uri = tracking_address(home, tracking_uri)
        self._every_seconds = every_seconds
        self._deadline = float("inf")
        self._stopping = threading.Event()
        self._is_complete = False
        # The home's own database is made late, and takes its time; another address answers, or it is out.
        self._is_own = self._answers = self.uri == own_address(home)
        self._thread = threading.Thread(target=self._run, name="mlflow-mirror", daemon=True)

    def start(self) -> None:
        """Begin to mirror."""
        # Tune imports mlflow too, as it starts, and two threads that do so at once may see a part of it. An import that
        # fails is reported where mlflow is used.
        with suppress(ImportError):
            import_module("tepo_lab.track.mirror")
        self._thread.start()

    def stop(self, timeout_seconds: float = 30.0) -> bool:
        """Show the rest, end the sweep's run in MLflow and stop, or give up after `timeout_seconds`.

        Returns whether MLflow shows all of the records; if not, `on_problem` is called with how to fix it.
        """
        if self._thread.ident is None:
            # Never started: there was nothing to mirror.
            return True
        self._deadline = time.monotonic() + timeout_seconds
        self._stopping.set()
        self._thread.join(timeout_seconds if self._answers else min(timeout_seconds, OUTAGE_SECONDS))
        if not self._is_complete:
            self._on_problem(
                f"MLflow ({shown(self.uri)}) is behind the records: 'tepo-lab mirror' brings it up to date."
            )
        return self._is_complete

    def _run(self) -> None:
        # The database takes seconds to make, and the first run's start needs the cores. Of an address that does not
        # answer the user learns at once.
        while self._is_own and not self._stopping.wait(self._every_seconds):
            if any(map(_has_results, self._folders)):
                break
        from tepo_lab.track.mirror import Mirror

        mirror = Mirror(self._home, self.uri, self._sweep, self._on_problem)
        while not self._stopping.is_set():
            self._answers = mirror.update(self._folders) or (self._answers and not mirror.is_out)
            self._stopping.wait(self._every_seconds)
        stopping = time.monotonic()
        while not mirror.update(self._folders, over=True, at_once=True):
            now = time.monotonic()
            if now + self._every_seconds >= self._deadline or (mirror.is_out and now > stopping + OUTAGE_SECONDS):
                return
            time.sleep(self._every_seconds)
        self._is_complete = True


def _has_results(folder: RunFolder) -> bool:
    return folder.metrics_file.exists() or bool(folder.generation_steps())
