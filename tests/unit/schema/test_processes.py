from __future__ import annotations

import subprocess
import sys

from tepo_lab.records.processes import children, lives


def test_a_process_lives_until_it_has_died_whether_or_not_it_was_asked_about():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = children_name(process.pid)
    assert process.pid in children((name,))
    assert process.pid not in children(("raylet",))
    assert lives(process.pid)
    process.kill()
    # Not yet waited for: the system still lists it.
    process.stdin.close()
    while lives(process.pid):
        pass
    assert process.pid not in children((name,))
    process.wait()
    assert not lives(process.pid)


def children_name(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stream:
        return stream.read().partition("(")[2].rpartition(")")[0]
