"""A trial as Ray Tune runs it. Failures of the user's making end the run; failures of the machine reach Tune."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ray import tune

from tepo_lab.execute.failures import (
    begin_attempt,
    end_attempt,
    is_machine_failure,
    log_error,
    record_user_failure,
    retry_seconds,
)
from tepo_lab.execute.lease import Lease, LeaseHeldError
from tepo_lab.execute.ledger import is_over
from tepo_lab.execute.mend import go_back_to_records
from tepo_lab.schema.base import validate
from tepo_lab.schema.record import RunFolder
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.sweep import Search, StopRule


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """One `Trial` a time in a process that serves one run after another.

    Each `step` is one `Trial.advance`. Tune's own checkpoints are empty: a trial finds its own in its folder.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Take note of the run; it is opened at the first `step`.

        Tune starts a process for a run and, when another process is free sooner, gives the run to that one. Until
        then the slower process must not have touched it.
        """
        # Imported in the worker: the driver schedules without loading torch.
        import tepo_lab.train.trial  # noqa: F401

        self.config_of_run = config
        self.folder = RunFolder(Path(config["folder"]))
        self.lease: Lease | None = None
        self.trial: Any = None
        self.ended = False

    def step(self) -> dict[str, Any]:
        if self.trial is None and not self.ended:
            self._open(self.config_of_run)
        if self.ended:
            return {"done": True}
        try:
            progress = self.trial.advance()
        except Exception as error:  # noqa: BLE001 - told apart below, and raised again when not the user's
            self._fail(error)
            return {"done": True}
        done = self.trial.done
        if done:
            end_attempt(self.folder)
            # Not left to Tune, which keeps the process for the next run and calls it much later.
            self.cleanup()
            self.ended = True
        scores = progress.metrics if progress.phase == "validated" else {}
        return {"done": done, "step": progress.step, **scores}

    def _open(self, config: dict[str, Any]) -> None:
        """Take the run's lease and open it, or note why there is nothing to do."""
        from tepo_lab.train.trial import Trial

        try:
            self.lease = Lease(self.folder).__enter__()
        except LeaseHeldError:
            # Another process runs it; the session waits for that.
            self.ended = True
            return
        try:
            # Tune tries again at once; what failed the last attempt (a full disk, a busy card) may need a while.
            time.sleep(retry_seconds(begin_attempt(self.folder, config["session"])))
            spec = validate(RunSpec, self.folder.run()["spec"], where=str(self.folder.run_file))
            if is_over(self.folder, spec):
                # Another process finished it since it was planned.
                end_attempt(self.folder)
                self.cleanup()
                self.ended = True
                return
            if spec.arm.trained:
                go_back_to_records(self.folder, spec.trainer.checkpoint_every)
            stop = [validate(StopRule, rule, where="stop") for rule in config["stop"]]
            search = validate(Search, config["search"], where="search") if config["search"] else None
            self.trial = Trial(spec, self.folder, stop=stop, search=search)
        except Exception as error:  # noqa: BLE001 - told apart below, and raised again when not the user's
            self._fail(error)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Serve another run in this process, with everything already imported."""
        self.cleanup()
        self.setup(new_config)
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the run's folder holds its checkpoints."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: `setup` has found the newest checkpoint."""

    def cleanup(self) -> None:
        if self.trial is not None:
            self.trial.close()
            self.trial = None
        if self.lease is not None:
            self.lease.__exit__()
            self.lease = None

    def _fail(self, error: Exception) -> None:
        """Record a failure. One of the machine's is raised, so that Tune tries again."""
        log_error(self.folder, error)
        is_machine = is_machine_failure(error)
        if not is_machine:
            record_user_failure(self.folder, error)
            end_attempt(self.folder)
        self.cleanup()
        if is_machine:
            raise error
        self.ended = True
