"""A home whose MLflow database is a copy of one made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_runs import Lab

from tepo_lab.track import store
from tepo_lab.track.store import open_client, own_address


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="session")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("fresh")
    open_client(home, own_address(home))
    return home / "mlflow.db"


@pytest.fixture(autouse=True)
def _copied_database(fresh_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Making one takes seconds.
    monkeypatch.setattr(store, "_make_database", lambda database, artifacts: shutil.copy(fresh_database, database))


@pytest.fixture
def make_lab(tmp_path: Path) -> Callable[[str], Lab]:
    def make(name: str) -> Lab:
        home = tmp_path / name
        home.mkdir()
        return Lab(home)

    return make


@pytest.fixture
def lab(make_lab: Callable[[str], Lab]) -> Lab:
    return make_lab("home")
