from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tepo_lab.errors import ConfigError, RecordError, ResourceError
from tepo_lab.track.address import shown, tracking_address
from tepo_lab.track.ui import running_server, serve


def test_the_home_is_the_default_and_what_is_given_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracking_address(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert tracking_address(tmp_path) == "http://tracker:5000"
    assert tracking_address(tmp_path, "postgresql://lab@db/lab") == "postgresql://lab@db/lab"


def test_a_home_that_a_database_address_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has \? in its path"):
        tracking_address(tmp_path / "what?")


def test_a_database_without_its_python_driver_is_refused_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs the Python module pymysql.*pip install pymysql"):
        tracking_address(tmp_path, "mysql+pymysql://lab:pw@db/lab")
    with pytest.raises(ConfigError, match="cannot be used"):
        tracking_address(tmp_path, "postgresql://lab:pw@db:port/lab")


def test_passwords_are_not_shown() -> None:
    assert shown("postgresql://lab:pw@db/lab") == "postgresql://lab:***@db/lab"
    assert shown("sqlite:////a/b.db") == "sqlite:////a/b.db"


def test_serving_without_a_database_says_what_to_do_first(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="run something first: tepo-lab run panel-e"):
        serve(tmp_path, print)


def test_a_running_server_is_only_pointed_at(tmp_path: Path) -> None:
    addresses: list[str] = []
    serve(tmp_path, addresses.append, tracking_uri="http://tracker:5000")
    assert addresses == ["http://tracker:5000"]


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ResourceError, match=f"Port {port} on 127.0.0.1 cannot be used"),
            running_server(tmp_path, port=port),
        ):
            pass
