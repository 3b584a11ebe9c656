"""The MLflow store of a home: made once and opened by one writer at a time."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy import NullPool, create_engine, inspect
from sqlalchemy.exc import SQLAlchemyError

from tepo_lab.errors import RecordError
from tepo_lab.track.address import artifact_folder, database_file, own_address

#: What a store that is down, locked, damaged or deleted raises.
FAILURES = (MlflowException, SQLAlchemyError, OSError)

#: Of the tables of a tracking database, those that every version has.
_TABLES = frozenset({"alembic_version", "experiments"})


def one_writer(home: Path, wait_seconds: float) -> FileLock:
    """The home's lock on writing to MLflow. Entering it raises `filelock.Timeout` while another process owns it."""
    home.mkdir(parents=True, exist_ok=True)
    return FileLock(home / "mlflow.lock", timeout=wait_seconds)


def open_client(home: Path, uri: str) -> MlflowClient:
    """A client of the store at `uri`; makes the home's database when it is missing. Call it under `one_writer`.

    Raises `RecordError` when the database file is another program's.
    """
    artifacts = str(artifact_folder(home))
    if uri == own_address(home):
        database = database_file(home)
        if not database.exists() or database.stat().st_size == 0:
            _make_database(database, artifacts)
        elif not set(inspect(create_engine(uri, poolclass=NullPool)).get_table_names()) >= _TABLES:
            # MLflow would add its tables to it.
            raise RecordError(f"{database} is another program's database: move it away and call 'tepo-lab mirror'.")
    elif stores_artifacts_here(uri):
        # Makes the schema in an empty database.
        SqlAlchemyStore(uri, artifacts)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def stores_artifacts_here(uri: str) -> bool:
    """Whether `uri` is a database that we open ourselves, so that artifacts go to a folder of the home."""
    return not uri.startswith(("http://", "https://", "databricks"))


def _make_database(database: Path, artifacts: str) -> None:
    # Some sixty migrations run; a process killed among them must not leave a part of a database.
    partial = database.with_name(".mlflow.db.partial")
    partial.unlink(missing_ok=True)
    SqlAlchemyStore(f"sqlite:///{partial}", artifacts)
    partial.replace(database)
