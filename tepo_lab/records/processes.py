"""Processes of this machine, as Linux tells of them; elsewhere nothing is known of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process: `state` is Z when it has died and waits to be asked about it; `born` in clock ticks since boot.

    Number and birth together tell it from another process that is later given the same number.
    """

    pid: int
    name: str
    state: str
    parent: int
    born: str
    cpu_seconds: float

    @property
    def lives(self) -> bool:
        return self.state != "Z"


def process(pid: int) -> Process | None:
    """What is known of a process; None for no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, rest = text.rpartition(")")
    # proc(5): these are its fields from the third on.
    fields = rest.split()
    cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Process(pid, head.partition("(")[2], fields[0], int(fields[1]), fields[19], cpu_seconds)


def processes() -> Iterator[Process]:
    """All processes of this machine, dead ones that wait among them."""
    for folder in Path("/proc").glob("[0-9]*"):
        found = process(int(folder.name))
        if found is not None:
            yield found


def descendants(pid: int) -> list[Process]:
    """The process and all that it started, directly or not."""
    found, family = list(processes()), {pid}
    # A parent may have a higher number than its child.
    while grown := {each.pid for each in found if each.parent in family} - family:
        family |= grown
    return [each for each in found if each.pid in family]


def children(names: Collection[str]) -> list[int]:
    """The numbers of this process's living children of those names."""
    return [each.pid for each in processes() if each.parent == os.getpid() and each.lives and each.name in names]


def lives(pid: int) -> bool:
    """Whether there is such a process and it has not died."""
    return birth(pid) is not None


def birth(pid: int) -> str | None:
    """When a living process started, in clock ticks since boot; None for no such process, or where nothing is known.

    Tells a process from another that was later given the same number.
    """
    found = process(pid)
    return found.born if found is not None and found.lives else None


def pid_namespace() -> str | None:
    """Which numbering of processes holds here: containers may share a host's name and not its processes."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
