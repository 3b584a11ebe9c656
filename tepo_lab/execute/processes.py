"""Processes of this machine, as Linux tells of them; elsewhere nothing is known of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path


def children(names: Collection[str]) -> list[int]:
    """The numbers of this process's living children of those names."""
    return [pid for pid, name, parent in _all() if parent == os.getpid() and name in names]


def lives(pid: int) -> bool:
    """Whether there is such a process; one that has died and waits to be asked about it does not live."""
    found = _stat(pid)
    return found is not None and found[1] != "Z"


def _all() -> Iterator[tuple[int, str, int]]:
    for folder in Path("/proc").glob("[0-9]*"):
        found = _stat(int(folder.name))
        if found is not None and found[1] != "Z":
            yield int(folder.name), found[0], int(found[2])


def _stat(pid: int) -> tuple[str, str, str] | None:
    """Name, state and parent of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, rest = text.rpartition(")")
    state, parent = rest.split()[:2]
    return head.partition("(")[2], state, parent
