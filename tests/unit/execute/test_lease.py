from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time

import pytest
from tepo_lab.records.lease_file import STALE_SECONDS
from tests.leases import lease_of_another_machine

from tepo_lab.records import lease
from tepo_lab.records.files import RunFolder, append_line, write_json
from tepo_lab.records.lock import RunLock, RunLockedError


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def test_a_run_is_held_while_in_use_and_free_afterwards(folder):
    assert not is_locked(folder)
    with RunLock(folder):
        assert is_locked(folder)
        with pytest.raises(RunLockedError, match="is held by process"), RunLock(folder):
            pass
        assert is_locked(folder)
    assert not is_locked(folder)
    assert list(folder.path.iterdir()) == []


def test_a_dead_owners_lease_is_taken_over(folder):
    code = (
        "import os, sys; from pathlib import Path; from tepo_lab.records.lease import Lease; "
        "from tepo_lab.records.files import RunFolder; "
        "RunLock(RunFolder(Path(sys.argv[1]))).__enter__(); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder.path)], check=False, timeout=60)
    assert folder.lease_file.exists()
    assert not is_locked(folder)
    with RunLock(folder):
        assert is_locked(folder)


def test_a_lease_of_another_machine_lives_as_long_as_its_heartbeat(folder):
    lease_of_another_machine(folder)
    assert is_locked(folder)
    with pytest.raises(RunLockedError, match="is held by process 1 on elsewhere"), RunLock(folder):
        pass
    lease_of_another_machine(folder, age=STALE_SECONDS + 5)
    assert not is_locked(folder)
    with RunLock(folder):
        assert json.loads(folder.lease_file.read_text())["host"] != "elsewhere"


@pytest.mark.parametrize("ahead", [-3600, 3600])
def test_whether_a_lease_is_taken_over_is_asked_of_the_clock_that_dates_it(folder, monkeypatch, ahead):
    """That of the file's server; the clocks of the machines that share it may be far from it and from each other."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + ahead)
    lease_of_another_machine(folder, age=ahead + STALE_SECONDS / 2)
    with pytest.raises(RunLockedError), RunLock(folder):
        pass
    lease_of_another_machine(folder, age=ahead + STALE_SECONDS + 5)
    with RunLock(folder):
        assert json.loads(folder.lease_file.read_text())["host"] != "elsewhere"


def test_a_living_owner_on_this_machine_holds_its_run_however_old_its_heartbeat(folder):
    """It may be suspended, or its disk full; it goes on one day, and two must not."""
    with RunLock(folder):
        os.utime(folder.lease_file, (0, 0))
        assert is_locked(folder)
        with pytest.raises(RunLockedError), RunLock(folder):
            pass


def test_an_owner_in_another_container_of_this_name_lives_as_long_as_its_heartbeat(folder):
    with RunLock(folder):
        values = json.loads(folder.lease_file.read_text())
    write_json(folder.lease_file, values | {"pids": "pid:[1]", "pid": 999_999_999})
    assert is_locked(folder)


def test_a_heartbeat_leaves_the_lease_of_who_took_the_run_over(folder, monkeypatch):
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.02)
    with RunLock(folder):
        while json.loads(folder.lease_file.read_text())["token"] != "another":
            lease_of_another_machine(folder)
            time.sleep(0.1)
    assert json.loads(folder.lease_file.read_text())["token"] == "another"


def test_who_asks_before_it_writes_writes_no_more_once_the_run_was_taken_over(folder):
    def write():
        owner.check()
        append_line(folder.metrics_file, {"step": len(folder.metrics()) + 1})

    with RunLock(folder) as owner:
        write()
        lease_of_another_machine(folder)
        with pytest.raises(RunLockedError, match="was taken over"):
            write()
        assert len(folder.metrics()) == 1


def test_an_owner_that_slept_has_lost_the_run_also_to_one_that_is_done_with_it(folder, monkeypatch):
    """While it slept another may have taken the run over, ended it and given the lease back."""
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 3600.0)
    with RunLock(folder) as owner:
        folder.lease_file.unlink()
        # Another may only have moved it, to look at it.
        owner.check()
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + STALE_SECONDS + 1)
        with pytest.raises(RunLockedError, match="was taken over"):
            owner.check()


def test_a_heartbeat_that_finds_the_disk_full_is_followed_by_the_next(folder, monkeypatch):
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.02)
    write, failed = lease.write_json, []

    def full_for_a_while(path, values):
        if len(failed) < 3 and path == folder.lease_file:
            failed.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, values)

    with RunLock(folder):
        first = json.loads(folder.lease_file.read_text())["time"]
        monkeypatch.setattr(lease, "write_json", full_for_a_while)
        while json.loads(folder.lease_file.read_text())["time"] == first:
            time.sleep(0.01)
    assert len(failed) == 3


def test_a_lease_that_a_full_disk_refuses_leaves_nothing_behind(folder, monkeypatch):
    def full(path, values):
        path.write_text("half of i")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lease, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        RunLock(folder).__enter__()
    assert list(folder.path.iterdir()) == []


def test_the_heartbeat_renews_the_lease(folder, monkeypatch):
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.05)
    with RunLock(folder):
        first = json.loads(folder.lease_file.read_text())["time"]
        deadline = time.monotonic() + 10
        while json.loads(folder.lease_file.read_text())["time"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_damaged_lease_holds_nothing(folder):
    folder.path.mkdir()
    folder.lease_file.write_text("{not json")
    assert not is_locked(folder)
    with RunLock(folder):
        assert is_locked(folder)


@pytest.mark.parametrize(
    "wrong", [{"pid": None}, {"pid": "twelve"}, {"pid": 1.5}, {"host": None}, {"host": ["elsewhere"]}]
)
def test_a_lease_with_values_of_other_types_holds_nothing(folder, wrong):
    with RunLock(folder):
        values = json.loads(folder.lease_file.read_text())
    write_json(folder.lease_file, values | wrong)
    assert not is_locked(folder)
    with RunLock(folder):
        assert is_locked(folder)


def test_who_takes_a_dead_lease_over_too_late_leaves_the_new_owners(folder, monkeypatch):
    lease_of_another_machine(folder, age=3600, token="dead")
    with RunLock(folder):
        new = json.loads(folder.lease_file.read_text())
    lease_of_another_machine(folder, age=3600, token="dead")
    read, readings = lease.read_lease, []

    def overtaken(path):
        found = read(path)
        readings.append(found)
        if len(readings) == 2:
            write_json(folder.lease_file, new | {"host": "elsewhere"})
        return found

    monkeypatch.setattr(lease, "read_lease", overtaken)
    with pytest.raises(RunLockedError), RunLock(folder):
        pass
    assert [each.owner["token"] for each in readings[:2]] == ["dead", "dead"]
    assert json.loads(folder.lease_file.read_text())["token"] == new["token"]
    assert [path.name for path in folder.path.iterdir()] == ["lease.json"]
