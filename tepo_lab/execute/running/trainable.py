"""A trial as Ray Tune runs it in a worker: a user's failure ends the run, one of the machine reaches Tune."""

from __future__ import annotations

import gc
import sys
from typing import Any

from ray import tune

from tepo_lab.execute.running.attempt import Attempt
from tepo_lab.execute.running.failures import log_error, record_user_failure


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """An `Attempt` in a process that serves one run after another; each `step` is one `Attempt.advance`.

    Tune's own checkpoints are empty: an attempt finds the newest one in its run's folder.
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
        except Exception as error:
            log_error(self.attempt.folder, error)
            is_users = record_user_failure(self.attempt.folder, [error])
            self.cleanup()
            if not is_users:
                # Tune tries again.
                raise
            self.ended = True
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
        """Nothing: the run's folder contains its checkpoints."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: the attempt finds the newest checkpoint."""

    def cleanup(self) -> None:
        self.attempt.close()


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
