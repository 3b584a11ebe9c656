from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tepo_lab.execute import lease
from tepo_lab.execute.lease import Lease, LeaseHeldError, is_held
from tepo_lab.schema.record import RunFolder, write_json


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def test_a_run_is_held_while_in_use_and_free_afterwards(folder):
    assert not is_held(folder)
    with Lease(folder):
        assert is_held(folder)
        with pytest.raises(LeaseHeldError, match="is held by process"), Lease(folder):
            pass
        assert is_held(folder)
    assert not is_held(folder)
    assert list(folder.path.iterdir()) == []


def test_a_dead_owners_lease_is_taken_over(folder):
    code = (
        "import os, sys; from pathlib import Path; from tepo_lab.execute.lease import Lease; "
        "from tepo_lab.schema.record import RunFolder; "
        "Lease(RunFolder(Path(sys.argv[1]))).__enter__(); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(folder.path)], check=False, timeout=60)
    assert folder.lease_file.exists()
    assert not is_held(folder)
    with Lease(folder):
        assert is_held(folder)


def test_a_lease_of_another_machine_lives_as_long_as_its_heartbeat(folder):
    owner = {"host": "elsewhere", "pid": 1, "born": "1", "token": "x"}
    write_json(folder.lease_file, owner | {"time": time.time()})
    assert is_held(folder)
    with pytest.raises(LeaseHeldError), Lease(folder):
        pass
    write_json(folder.lease_file, owner | {"time": time.time() - lease.STALE_SECONDS - 1})
    assert not is_held(folder)
    with Lease(folder):
        assert json.loads(folder.lease_file.read_text())["host"] != "elsewhere"


def test_the_heartbeat_renews_the_lease(folder, monkeypatch):
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.05)
    with Lease(folder):
        first = json.loads(folder.lease_file.read_text())["time"]
        deadline = time.monotonic() + 10
        while json.loads(folder.lease_file.read_text())["time"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_damaged_lease_holds_nothing(folder):
    folder.path.mkdir()
    folder.lease_file.write_text("{not json")
    assert not is_held(folder)
    with Lease(folder):
        assert is_held(folder)
