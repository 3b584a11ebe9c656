"""Where Ray Tune keeps what it needs of a session, named so that any machine can tell whose it is."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path

from tepo_lab.records.processes import birth, pid_namespace

#: What another machine's process may be writing is left alone for so many seconds after its last change: a day.
STALE_SECONDS = 86_400.0


def scratch_folder(home: Path, sweep: str) -> Path:
    """This process's folder for a sweep: HOME/ray/<sweep>-<machine>-<process>-<birth>."""
    return home / "ray" / f"{sweep}-{_machine()}-{os.getpid()}-{birth(os.getpid()) or 0}"


def is_left_over(path: Path) -> bool:
    """Whether the session that a scratch folder belongs to has ended.

    Of another machine's, which shares the home, that is told by the time of its last change alone.
    """
    owner = re.fullmatch(r".+-(\w+)-(\d+)-(\d+)", path.name)
    if owner is None or owner[1] != _machine():
        return path.is_dir() and is_stale(path)
    return (birth(int(owner[2])) or "0") != owner[3]


def is_stale(path: Path) -> bool:
    """Whether nothing in a file or folder has changed for `STALE_SECONDS`."""
    try:
        changed = max(each.lstat().st_mtime for each in (path, *path.rglob("*")))
    except FileNotFoundError:
        # Gone since it was listed: someone is at work here.
        return False
    return time.time() - changed > STALE_SECONDS


def _machine() -> str:
    """This machine's name and its numbering of processes, which containers of one name have each for themselves."""
    numbering = re.sub(r"\D", "", pid_namespace() or "")
    return re.sub(r"\W", "_", f"{socket.gethostname()}_{numbering}")
