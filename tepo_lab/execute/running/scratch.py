"""Where Ray Tune stores what it needs of a session: a folder that is locked as long as its session lives."""

from __future__ import annotations

import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

#: Seconds after its last change from which a file or folder of another machine counts as left over: a day.
STALE_SECONDS = 86_400.0

_LOCK = "session.lock"


@contextmanager
def scratch_folder(home: Path, sweep: str) -> Iterator[Path]:
    """A new folder HOME/ray/<sweep>-<host>-<8 hex digits>, locked by this process, removed at the end."""
    folder = home / "ray" / f"{sweep}-{_host()}-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    with FileLock(folder / _LOCK):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def is_left_over(folder: Path) -> bool:
    """Whether the session of a scratch folder has ended: its lock is free.

    A lock of another host may not be visible here: its folder is left over when nothing in it has changed for a day.
    A link is never followed to a lock.
    """
    lock = folder / _LOCK
    if f"-{_host()}-" not in folder.name or folder.is_symlink() or lock.is_symlink() or not lock.is_file():
        return folder.is_dir() and is_stale(folder)
    try:
        with FileLock(lock, timeout=0):
            return True
    except Timeout:
        return False


def is_stale(path: Path) -> bool:
    """Whether nothing in a file or folder has changed for `STALE_SECONDS`."""
    try:
        changed = max(part.lstat().st_mtime for part in (path, *path.rglob("*")))
    except FileNotFoundError:
        # It was removed since it was listed: another process works here.
        return False
    return time.time() - changed > STALE_SECONDS


def _host() -> str:
    return re.sub(r"\W", "_", socket.gethostname())
