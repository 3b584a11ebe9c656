"""PostgreSQL as the tracking store: a real server from Debian's packages, on a free port, for as long as the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo_lab.track.mirror import Mirror
from tepo_lab.track.rebuild import mirror_home
from tepo_lab.track.store import open_client
from tests.integration.faults import free_port
from tests.mlflow_runs import complete, recorded_values, shown_values, start_run, write_steps, write_sweep

BINARIES = max(Path("/usr/lib/postgresql").glob("*/bin/postgres"), default=None)


class Postgres:
    """A server over a folder of its own; as root, run by the user that Debian's package makes for it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.user = "postgres" if os.geteuid() == 0 else None
        if self.user:
            shutil.chown(folder, self.user)
        self._call("initdb", "-U", "tepo", "-A", "trust", "--no-sync")

    @property
    def address(self) -> str:
        return f"postgresql+psycopg://tepo@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        # Durability costs seconds and is not what is tested.
        options = f"-h 127.0.0.1 -p {self.port} -k {self.folder} -c fsync=off"
        self._call("pg_ctl", "start", "-w", "-l", "log", "-o", options)

    def kill(self) -> None:
        self._call("pg_ctl", "stop", "-m", "immediate")

    def _call(self, program: str, *arguments: str) -> None:
        assert BINARIES is not None
        command = [str(BINARIES.with_name(program)), "-D", str(self.folder / "data"), *arguments]
        subprocess.run(command, user=self.user, cwd=self.folder, check=True, stdout=subprocess.DEVNULL)


def can_run() -> bool:
    return BINARIES is not None and (os.geteuid() != 0 or "postgres" in {user.pw_name for user in pwd.getpwall()})


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    pytest.importorskip("psycopg")
    if not can_run():
        pytest.skip("no PostgreSQL server here (apt-get install postgresql)")
    # Not below pytest's own folder, which only its user may enter.
    with tempfile.TemporaryDirectory(prefix="tepo-lab-postgres-") as folder:
        server = Postgres(Path(folder))
        server.start()
        try:
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
