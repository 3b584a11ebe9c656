"""What the driver does as trials of Ray Tune end: it records what only Tune knows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from ray.tune.progress_reporter import TrialProgressCallback

from tepo_lab.execute.running.failures import record_machine_failure
from tepo_lab.records.events import Stopped
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import append_event
from tepo_lab.records.lock import RunLock, RunLockedError, lease_session


class TuneCallback(TrialProgressCallback):  # type: ignore[misc]
    """Records failures that Tune retries no more, and stops by a search; forgets what Tune would store of each trial.

    It stands in for Tune's own callback of this class, which prints lines among a command's results.
    An end is recorded at once: later the driver may be dead, or the run another session's. Args: `learners` of a trial;
    several work on until Tune has ended them, so that a stop is recorded when all trials are over.
    """

    def __init__(self, learners: int = 1) -> None:
        super().__init__()
        self._learners = learners
        self._unrecorded: list[Callable[[], None]] = []

    def on_trial_result(self, *, result: dict[str, Any], **context: Any) -> None:
        """Nothing: Tune's own would print the result."""

    def on_trial_complete(self, *, trial: Any, **context: Any) -> None:
        _forget_results(trial)

    def on_trial_error(self, *, trial: Any, **context: Any) -> None:
        _forget_results(trial)
        self._record(partial(_record_failure, trial))

    def stopped(self, trial: Any, step: int) -> None:
        """Record that a search has ended a run."""
        record = partial(append_event, _folder(trial), Stopped(step=step, by="asha"))
        if self._learners > 1:
            self._unrecorded.append(record)
        else:
            self._record(record)

    def record_rest(self) -> None:
        """Record what could not be recorded when it happened. Raises `OSError` where it still cannot."""
        unrecorded, self._unrecorded = self._unrecorded, []
        for record in unrecorded:
            self._record(record)
        if self._unrecorded:
            self._unrecorded[0]()

    def _record(self, record: Callable[[], None]) -> None:
        try:
            record()
        except OSError:
            # A full disk may have room when the other runs are over.
            self._unrecorded.append(record)


def _folder(trial: Any) -> RunFolder:
    return RunFolder(Path(trial.config["folder"]))


def _record_failure(trial: Any) -> None:
    # What Tune hands out of a failure is a copy that it makes later.
    file = Path(trial.error_file) if trial.error_file else None
    text = file.read_text(errors="replace") if file is not None and file.exists() else ""
    folder = _folder(trial)
    # A lease of this very session is that of the process that has died, perhaps on another node.
    is_ours = lease_session(folder) == trial.config["session"]
    try:
        with nullcontext() if is_ours else RunLock(folder):
            record_machine_failure(folder, text)
    except RunLockedError:
        # Another session goes on with the run.
        return


def _forget_results(trial: Any) -> None:
    """Empty Tune's statistics of a trial that has ended: some 20 kB, mostly of its clocks and counters."""
    metadata = trial.run_metadata
    metadata.metric_analysis, metadata.metric_n_steps = {}, {}
    metadata.last_result = {"config": trial.config}
