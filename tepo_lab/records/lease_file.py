"""Whether a living process holds a run, as the lease in its folder tells.

A lease is {host, pids, pid, born, token, time}: the machine's name and its numbering of processes, the owner's number
and birth in it, and what no other owner has. `time` is for people: when it was renewed is told by the file's own date.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo_lab.records.files import RunFolder
from tepo_lab.records.processes import birth, pid_namespace

#: A lease this old is dead when nothing is known of its owner's process, as of another machine's. An owner on this one
#: lives as long as its process: a suspended one, or one that cannot write because the disk is full, goes on one day.
STALE_SECONDS = 60.0


@dataclass(frozen=True)
class Held:
    """A lease as it was found: what it says of its owner (nothing where it is damaged), and when it was last renewed.

    `renewed` is Unix seconds by the clock of the file's server, which may be another than this machine's.
    """

    owner: dict[str, Any]
    renewed: float

    def lives(self, now: float) -> bool:
        """Whether the owner lives. Args: `now`, Unix seconds by the clock of the file's server."""
        if not isinstance(self.owner.get("host"), str):
            # Leases are written whole; a damaged one has no living writer.
            return False
        here = (socket.gethostname(), pid_namespace())
        if (self.owner["host"], self.owner.get("pids")) == here and self.owner.get("born") is not None:
            pid = self.owner.get("pid")
            return isinstance(pid, int) and birth(pid) == self.owner["born"]
        return now - self.renewed <= STALE_SECONDS


def is_held(folder: RunFolder) -> bool:
    """Whether a living process holds the run.

    Nothing is written, so that this machine's clock stands for the file server's. Who takes a lease over asks that one.
    """
    held = read_lease(folder.lease_file)
    return held is not None and held.lives(time.time())


def read_lease(path: Path) -> Held | None:
    """The lease in a file, None where there is none."""
    try:
        # Over a network only a file that was opened is sure to be the newest.
        with path.open("rb") as stream:
            renewed = os.fstat(stream.fileno()).st_mtime
            text = stream.read()
    except FileNotFoundError:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    return Held(values if isinstance(values, dict) else {}, renewed)
