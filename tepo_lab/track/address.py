"""Where the mirror of a home lies."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tepo_lab.errors import ConfigError

_SCHEMES = ("http://", "https://", "sqlite:///", "postgresql", "mysql", "mssql", "databricks")


def database_file(home: Path) -> Path:
    """The SQLite database of a home."""
    return home.resolve() / "mlflow.db"


def own_address(home: Path) -> str:
    """The tracking URI of the home's own SQLite database."""
    return f"sqlite:///{database_file(home)}"


def artifact_folder(home: Path) -> Path:
    """Where the artifacts of a home's database lie."""
    return home.resolve() / "mlartifacts"


def tracking_address(home: Path, given: str | None = None) -> str:
    """The MLflow tracking URI: the one given, else `MLFLOW_TRACKING_URI`, else the SQLite database in the home.

    Raises `ConfigError` for a URI that MLflow cannot track to, and for a home whose path a database URI cannot hold.
    """
    uri = given or os.environ.get("MLFLOW_TRACKING_URI")
    if uri:
        if not uri.startswith(_SCHEMES):
            raise ConfigError(
                f"MLflow tracking URI {shown(uri)!r} cannot be used: give http(s)://HOST:PORT, sqlite:///FILE or "
                "postgresql://USER@HOST/DATABASE."
            )
        if not uri.startswith(("http://", "https://", "sqlite:///", "databricks")):
            _check_driver(uri)
        return uri
    if bad := sorted(set(str(database_file(home))) & set("?#%")):
        raise ConfigError(f"The home {home} has {' and '.join(bad)} in its path, which MLflow cannot open: rename it.")
    return own_address(home)


def _check_driver(uri: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"MLflow tracking URI {shown(uri)!r} cannot be used: {error}.") from None
    except ImportError as error:
        install = "pip install 'psycopg[binary]'" if error.name == "psycopg" else f"pip install {error.name}"
        raise ConfigError(
            f"MLflow tracking URI {shown(uri)!r} needs the Python module {error.name}, which is missing: {install}"
        ) from None


def shown(uri: str) -> str:
    """`uri` as it may be printed: without a password."""
    return re.sub(r"(//[^/@:]*):[^/@]*@", r"\1:***@", uri)
