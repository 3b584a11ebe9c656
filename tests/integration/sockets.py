"""The sockets on which processes listen, as Linux tells them."""

from __future__ import annotations

from pathlib import Path

#: 127.0.0.1, the same in IPv6 clothes, and ::1, as /proc/net writes them.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}

#: The state of a socket that listens.
LISTENS = "0A"


def descendants(pid: int) -> set[int]:
    """The process and all that it started, directly or not."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = {pid}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return family


def listening(pids: set[int]) -> set[str]:
    """The addresses that processes listen on."""
    inodes = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(path.readlink().name.removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {fields[1].partition(":")[0] for fields in lines if fields[3] == LISTENS and fields[9] in inodes}
