"""An attempt at a run, by one process or several: its lease, its wait after failures, its trial, and its end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo_lab.execute.planning.hub_commits import WAITS, at_commits, check_model
from tepo_lab.execute.planning.provenance import hardware
from tepo_lab.execute.running.failures import begin_attempt, end_attempt, retry_seconds
from tepo_lab.execute.running.prepare import begin, draft_file
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory
from tepo_lab.records.lock import RunLock, RunLockedError
from tepo_lab.schema.base import validate
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.sweep import Search, StopRule
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup

if TYPE_CHECKING:
    from tepo_lab.train.trial import Progress


class Attempt:
    """Opens the run of `config["folder"]` at the first `advance`, and goes on with it until it is over.

    Of several processes the first holds the lease; all must make the same calls. What `advance` raises ends the
    attempt, and `close` must follow.
    """

    def __init__(self, config: dict[str, Any], process_group: ProcessGroup = SINGLE_PROCESS) -> None:
        self.config = config
        self.process_group = process_group
        self.folder = RunFolder(Path(config["folder"]))
        self.lease: RunLock | None = None
        self.trial: Any = None

    def advance(self) -> Progress | None:
        """Do the next thing of the run. None when there is nothing to do: it is over, or another process has it."""
        try:
            if self.trial is None and not self._open():
                return None
            self.process_group.on_rank_zero(self._check_lease)
            progress: Progress = self.trial.advance()
        except Exception as error:
            # Another process runs it (this one was taken for dead, perhaps); the session waits for that. What that one
            # has done to the records meanwhile is no failure of this one.
            if not isinstance(error, RunLockedError) and not self._is_taken_over():
                raise
            self.close()
            return None
        if self.trial.done:
            self.process_group.on_rank_zero(lambda: end_attempt(self.folder))
        return progress

    @property
    def is_over(self) -> bool:
        """Whether the last `advance` ended the run."""
        return self.trial is not None and self.trial.done

    def close(self) -> None:
        """Give back what the trial holds, and the lease."""
        if self.trial is not None:
            self.trial.close()
            self.trial = None
        if self.lease is not None:
            self.lease.__exit__()
            self.lease = None

    def _open(self) -> bool:
        from tepo_lab.train.trial import Trial

        spec = self.process_group.on_rank_zero(self._begin)
        if spec is None:
            return False
        stop = [validate(StopRule, rule, where="stop") for rule in self.config["stop"]]
        search = validate(Search, self.config["search"], where="search") if self.config["search"] else None
        self.trial = Trial(
            spec,
            self.folder,
            stop=stop,
            search=search,
            process_group=self.process_group,
            hardware=hardware(),
            guard=self._check_lease,
        )
        return True

    def _begin(self) -> RunSpec | None:
        """Take the lease, and write down what is asked.

        Returns the run, or None where nothing is left to do: another process has finished it, or gone past it.
        """
        session = self.config["session"]
        self.lease = RunLock(self.folder, session).__enter__()
        # Tune tries again at once; what failed the last attempt (a full disk, a busy card) may need a while.
        time.sleep(retry_seconds(begin_attempt(self.folder, session)))
        self._check_lease()
        asked = self._asked()
        if asked is None or not begin(self.folder, asked):
            end_attempt(self.folder)
            return None
        history = RunHistory.read(self.folder, owned_by_us=True)
        spec = validate(RunSpec, history.spec, where=str(self.folder.run_file))
        pinned = at_commits(spec, history.made_with[-1] if history.made_with else {})
        check_model(pinned.model, WAITS)
        return pinned

    def _asked(self) -> dict[str, Any] | None:
        """What the session asks of the run; None when the session is over."""
        try:
            asked: dict[str, Any] = json.loads(draft_file(Path(self.config["drafts"]), self.folder).read_bytes())
        except FileNotFoundError:
            return None
        return asked

    def _check_lease(self) -> None:
        if self.lease is not None:
            self.lease.check()

    def _is_taken_over(self) -> bool:
        try:
            self._check_lease()
        except RunLockedError:
            return True
        return False
