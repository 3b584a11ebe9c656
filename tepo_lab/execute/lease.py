"""Who is running a run: a file in its folder, kept alive by a heartbeat, taken over when its owner is dead."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from tepo_lab.errors import RecordError
from tepo_lab.execute.processes import process
from tepo_lab.schema.record import RunFolder, write_json

HEARTBEAT_SECONDS = 5.0

#: A lease this old is dead when its owner ran on another machine. An owner on this one lives as long as its process: a
#: suspended one, or one that cannot write because the disk is full, goes on one day.
STALE_SECONDS = 60.0


def is_held(folder: RunFolder) -> bool:
    """Whether a living process holds the run."""
    lease = _read(folder.lease_file)
    return lease is not None and _is_alive(lease)


class LeaseHeldError(RecordError):
    """Another living process runs this run."""


class Lease:
    """Holds a run while in use as a context manager. Raises `LeaseHeldError` when another living process holds it."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._stopped = threading.Event()
        self._owner = {
            "host": socket.gethostname(),
            "pids": pid_namespace(),
            "pid": os.getpid(),
            "born": birth(os.getpid()),
            "token": uuid.uuid4().hex,
        }
        self._thread = threading.Thread(target=self._beat, name=f"lease {folder.name}", daemon=True)

    def __enter__(self) -> Lease:
        self.folder.path.mkdir(parents=True, exist_ok=True)
        while not self._claim():
            held = _read(self.folder.lease_file)
            if held is None:
                continue
            if _is_alive(held):
                raise LeaseHeldError(
                    f"run {self.folder.name} is held by process {held.get('pid')} on {held.get('host')}; "
                    "wait for it to end, or end it."
                )
            self._remove_if(held)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._remove_if(self._owner)

    def check(self) -> None:
        """Raise `LeaseHeldError` when another process has taken the run over: this one must not write to it again."""
        found = _read(self.folder.lease_file)
        if found is not None and found.get("token") != self._owner["token"]:
            raise LeaseHeldError(f"run {self.folder.name} was taken over by process {found.get('pid')}.")

    def _claim(self) -> bool:
        """Create the lease file if there is none: a hard link either appears whole or fails."""
        draft = self.folder.path / f".lease.{self._owner['token']}"
        try:
            write_json(draft, self._owner | {"time": time.time()})
            os.link(draft, self.folder.lease_file)
        except FileExistsError:
            return False
        finally:
            for path in self.folder.path.glob(f".*{self._owner['token']}*"):
                path.unlink(missing_ok=True)
        return True

    def _remove_if(self, owner: dict[str, Any]) -> None:
        """Remove the lease if it is still `owner`'s; another may have taken a dead one over first.

        It is moved out of the way before it is looked at a last time: of several that find the same dead lease one
        moves it, and another that has moved the new one instead puts that back.
        """
        found = _read(self.folder.lease_file)
        if found is None or found.get("token") != owner.get("token"):
            return
        aside = self.folder.path / f".lease.{self._owner['token']}.aside"
        try:
            self.folder.lease_file.rename(aside)
        except FileNotFoundError:
            return
        moved = _read(aside)
        if moved is not None and moved.get("token") != owner.get("token"):
            # Where its owner has renewed it meanwhile, there is nothing to put back.
            with suppress(FileExistsError):
                os.link(aside, self.folder.lease_file)
        aside.unlink()

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            found = _read(self.folder.lease_file)
            if found is not None and found.get("token") != self._owner["token"]:
                return
            # A full disk takes no heartbeat; the next may find room again.
            with suppress(OSError):
                write_json(self.folder.lease_file, self._owner | {"time": time.time()})


def _read(path: Path) -> dict[str, Any] | None:
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        # Leases are written whole; a damaged one has no living writer.
        return {}
    return values if isinstance(values, dict) else {}


def _is_alive(lease: dict[str, Any]) -> bool:
    if (lease.get("host"), lease.get("pids")) == (socket.gethostname(), pid_namespace()):
        pid = lease.get("pid")
        return isinstance(pid, int) and birth(pid) == lease.get("born")
    renewed = lease.get("time")
    return isinstance(renewed, (int, float)) and time.time() - renewed <= STALE_SECONDS


def pid_namespace() -> str | None:
    """Which numbering of processes holds here: containers may share a host's name and not its processes."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def birth(pid: int) -> str | None:
    """When a process of this machine started, in clock ticks since boot; None for no such process.

    Tells a living owner from another process that was later given the same number.
    """
    found = process(pid)
    return found.born if found is not None and found.lives else None
