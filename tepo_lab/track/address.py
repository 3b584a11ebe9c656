"""Where the mirror of a home is, and tracking addresses without their secrets."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tepo_lab.errors import ConfigError

_SCHEMES = ("http://", "https://", "sqlite:///", "postgresql", "mysql", "mssql", "databricks")

#: What may be printed behind the scheme: host and port, or neither, and a path.
_PLACE = re.compile(r"(\[[\da-fA-F:.]*\]|[^:/@\[\]]*)(:\d*)?(/.*)?", re.DOTALL)

#: An address in a text, without the punctuation behind it.
_IN_TEXT = re.compile(r"[\w+.-]+://\S+?(?=[\"')>.,:;]*(?:\s|$))")


def database_file(home: Path) -> Path:
    """The SQLite database of a home."""
    return home.resolve() / "mlflow.db"


def own_address(home: Path) -> str:
    """The tracking URI of the home's own SQLite database."""
    return f"sqlite:///{database_file(home)}"


def artifact_folder(home: Path) -> Path:
    """The folder of the artifacts of a home's database."""
    return home.resolve() / "mlartifacts"


def tracking_address(home: Path, given: str | None = None) -> str:
    """The MLflow tracking URI: the one given, else `MLFLOW_TRACKING_URI`, else the SQLite database in the home.

    Raises `ConfigError` for a URI that MLflow cannot track to, and for a home whose path a database URI cannot contain.
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
    if {"'", '"'} <= set(str(database_file(home))):
        raise ConfigError(f"The home {home} has both kinds of quotes in its path, which MLflow cannot open: rename it.")
    return own_address(home)


def _check_driver(uri: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(uri).get_dialect().import_dbapi()
    except (ArgumentError, ValueError):
        raise ConfigError(
            f"MLflow tracking URI {shown(uri)!r} cannot be used: give postgresql://USER@HOST:PORT/DATABASE."
        ) from None
    except ImportError as error:
        install = "pip install 'psycopg[binary]'" if error.name == "psycopg" else f"pip install {error.name}"
        raise ConfigError(
            f"MLflow tracking URI {shown(uri)!r} needs the Python module {error.name}, which is missing: {install}"
        ) from None


def shown(uri: str) -> str:
    """`uri` as it may be printed and recorded: scheme, host, port and database; no user, password, token or query.

    An address that cannot be divided into these is its scheme alone.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return "***" if re.search("[@?=]", uri) else uri
    place, query = re.fullmatch(r"([^?#;]*)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    if not place.startswith("/"):
        # A password may contain an @ itself.
        place = place.rpartition("@")[2]
    # An @ behind a ? may end a password with a ? in it: then what stands before is no host.
    return f"{scheme}://{place if _PLACE.fullmatch(place) and '@' not in query else '***'}"


def masked(text: str) -> str:
    """A text with each address in it as `shown`."""
    return _IN_TEXT.sub(lambda match: shown(match[0]), text)
