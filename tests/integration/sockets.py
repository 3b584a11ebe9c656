"""The sockets on which processes listen, as Linux tells them."""

from __future__ import annotations

from pathlib import Path

#: 127.0.0.1, the same in IPv6 clothes, and ::1, as /proc/net writes them.
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}

#: The state of a socket that listens.
LISTENS = "0A"


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
