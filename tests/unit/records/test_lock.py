"""A run has one owner: processes of one machine by a file lock, other nodes by a heartbeat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tepo_lab.errors import RecordError
from tepo_lab.records import lock
from tepo_lab.records.files import RunFolder
from tepo_lab.records.lock import STALE_SECONDS, RunLock, RunLockedError, is_locked, lease_session
from tests.leases import lease_of_another_node

OWNER = """
import sys, time; from pathlib import Path
from tepo_lab.records.files import RunFolder
from tepo_lab.records.lock import RunLock
RunLock(RunFolder(Path(sys.argv[1])), "theirs").__enter__(); print("owned", flush=True); time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "_PATIENCE_SECONDS", 0.05)
    return RunFolder(tmp_path / "runs" / "tepo-nano-s1-0123abcd")


def test_a_lock_that_cannot_be_opened_is_named(folder):
    folder.lock_file.mkdir(parents=True)
    assert not is_locked(folder)
    with pytest.raises(RecordError, match=r"run\.lock"), RunLock(folder):
        pass


def test_a_run_is_locked_while_in_use(folder):
    assert not is_locked(folder)
    with RunLock(folder, "ours") as owner:
        assert is_locked(folder)
        assert lease_session(folder) == "ours"
        owner.check()
        with pytest.raises(RunLockedError), RunLock(folder):
            pass
        # However old the heartbeat: a suspended owner on this machine goes on one day.
        os.utime(folder.lease_file, (0, 0))
        assert is_locked(folder)
    assert not is_locked(folder)
    assert not folder.lease_file.exists()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_owner_frees_its_run_at_once(folder, end):
    folder.path.mkdir(parents=True)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder.path)], stdout=subprocess.PIPE)
    assert owner.stdout.readline() == b"owned\n"
    assert is_locked(folder)
    owner.send_signal(end)
    owner.wait(20)
    assert folder.lease_file.exists()
    assert not is_locked(folder)
    with RunLock(folder):
        assert is_locked(folder)


def test_another_node_owns_its_run_as_long_as_its_heart_beats(folder):
    lease_of_another_node(folder)
    assert is_locked(folder)
    with pytest.raises(RunLockedError, match="elsewhere"), RunLock(folder):
        pass
    # Refused, it has left the lease alone and the lock free.
    assert is_locked(folder)
    lease_of_another_node(folder, age=STALE_SECONDS + 5)
    assert not is_locked(folder)
    with RunLock(folder):
        assert is_locked(folder)


def test_a_dead_node_of_the_same_session_is_taken_over_at_once(folder):
    lease_of_another_node(folder, session="ours")
    with RunLock(folder, "ours") as owner:
        owner.check()
        assert lease_session(folder) == "ours"


def test_an_owner_that_was_taken_over_may_not_write(folder, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.01)
    with RunLock(folder) as owner:
        lease_of_another_node(folder, age=30)
        beat = folder.lease_file.stat().st_mtime
        with pytest.raises(RunLockedError):
            owner.check()
        time.sleep(0.05)
        assert folder.lease_file.stat().st_mtime == beat
    # Nor does it remove the other's lease.
    assert folder.lease_file.exists()


@pytest.mark.parametrize("content", [b"", b"{not json", b"[]", b"{}"])
def test_a_lease_that_names_no_owner_locks_nothing(folder, content):
    folder.path.mkdir(parents=True)
    folder.lease_file.write_bytes(content)
    assert not is_locked(folder)
    with RunLock(folder):
        assert is_locked(folder)
