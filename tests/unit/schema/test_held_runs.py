"""Whether a living process holds a run, as who only reads tells."""

from __future__ import annotations

import json
import os

import pytest
from tepo_lab.records.lease_file import STALE_SECONDS, read_lease
from tests.leases import lease_of_another_machine

from tepo_lab.records import lease as writing
from tepo_lab.records import lease_file as lease
from tepo_lab.records import processes
from tepo_lab.records.files import RunFolder, write_json
from tepo_lab.records.lock import RunLock


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def test_nothing_is_written_to_be_told(folder):
    assert not is_locked(folder)
    assert not folder.path.exists()
    lease_of_another_machine(folder)
    before = folder.path.stat().st_mtime_ns
    assert is_locked(folder)
    assert (folder.path.stat().st_mtime_ns, [each.name for each in folder.path.iterdir()]) == (before, ["lease.json"])


def test_a_heartbeat_is_as_old_as_the_file_whatever_its_writers_clock_said(folder):
    lease_of_another_machine(folder, time=0.0)
    assert is_locked(folder)
    found = read_lease(folder.lease_file)
    assert [found.lives(found.renewed + age) for age in (STALE_SECONDS, STALE_SECONDS + 1)] == [True, False]


def test_where_nothing_is_known_of_processes_the_heartbeat_tells(folder, monkeypatch):
    """Elsewhere than on Linux a lease of this machine would otherwise outlive its owner for ever."""
    for module in (processes, lease, writing):
        monkeypatch.setattr(module, "birth", lambda pid: None, raising=False)
        monkeypatch.setattr(module, "pid_namespace", lambda: None, raising=False)
    with RunLock(folder):
        values = json.loads(folder.lease_file.read_text())
        assert values["born"] is None
        assert is_locked(folder)
    write_json(folder.lease_file, values | {"pid": 999_999_999})
    os.utime(folder.lease_file, (0, 0))
    assert not is_locked(folder)


def test_a_process_with_the_owners_number_is_not_the_owner(folder):
    with RunLock(folder):
        values = json.loads(folder.lease_file.read_text())
    write_json(folder.lease_file, values)
    assert is_locked(folder)
    write_json(folder.lease_file, values | {"born": "1"})
    assert not is_locked(folder)
