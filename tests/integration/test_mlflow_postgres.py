"""PostgreSQL as the tracking store: a real server from Debian's packages, on a free port, for as long as the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tepo_lab.track.mirror import Mirror
from tepo_lab.track.rebuild import mirror_home
from tepo_lab.track.store import open_client
from tests.integration.faults import free_port
from tests.mlflow_runs import complete, recorded_values, shown_values, start_run, write_steps, write_sweep

pytestmark = pytest.mark.integration

BINARIES = max(Path("/usr/lib/postgresql").glob("*/bin/postgres"), default=None)


@dataclass
class Postgres:
    """A server over a folder of its own; as root, run by the user that Debian's package makes for it."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        if self._user:
            shutil.chown(self.folder, self._user)
        self._call("initdb", "-D", str(self.data), "-U", "tepo", "-A", "trust", "--no-sync")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def address(self) -> str:
        return f"postgresql+psycopg://tepo@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        # Durability costs seconds and is not what is tested.
        options = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.folder), "-c", "fsync=off"]
        command = [self._binary("postgres"), "-D", str(self.data), *options]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, user=self._user, cwd=self.folder, **quiet)
        deadline = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def _user(self) -> str | None:
        return "postgres" if os.geteuid() == 0 else None

    def _binary(self, name: str) -> str:
        assert BINARIES is not None
        return str(BINARIES.with_name(name))

    def _call(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [self._binary(name), *arguments], user=self._user, cwd=self.folder, check=True, capture_output=True
        )

    def _answers(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)):
                return False
        ready = [self._binary("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "tepo"]
        return subprocess.run(ready, capture_output=True, check=False).returncode == 0


def can_run() -> bool:
    if BINARIES is None:
        return False
    return os.geteuid() != 0 or "postgres" in {user.pw_name for user in pwd.getpwall()}


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    pytest.importorskip("psycopg")
    if not can_run():
        pytest.skip("no PostgreSQL server here (apt-get install postgresql)")
    # Not below pytest's own folder, which only its user may enter.
    with tempfile.TemporaryDirectory(prefix="tepo-lab-postgres-") as folder:
        server = Postgres(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.kill()


def test_a_postgresql_server_that_dies_and_comes_back_shows_what_the_records_say(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folders = [start_run(tmp_path, arm) for arm in ("tepo", "gspo")]
    for folder in folders:
        write_steps(folder, range(1, 4))
    problems: list[str] = []
    mirror = Mirror(tmp_path, postgres.address, "panel-e", problems.append)
    assert mirror.update(folders)
    assert problems == []

    postgres.kill()
    write_steps(folders[0], range(4, 7))
    assert not mirror.update(folders)
    assert len(problems) == 1
    assert f"MLflow (postgresql+psycopg://127.0.0.1:{postgres.port}/postgres)" in problems[0]

    postgres.start()
    write_steps(folders[1], range(4, 7))
    for folder in folders:
        complete(folder, 6)
    assert mirror.update(folders, over=True, at_once=True)
    client = open_client(tmp_path, postgres.address)
    expected = {folder.name: recorded_values(folder) for folder in folders}
    assert shown_values(client, "panel-e") == expected
    assert not (tmp_path / "mlflow.db").exists()

    write_sweep(tmp_path, folders)
    assert mirror_home(tmp_path, postgres.address, print, rebuild=True) == 2
    assert shown_values(client, "panel-e") == expected
