"""An attempt at a run, by one process or several: its lock, its wait after failures, its trial, and its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo_lab.execute.planning.actions import Action, action
from tepo_lab.execute.planning.hub_commits import WAITS, at_commits, check_model
from tepo_lab.execute.planning.made_with import hardware
from tepo_lab.execute.running.failures import begin_attempt, end_attempt, retry_seconds
from tepo_lab.execute.running.prepare import begun_file, read_request, write_run
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory
from tepo_lab.records.lock import RunLock, RunLockedError
from tepo_lab.schema.base import validate
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.sweep import Search, StopRule
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup

if TYPE_CHECKING:
    from tepo_lab.train.trial import Progress, Trial


class Attempt:
    """Opens the run of `config["folder"]` at the first `advance`, and goes on with it until it is over.

    Rank 0 owns the run's lock; all ranks must make the same calls. What `advance` raises ends the attempt, and `close`
    must follow.
    Args: `config`: the run's `folder`, the session's folder of `requests`, its name (`session`), the `stop` rules and
    the `search` (or None) as plain values.
    """

    def __init__(self, config: dict[str, Any], process_group: ProcessGroup = SINGLE_PROCESS) -> None:
        self.config = config
        self.process_group = process_group
        self.folder = RunFolder(Path(config["folder"]))
        self.lock: RunLock | None = None
        self.trial: Trial | None = None

    def advance(self) -> Progress | None:
        """Do the next thing of the run. None when there is nothing to do: it is over, or another process owns it."""
        try:
            if self.trial is None:
                self.trial = self._open()
            if self.trial is None:
                return None
            self.process_group.on_rank_zero(self._check_lock)
            progress = self.trial.advance()
        except Exception as error:
            # Another process owns the run (this one was taken for dead, perhaps), and what that one has done to the
            # records meanwhile is no failure of this one. The session waits for it.
            if not isinstance(error, RunLockedError) and not self._is_taken_over():
                raise
            self.close()
            return None
        if self.is_over:
            self.process_group.on_rank_zero(lambda: end_attempt(self.folder))
        return progress

    @property
    def is_over(self) -> bool:
        """Whether the last `advance` ended the run."""
        return self.trial is not None and self.trial.done

    def close(self) -> None:
        """Release what the trial holds, and the lock."""
        if self.trial is not None:
            self.trial.close()
            self.trial = None
        if self.lock is not None:
            self.lock.__exit__()
            self.lock = None

    def _open(self) -> Trial | None:
        from tepo_lab.train.trial import Trial

        spec = self.process_group.on_rank_zero(self._begin)
        if spec is None:
            return None
        search = self.config["search"]
        return Trial(
            spec,
            self.folder,
            stop=[validate(StopRule, rule, where="stop") for rule in self.config["stop"]],
            search=validate(Search, search, where="search") if search else None,
            process_group=self.process_group,
            hardware=hardware(),
            guard=self._check_lock,
        )

    def _begin(self) -> RunSpec | None:
        """Lock the run and write its run.json.

        Returns the run, or None where nothing is left to do: another process has finished it, or gone past what this
        session asks for, or the session is over.
        """
        session = self.config["session"]
        self.lock = RunLock(self.folder, session).__enter__()
        # Tune tries again at once; what failed the last attempt (a full disk, a busy GPU) may need a while.
        time.sleep(retry_seconds(begin_attempt(self.folder, session)))
        self.lock.check()
        request = read_request(Path(self.config["requests"]), self.folder)
        if request is not None:
            spec = validate(RunSpec, request["spec"], where=str(self.folder.run_file))
            history = RunHistory.read(self.folder, owned_by_us=True)
            if action(history, spec)[0] not in (Action.SKIP, Action.BLOCKED):
                pinned = at_commits(spec, write_run(history, request))
                check_model(pinned.model, WAITS)
                begun_file(Path(self.config["requests"]), self.folder).touch()
                return pinned
        end_attempt(self.folder)
        return None

    def _check_lock(self) -> None:
        if self.lock is not None:
            self.lock.check()

    def _is_taken_over(self) -> bool:
        try:
            self._check_lock()
        except RunLockedError:
            return True
        return False
