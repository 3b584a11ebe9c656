"""A trial as Ray Tune runs it. Failures of the user's making end the run; failures of the machine reach Tune."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.progress_reporter import TrialProgressCallback

from tepo_lab.errors import RecordError, is_machine_failure
from tepo_lab.execute.running.attempt import Attempt
from tepo_lab.execute.running.failures import (
    end_attempt,
    log_error,
    record_machine_failure,
    record_user_failure,
)
from tepo_lab.records.events import Stopped
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import append_event
from tepo_lab.records.lock import RunLock, lease_session


class Quiet(TrialProgressCallback):  # type: ignore[misc]
    """Tune's own lines about trials, which would stand among a command's results, unsaid."""

    def _print(self, msg: str) -> None:
        """Nothing: the session tells of the runs."""


class Ends(tune.Callback):  # type: ignore[misc]
    """What the driver does as trials end: it records what only Tune knows, and forgets what Tune would keep of each.

    Each end is recorded at once: a while later the driver may be dead, or the run another session's. Args: `learners`
    of a trial; of several, which work on until Tune has ended them, a stop is recorded when all trials are over.
    """

    def __init__(self, learners: int = 1) -> None:
        self._learners = learners
        self._untold: list[Callable[[], None]] = []

    def on_trial_complete(self, *, trial: Any, **told: Any) -> None:
        """Forget the trial's results: the records hold them."""
        _forget_results(trial)

    def on_trial_error(self, *, trial: Any, **told: Any) -> None:
        """Record the failure of a trial that is not tried again."""
        _forget_results(trial)
        self._tell(partial(_record_failure, trial))

    def stopped(self, trial: Any, step: int) -> None:
        """Record that a search has ended a run."""
        write = partial(_record_stop, trial, step)
        if self._learners > 1:
            self._untold.append(write)
        else:
            self._tell(write)

    def tell_rest(self) -> None:
        """Record what could not be recorded when it happened. Raises `OSError` where it still cannot."""
        untold, self._untold = self._untold, []
        for write in untold:
            self._tell(write)
        if self._untold:
            self._untold[0]()

    def _tell(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError:
            # Of a full disk, say, which may have room when the other runs are over.
            self._untold.append(write)


def _folder(trial: Any) -> RunFolder:
    return RunFolder(Path(trial.config["folder"]))


def _record_stop(trial: Any, step: int) -> None:
    append_event(_folder(trial), Stopped(step=step, by="asha"))


def _record_failure(trial: Any) -> None:
    # What Tune hands out of a failure is a copy that it makes later.
    file = Path(trial.error_file) if trial.error_file else None
    said = file.read_text(errors="replace") if file is not None and file.exists() else ""
    error = RuntimeError(said.strip() or "Tune gave it up without a word")
    folder = _folder(trial)
    # A lease of this very session is of the process that has died, on a node where nobody can look for it.
    is_ours = lease_session(folder) == trial.config["session"]
    # Who else holds the run goes on with it; damaged events are told of when the runs are over.
    with suppress(RecordError), nullcontext() if is_ours else RunLock(folder):
        record_machine_failure(folder, error)


def _forget_results(trial: Any) -> None:
    """Empty Tune's statistics of a trial that has ended: some 20 kB, of its clocks and counters for the most part."""
    kept = trial.run_metadata
    kept.metric_analysis, kept.metric_n_steps = {}, {}
    kept.last_result = {"config": trial.config}


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """One `Trial` a time in a process that serves one run after another.

    Each `step` is one `Trial.advance`. Tune's own checkpoints are empty: a trial finds its own in its folder.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Take note of the run; it is opened at the first `step`.

        Tune starts a process for a run and, when another process is free sooner, gives the run to that one. Until
        then the slower process must not have touched it.
        """
        _import_trial()
        self.attempt = Attempt(config)
        self.ended = False

    def step(self) -> dict[str, Any]:
        if self.ended:
            return {"done": True}
        try:
            progress = self.attempt.advance()
        except Exception as error:  # noqa: BLE001 - told apart below, and raised again when not the user's
            self._fail(error)
            return {"done": True}
        self.ended = progress is None or self.attempt.is_over
        if self.ended:
            # Not left to Tune, which keeps the process for the next run and calls it much later.
            self.cleanup()
        if progress is None:
            return {"done": True}
        scores = progress.metrics if progress.phase == "validated" else {}
        return {"done": self.ended, "step": progress.step, **scores}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Serve another run in this process, with everything already imported."""
        self.cleanup()
        self.setup(new_config)
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the run's folder holds its checkpoints."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: the attempt finds the newest checkpoint."""

    def cleanup(self) -> None:
        self.attempt.close()

    def _fail(self, error: Exception) -> None:
        """Record a failure. One of the machine's is raised, so that Tune tries again."""
        folder = self.attempt.folder
        log_error(folder, error)
        is_machine = is_machine_failure(error)
        if not is_machine:
            record_user_failure(folder, error)
            end_attempt(folder)
        self.cleanup()
        if is_machine:
            raise error
        self.ended = True


def _import_trial() -> None:
    """Import what a trial takes: in the worker, for the driver schedules without loading torch."""
    if "tepo_lab.train.trial" in sys.modules:
        return
    # To collect garbage among what modules keep for good takes a quarter of the seconds that they take to import.
    gc.disable()
    try:
        import transformers.modeling_utils  # noqa: F401

        import tepo_lab.train.trial  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()
