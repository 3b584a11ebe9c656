"""Who is running a run: a file in its folder, kept alive by a heartbeat, taken over when its owner is dead."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder, write_json
from tepo_lab.records.lease_file import STALE_SECONDS, read_lease
from tepo_lab.records.processes import birth, pid_namespace

HEARTBEAT_SECONDS = 5.0


class LeaseHeldError(RecordError):
    """Another living process runs this run."""


class Lease:
    """Holds a run while in use as a context manager. Raises `LeaseHeldError` when another living process holds it.

    Args: `session` of whoever holds it, by which others of that session know it for their own.
    """

    def __init__(self, folder: RunFolder, session: str | None = None) -> None:
        self.folder = folder
        self._stopped = threading.Event()
        self._renewed = 0.0
        self._owner = {
            "host": socket.gethostname(),
            "pids": pid_namespace(),
            "pid": os.getpid(),
            "born": birth(os.getpid()),
            "token": uuid.uuid4().hex,
            "session": session,
        }
        self._thread = threading.Thread(target=self._beat, name=f"lease {folder.name}", daemon=True)

    def __enter__(self) -> Lease:
        self.folder.path.mkdir(parents=True, exist_ok=True)
        while (now := self._claim()) is not None:
            held = read_lease(self.folder.lease_file)
            if held is None:
                continue
            if held.lives(now):
                raise LeaseHeldError(
                    f"run {self.folder.name} is held by process {held.owner.get('pid')} on {held.owner['host']}; "
                    "wait for it to end, or end it."
                )
            self._remove_if(held.owner)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._remove_if(self._owner)

    def check(self) -> None:
        """Raise `LeaseHeldError` when another process has taken the run over: this one must not write to it again."""
        if self._is_lost():
            raise LeaseHeldError(f"run {self.folder.name} was taken over by another process.")

    def _is_lost(self) -> bool:
        """Whether another process has taken the run over, or may have, and is done with it."""
        found = read_lease(self.folder.lease_file)
        if found is None:
            # Who finds a dead lease may move a new one for a moment. Nobody takes over what was renewed just now.
            return time.time() - self._renewed > STALE_SECONDS
        return found.owner.get("token") != self._owner["token"]

    def _claim(self) -> float | None:
        """Create the lease file if there is none: a hard link either appears whole or fails.

        Returns None, or where there is one, the time now by the clock that dates it: other machines have their own.
        """
        draft = self.folder.path / f".lease.{self._owner['token']}"
        try:
            self._write(draft)
            os.link(draft, self.folder.lease_file)
        except FileExistsError:
            return draft.stat().st_mtime
        finally:
            for path in self.folder.path.glob(f".*{self._owner['token']}*"):
                path.unlink(missing_ok=True)
        return None

    def _write(self, path: Path) -> None:
        now = time.time()
        write_json(path, self._owner | {"time": now})
        self._renewed = now

    def _remove_if(self, owner: dict[str, Any]) -> None:
        """Remove the lease if it is still `owner`'s; another may have taken a dead one over first.

        It is moved out of the way before it is looked at a last time: of several that find the same dead lease one
        moves it, and another that has moved the new one instead puts that back.
        """
        found = read_lease(self.folder.lease_file)
        if found is None or found.owner.get("token") != owner.get("token"):
            return
        aside = self.folder.path / f".lease.{self._owner['token']}.aside"
        try:
            self.folder.lease_file.rename(aside)
        except FileNotFoundError:
            return
        moved = read_lease(aside)
        if moved is not None and moved.owner.get("token") != owner.get("token"):
            # Where its owner has renewed it meanwhile, there is nothing to put back.
            with suppress(FileExistsError):
                os.link(aside, self.folder.lease_file)
        aside.unlink()

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            # A full disk takes no heartbeat, nor a process without a file left to open; the next may do better.
            with suppress(OSError):
                if self._is_lost():
                    return
                self._write(self.folder.lease_file)
