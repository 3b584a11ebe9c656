"""The mirror against real processes, a real database and a real MLflow server."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder
from tepo_lab.track.address import own_address
from tepo_lab.track.mirror import Mirror
from tepo_lab.track.rebuild import mirror_home
from tepo_lab.track.store import open_client
from tepo_lab.track.thread import MirrorThread
from tepo_lab.track.ui import running_server
from tests.integration.faults import free_port
from tests.mlflow_runs import complete, recorded_values, resume, shown_values, start_run, write_steps, write_sweep

PROCESSES = 16

#: Each process writes the records of one run and mirrors all. They share one import of mlflow: each is a fork.
MANY = """
import os, sys, time
from pathlib import Path
from tepo_lab.records.files import run_folders
from tepo_lab.track.mirror import Mirror
from tepo_lab.track.thread import MirrorThread
from tests.mlflow_runs import complete, write_steps
home = Path(sys.argv[1])
for folder in run_folders(home):
    if os.fork() == 0:
        problems = []
        thread = MirrorThread(home, None, "panel-e", run_folders(home), problems.append, every_seconds=0.05)
        thread.start()
        for step in range(1, 11):
            write_steps(folder, range(step, step + 1))
            time.sleep(0.1)
        complete(folder, 10)
        is_complete = thread.stop(timeout_seconds=240)
        os.write(1, f"{is_complete and not problems}\\n".encode())
        os._exit(0)
for _ in run_folders(home):
    os.wait()
"""

MAKE_DATABASE = """
import sys
from pathlib import Path
from tepo_lab.track.mirror import Mirror
Mirror(Path(sys.argv[1]), None, "panel-e", print).update([])
"""


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def shown(home: Path, address: str | None = None) -> dict[str, Any]:
    return shown_values(open_client(home, address or own_address(home)), "panel-e")


def recorded(folders: list[RunFolder]) -> dict[str, Any]:
    return {folder.name: recorded_values(folder) for folder in folders}


def test_a_home_has_a_database_of_its_own_that_is_made_again_when_it_is_deleted(tmp_path: Path) -> None:
    folders, problems = [start_run(tmp_path, "tepo"), start_run(tmp_path, "gspo")], list[str]()
    write_sweep(tmp_path, folders)
    mirror = Mirror(tmp_path, None, "panel-e", problems.append)
    write_steps(folders[0], range(1, 401))
    assert mirror.update(folders)
    resume(folders[0], 2)
    write_steps(folders[0], range(3, 4), attempt=1)
    assert mirror.update(folders)
    assert shown(tmp_path) == recorded(folders)
    assert problems == []

    (tmp_path / "mlflow.db").unlink()
    shutil.rmtree(tmp_path / "mlartifacts")
    complete(folders[0], 3)
    assert not mirror.update(folders, over=True)
    assert mirror.update(folders, over=True, at_once=True)
    assert shown(tmp_path) == recorded(folders)
    assert len(problems) == 1

    (tmp_path / "mlflow.db").unlink()
    assert mirror_home(tmp_path, None, problems.append) == 2
    assert mirror_home(tmp_path, None, problems.append, rebuild=True) == 2
    assert shown(tmp_path) == recorded(folders)
    client = open_client(tmp_path, own_address(tmp_path))
    (run,) = client.search_runs([client.get_experiment_by_name("panel-e").experiment_id], "tags.tepo_lab = 'sweep'")
    assert run.info.artifact_uri.startswith(str(tmp_path / "mlartifacts"))
    assert (run.info.status, [item.path for item in client.list_artifacts(run.info.run_id)]) == (
        "KILLED",
        ["sweep.json"],
    )
    names = {"runs", "sweeps", "mlflow.db", "mlflow.lock", "mlartifacts"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("is_sqlite", [False, True])
def test_another_programs_database_is_left_alone(tmp_path: Path, is_sqlite: bool) -> None:
    database, problems = tmp_path / "mlflow.db", list[str]()
    if is_sqlite:
        with sqlite3.connect(database) as other:
            other.execute("CREATE TABLE experiments (title TEXT)")
    else:
        database.write_bytes(b"not a database" * 100)
    before, folder = database.read_bytes(), start_run(tmp_path)
    assert not Mirror(tmp_path, None, "panel-e", problems.append).update([folder])
    assert str(database) in problems[0]
    with pytest.raises(RecordError, match="move it away"):
        mirror_home(tmp_path, None, print, rebuild=True)
    assert database.read_bytes() == before
    assert not (tmp_path / "mlartifacts").exists()


def test_many_processes_at_once_on_a_fresh_home_lose_and_repeat_nothing(tmp_path: Path) -> None:
    folders = [start_run(tmp_path, f"arm_{number}") for number in range(PROCESSES)]
    command = [sys.executable, "-c", MANY, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert sorted(done.stdout.split()) == ["True"] * PROCESSES, done.stdout + done.stderr[-2000:]
    assert all(len(values) == 3 * 10 + 3 for values in recorded(folders).values())
    assert shown(tmp_path) == recorded(folders)


def test_a_process_killed_while_it_makes_the_database_leaves_no_part_of_it(tmp_path: Path) -> None:
    folder, partial, problems = start_run(tmp_path), tmp_path / ".mlflow.db.partial", list[str]()
    process = subprocess.Popen([sys.executable, "-c", MAKE_DATABASE, str(tmp_path)])
    while not partial.exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "mlflow.db").exists()
    assert Mirror(tmp_path, None, "panel-e", problems.append).update([folder])
    assert problems == []
    assert not partial.exists()


def test_a_server_that_goes_down_and_comes_back_gets_everything(tmp_path: Path) -> None:
    port, home, problems = free_port(), tmp_path / "home", list[str]()
    address, store = f"http://127.0.0.1:{port}", f"sqlite:///{tmp_path}/server.db"
    folder = start_run(home)
    write_steps(folder, range(1, 4))
    thread = MirrorThread(home, address, "panel-e", [folder], problems.append, every_seconds=0.1)
    with running_server(tmp_path, port=port, tracking_uri=store):
        thread.start()
        client = open_client(home, address)
        until(lambda: client.get_experiment_by_name("panel-e") is not None)
        until(lambda: len(shown(home, address).get(folder.name, {})) == 3 * 3)
    write_steps(folder, range(4, 7))
    until(lambda: problems != [])
    with running_server(tmp_path, port=port, tracking_uri=store):
        complete(folder, 6)
        assert thread.stop(timeout_seconds=60)
        assert shown(home, address) == recorded([folder])
    assert not (home / "mlflow.db").exists()
    assert len(problems) == 1
    assert f"MLflow ({address})" in problems[0]


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
