"""The mirror beside a running sweep: a thread that keeps MLflow in step with the records."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo_lab.records.files import RunFolder
from tepo_lab.track.address import shown, tracking_address

if TYPE_CHECKING:
    from tepo_lab.track.mirror import Mirror, Outcome, Printed


#: Seconds that a sweep which is over waits for an MLflow that cannot be written; one that can has longer to catch up.
OUTAGE_SECONDS = 10.0


class MirrorThread:
    """Runs a `Mirror` in a daemon thread, so that no slow server holds up the sweep.

    mirror = MirrorThread(home, None, "panel-e", lambda: folders, print)
    mirror.start()
    ...
    mirror.stop("complete", timeout_seconds=30)
    """

    def __init__(
        self,
        home: Path,
        tracking_uri: str | None,
        sweep: str,
        folders: Callable[[], Iterable[RunFolder]],
        on_problem: Callable[[str], None],
        *,
        every_seconds: float = 1.0,
    ) -> None:
        """Args: `folders` gives the sweep's run folders and is called in the thread, as is `on_problem`.

        Raises `ConfigError` for a tracking URI that cannot be used.
        """
        self._home, self._sweep, self._folders, self._on_problem = home, sweep, folders, on_problem
        self.uri = tracking_address(home, tracking_uri)
        self._every_seconds = every_seconds
        self._table: Printed | None = None
        self._outcome: Outcome | None = None
        self._deadline = float("inf")
        self._stopping = threading.Event()
        self._in_step = False
        self._thread = threading.Thread(target=self._run, name="mlflow-mirror", daemon=True)

    def start(self) -> None:
        """Begin to mirror."""
        # Tune imports mlflow too, as it starts. Two threads that do so at once can meet it half made. That it cannot be
        # imported is told where it is used.
        with suppress(ImportError):
            import_module("tepo_lab.track.mirror")
        self._thread.start()

    def log_table(self, text: str, table: Any, page: str | None = None) -> None:
        """Keep the sweep's table, and its page, with its parent run, within a second or two."""
        self._table = (text, table, page)

    def stop(self, outcome: Outcome | None = None, timeout_seconds: float = 30.0) -> bool:
        """Show the rest, end the sweep's parent run and stop, or give up after `timeout_seconds`.

        Returns whether MLflow now says what the records say; when it does not, `on_problem` is told the mend.
        """
        if self._thread.ident is None:
            # Never started: nothing was to be mirrored.
            return True
        self._outcome = outcome
        self._deadline = time.monotonic() + timeout_seconds
        self._stopping.set()
        self._thread.join(timeout_seconds)
        if not self._in_step:
            self._on_problem(
                f"MLflow ({shown(self.uri)}) is behind the records: 'tepo-lab mirror --rebuild' brings it up to date."
            )
        return self._in_step

    def _run(self) -> None:
        # The database takes seconds to make, and the first run's start needs the cores.
        while not self._stopping.wait(self._every_seconds) and not any(map(_has_results, self._folders())):
            pass
        from tepo_lab.track.mirror import Mirror

        mirror = Mirror(self._home, self.uri, self._sweep, self._on_problem)
        mirror.prepare()
        while not self._stopping.wait(self._every_seconds):
            mirror.update(self._folders())
            self._pass_table(mirror)
        stopping = time.monotonic()
        while True:
            mirror.update(self._folders())
            self._pass_table(mirror)
            if mirror.finish(self._outcome):
                self._in_step = True
                return
            now = time.monotonic()
            if now + self._every_seconds >= self._deadline or (mirror.is_out and now > stopping + OUTAGE_SECONDS):
                return
            time.sleep(self._every_seconds)

    def _pass_table(self, mirror: Mirror) -> None:
        if self._table is not None:
            table, self._table = self._table, None
            mirror.log_table(*table)


def _has_results(folder: RunFolder) -> bool:
    """Whether a run has come further than its beginning."""
    return folder.metrics_file.exists() or bool(folder.evaluated_steps())
