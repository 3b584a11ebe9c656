"""A trial as Ray Tune runs it. Failures of the user's making end the run; failures of the machine reach Tune."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

from ray import tune

from tepo_lab.errors import TepoLabError
from tepo_lab.execute.lease import Lease, LeaseHeldError
from tepo_lab.execute.ledger import is_over
from tepo_lab.schema.base import validate
from tepo_lab.schema.record import RunFolder, append_line
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.sweep import StopRule

#: Faults of the machine that show as an operating-system error.
_MACHINE_ERRNO = {errno.ENOSPC, errno.EIO, errno.ENOMEM, errno.EDQUOT, errno.ESTALE}


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """One `Trial` a time in a process that serves one run after another.

    Each `step` is one `Trial.advance`. Tune's own checkpoints are empty: a trial finds its own in its folder.
    """

    def setup(self, config: dict[str, Any]) -> None:
        # Imported in the worker: the driver schedules without loading torch.
        from tepo_lab.train.trial import Trial

        self.folder = RunFolder(Path(config["folder"]))
        self.lease: Lease | None = None
        self.trial: Any = None
        self.ended = False
        try:
            self.lease = Lease(self.folder).__enter__()
        except LeaseHeldError:
            # Another process runs it; the session waits for that.
            self.ended = True
            return
        try:
            spec = validate(RunSpec, self.folder.run()["spec"], where=str(self.folder.run_file))
            if is_over(self.folder, spec):
                # Another process finished it since it was planned.
                self.ended = True
                return
            stop = [validate(StopRule, rule, where="stop") for rule in config["stop"]]
            self.trial = Trial(spec, self.folder, stop=stop)
        except Exception as error:  # noqa: BLE001 - told apart below, and raised again when not the user's
            self._fail(error)

    def step(self) -> dict[str, Any]:
        if self.ended:
            return {"done": True}
        try:
            progress = self.trial.advance()
        except Exception as error:  # noqa: BLE001 - told apart below, and raised again when not the user's
            self._fail(error)
            return {"done": True}
        done = self.trial.done
        if done:
            # Not left to Tune, which keeps the process for the next run and calls it much later.
            self.cleanup()
        return {"done": done, "step": progress.step}

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
        is_machine = _is_machine_failure(error)
        text = "".join(traceback.format_exception(error))
        with self.folder.log_file.open("a", encoding="utf-8") as log:
            log.write(text)
        self.cleanup()
        if is_machine:
            raise error
        self.ended = True
        message = str(error) if isinstance(error, TepoLabError) else f"{type(error).__name__}: {error}"
        frames = [f"{frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
        fingerprint = hashlib.sha256(json.dumps([type(error).__name__, frames]).encode()).hexdigest()[:12]
        step = max((int(event.get("step", 0)) for event in self.folder.events()), default=0)
        append_line(
            self.folder.events_file,
            {
                "time": time.time(),
                "event": "failed",
                "step": step,
                "kind": "user",
                "error": " ".join(message.split())[:500],
                "fingerprint": fingerprint,
                "pid": os.getpid(),
            },
        )


def _is_machine_failure(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"OutOfMemoryError", "AcceleratorError"} or isinstance(error, MemoryError):
        return True
    return isinstance(error, OSError) and error.errno in _MACHINE_ERRNO
