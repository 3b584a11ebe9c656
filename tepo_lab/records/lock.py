"""Which process runs a run: a file lock on one machine, and a heartbeat by which another node may take over.

`run.lock` is locked (flock) as long as its owner lives, however it ends. Another node may not see that lock, so the
owner also writes lease.json and touches it every few seconds: a lease of another node counts until it is
`STALE_SECONDS` old. Its token is the owner's; who reads another token there has lost the run and must not write to it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from typing import Any

from filelock import FileLock, Timeout

from tepo_lab.errors import RecordError, is_machine_failure
from tepo_lab.records.files import RunFolder, read_record, write_json

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 60.0

#: Seconds for which an owner tries: whoever asks whether a run is locked has its lock for a moment.
_PATIENCE_SECONDS = 2.0


class RunLockedError(RecordError):
    """Another living process runs this run."""


class RunLock:
    """Owns a run while in use as a context manager. Raises `RunLockedError` when another living process owns it.

    Args: `session` of the owner, by which another node recognises a lease of its own session.
    """

    def __init__(self, folder: RunFolder, session: str | None = None) -> None:
        self.folder = folder
        self._lock = _file_lock(folder, _PATIENCE_SECONDS)
        self._session = session
        self._owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "token": uuid.uuid4().hex,
            "session": session,
            "time": time.time(),
        }
        self._released = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, name=f"lease {folder.name}", daemon=True)

    def __enter__(self) -> RunLock:
        self.folder.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except Timeout:
            raise RunLockedError(_in_use(self.folder)) from None
        except OSError as error:
            if is_machine_failure(error):
                raise
            raise RecordError(
                f"{self.folder.lock_file} cannot be locked ({error.strerror}): make it writable, or remove it."
            ) from None
        try:
            # Touched here, the lock file has the time of the clock that dates the lease, the file server's.
            os.utime(self.folder.lock_file)
            if _is_alive_elsewhere(self.folder, self.folder.lock_file.stat().st_mtime, self._session):
                raise RunLockedError(_in_use(self.folder))
            write_json(self.folder.lease_file, self._owner)
        except BaseException:
            self._lock.release()
            raise
        self._heartbeat.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._released.set()
        self._heartbeat.join()
        if self._is_ours():
            self.folder.lease_file.unlink(missing_ok=True)
        self._lock.release()

    def check(self) -> None:
        """Raise `RunLockedError` when another node has taken the run over: this process must not write to it again."""
        if not self._is_ours():
            raise RunLockedError(f"run {self.folder.name} was taken over by another process.")

    def _is_ours(self) -> bool:
        return _lease(self.folder).get("token") == self._owner["token"]

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            # A process without a file left to open misses a beat; a later one comes.
            with suppress(OSError):
                if self._is_ours():
                    os.utime(self.folder.lease_file)


def is_locked(folder: RunFolder) -> bool:
    """Whether a living process owns the run."""
    if not folder.lease_file.exists():
        return False
    if _is_alive_elsewhere(folder, time.time(), None):
        return True
    try:
        with _file_lock(folder, 0):
            return False
    except Timeout:
        return True
    except OSError:
        # A folder that this user cannot write to: the heartbeat alone is to be seen.
        return _is_fresh(folder, time.time())


def lease_session(folder: RunFolder) -> str | None:
    """The session of the run's last owner, if its lease is still there."""
    return _lease(folder).get("session")


def _file_lock(folder: RunFolder, seconds: float) -> FileLock:
    # Entered in one thread and left in another (an attempt is closed by Ray), so the lock is not of one thread.
    return FileLock(folder.lock_file, timeout=seconds, thread_local=False)


def _is_alive_elsewhere(folder: RunFolder, now: float, session: str | None) -> bool:
    """Whether a lease of another node, and of another session, was renewed lately by the clock that gave `now`."""
    owner = _lease(folder)
    if owner.get("host") in (None, socket.gethostname()) or (session is not None and owner.get("session") == session):
        return False
    return _is_fresh(folder, now)


def _is_fresh(folder: RunFolder, now: float) -> bool:
    with suppress(FileNotFoundError):
        return now - folder.lease_file.stat().st_mtime <= STALE_SECONDS
    return False


def _lease(folder: RunFolder) -> dict[str, Any]:
    """The owner in lease.json; empty where there is none, or no owner's."""
    try:
        values = json.loads(read_record(folder.lease_file))
    except (FileNotFoundError, RecordError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _in_use(folder: RunFolder) -> str:
    owner = _lease(folder)
    who = f"process {owner.get('pid')} on {owner.get('host')}" if owner else "another process"
    return f"run {folder.name} is in use by {who}: wait for it to end, or end it."
