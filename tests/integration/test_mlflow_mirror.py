"""The mirror against real processes and a real MLflow server."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow_runs import complete, shown_values, start_run, write_steps
from sqlalchemy import Engine, event

from tepo_lab.records.files import run_folders
from tepo_lab.track.mirror import Mirror
from tepo_lab.track.state import run_state
from tepo_lab.track.store import open_client, own_address
from tepo_lab.track.thread import MirrorThread
from tepo_lab.track.ui import running_server

MIRROR = """
import sys
from collections.abc import Callable
from pathlib import Path
from tepo_lab.records.files import run_folders
from tepo_lab.track.thread import MirrorThread
home = Path(sys.argv[1])
thread = MirrorThread(home, None, "panel-e", lambda: run_folders(home), print, every_seconds=0.05)
thread.start()
print("in step", thread.stop(timeout_seconds=120), flush=True)
"""


PROCESSES = 16

#: The processes share one import of mlflow: each is a fork of the first, which opens no database.
SIXTEEN = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from mlflow_runs import complete, write_steps
from tepo_lab.records.files import run_folders
from tepo_lab.track.mirror import Mirror
from tepo_lab.track.thread import MirrorThread
home = Path(sys.argv[1])
for folder in run_folders(home):
    if os.fork() == 0:
        problems = []
        thread = MirrorThread(home, None, "panel-e", lambda: run_folders(home), problems.append, every_seconds=0.05)
        thread.start()
        for step in range(1, 11):
            write_steps(folder, range(step, step + 1))
            time.sleep(0.1)
        complete(folder, 10)
        in_step = thread.stop(timeout_seconds=240)
        os.write(1, f"{in_step and not problems}\\n".encode())
        os._exit(0)
for _ in run_folders(home):
    os.wait()
"""


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_sixteen_processes_at_once_on_a_fresh_home_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """Each writes the records of a run of its own, and each mirrors the runs of all into one database."""
    folders = [start_run(tmp_path, f"arm_{number}") for number in range(PROCESSES)]
    place = str(Path(__file__).parent)
    command = [sys.executable, "-c", SIXTEEN, str(tmp_path), place, str(PROCESSES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert sorted(done.stdout.split()) == ["True"] * PROCESSES, done.stdout + done.stderr[-2000:]
    client = open_client(tmp_path, own_address(tmp_path))
    expected = {folder.name: run_state(folder, "panel-e").values for folder in folders}
    assert all(len(values) == 2 * 10 + 3 for values in expected.values())
    assert shown_values(client, "panel-e") == expected


def test_a_process_killed_while_it_makes_the_database_leaves_no_half_of_one(tmp_path: Path) -> None:
    start_run(tmp_path, "tepo")
    process = subprocess.Popen([sys.executable, "-c", MIRROR, str(tmp_path)], stdout=subprocess.DEVNULL)
    partial = tmp_path / ".mlflow.db.partial"
    while not partial.exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "mlflow.db").exists()

    problems: list[str] = []
    assert Mirror(tmp_path, None, "panel-e", problems.append).update(run_folders(tmp_path))
    assert problems == []
    assert not partial.exists()


def test_a_server_that_goes_down_and_comes_back_gets_everything(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home, address, problems = tmp_path / "home", f"http://127.0.0.1:{port}", list[str]()
    folder = start_run(home, "tepo")
    write_steps(folder, range(1, 4))
    store = f"sqlite:///{tmp_path}/server.db"
    thread = MirrorThread(home, address, "panel-e", lambda: [folder], problems.append, every_seconds=0.1)
    with running_server(tmp_path, port=port, tracking_uri=store):
        thread.start()
        client = open_client(home, address)
        until(lambda: client.get_experiment_by_name("panel-e") is not None)
        until(lambda: len(shown_values(client, "panel-e").get(folder.name, {})) == 6)
    write_steps(folder, range(4, 7))
    until(lambda: problems != [])
    with running_server(tmp_path, port=port, tracking_uri=store):
        complete(folder, 6)
        assert thread.stop(timeout_seconds=60)
        assert shown_values(client, "panel-e") == {folder.name: run_state(folder, "panel-e").values}
        assert not (home / "mlflow.db").exists()
    assert len(problems) == 1
    assert f"MLflow ({address}) cannot be written" in problems[0]


@pytest.fixture
def impatient() -> Iterator[None]:
    """MLflow has SQLite wait 20 seconds for a lock; here it is a tenth of a second."""

    def shorter(*call: Any) -> tuple[str, Any]:
        _, _, statement, parameters, *_ = call
        return statement.replace("busy_timeout = 20000", "busy_timeout = 100"), parameters

    event.listen(Engine, "before_cursor_execute", shorter, retval=True)
    yield
    event.remove(Engine, "before_cursor_execute", shorter)


@pytest.mark.usefixtures("impatient")
def test_a_locked_database_is_caught_up_with_when_it_is_free(tmp_path: Path) -> None:
    folder, problems, now = start_run(tmp_path, "tepo"), list[str](), [0.0]
    mirror = Mirror(tmp_path, None, "panel-e", problems.append, clock=lambda: now[0])
    mirror.update([folder])
    write_steps(folder, range(1, 4))
    with sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        assert not mirror.update([folder])
        holder.execute("ROLLBACK")
    now[0] = 10.0
    assert mirror.update([folder])
    client = open_client(tmp_path, own_address(tmp_path))
    assert shown_values(client, "panel-e") == {folder.name: run_state(folder, "panel-e").values}
    assert len(problems) == 1
    assert "database is locked" in problems[0]


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
