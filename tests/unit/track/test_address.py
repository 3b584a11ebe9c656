from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tepo_lab.errors import ConfigError, RecordError, ResourceError
from tepo_lab.track.address import masked, shown, tracking_address
from tepo_lab.track.ui import running_server, serve


def test_the_home_is_the_default_and_what_is_given_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_address(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert tracking_address(tmp_path) == "http://tracker:5000"
    assert tracking_address(tmp_path, "postgresql+psycopg://lab@db/lab") == "postgresql+psycopg://lab@db/lab"


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("./mlruns", r"'\./mlruns'"),
        ("mysql+pymysql://lab:secret@db/lab", "pip install pymysql"),
        ("postgresql://lab:secret@db:port/lab", "postgresql://"),
        ("postgresql:lab:secret@db", r"'\*\*\*'"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_secrets(
    tmp_path: Path, address: str, place: str
) -> None:
    with pytest.raises(ConfigError, match=place) as caught:
        tracking_address(tmp_path, address)
    assert "secret" not in str(caught.value)


def test_a_home_that_a_database_address_cannot_contain_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match=r"has \? in its path"):
        tracking_address(tmp_path / "what?")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
        ("sqlite:////a@b/c.db?password=hidden", "sqlite:////a@b/c.db"),
        ("http://tracker:5000", "http://tracker:5000"),
        ("http://tracker:5000/prefix?token=hidden#hidden", "http://tracker:5000/prefix"),
        ("https://hidden@tracker", "https://tracker"),
        ("https://[::1]:5000", "https://[::1]:5000"),
        ("postgresql://me:hidden@db:5432/lab", "postgresql://db:5432/lab"),
        ("postgresql://me:hid@den@db/lab", "postgresql://db/lab"),
        ("postgresql://me:hid/den@db/lab", "postgresql://db/lab"),
        ("postgresql://me:hid den@db/lab", "postgresql://db/lab"),
        ("postgresql://me:hid?den@db/lab", "postgresql://***"),
        ("postgresql://me:1?hidden@db/lab", "postgresql://***"),
        ("postgresql://me:1#hidden@db/lab", "postgresql://***"),
        ("postgresql://db/lab?user=me&password=hidden", "postgresql://db/lab"),
        ("postgresql://db/lab?user=me@there&password=hidden", "postgresql://***"),
        ("postgresql:///lab?password=hidden", "postgresql:///lab"),
        ("mssql://db:1433;password=hidden", "mssql://db:1433"),
        ("me:hidden@db", "***"),
        ("nonsense", "nonsense"),
    ],
)
def test_of_an_address_its_scheme_host_port_and_database_are_shown(address: str, expected: str) -> None:
    assert shown(address) == expected
    if " " not in address and "://" in address:
        assert masked(f'cannot reach "{address}": refused') == f'cannot reach "{expected}": refused'


def test_serving_without_a_database_says_what_to_do_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(RecordError, match="tepo-lab run panel-e"):
        serve(tmp_path, print)


def test_of_a_server_that_runs_the_address_is_shown(tmp_path: Path) -> None:
    addresses: list[str] = []
    serve(tmp_path, addresses.append, tracking_uri="http://me:secret@tracker:5000")
    assert addresses == ["http://tracker:5000"]


def test_a_taken_port_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"Port {port} on 127.0.0.1"), running_server(tmp_path, port=port):
            pass


def test_a_home_with_both_kinds_of_quotes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_address(tmp_path / "a'b").startswith("sqlite")
    with pytest.raises(ConfigError, match="quotes"):
        tracking_address(tmp_path / "a'b\"c")
