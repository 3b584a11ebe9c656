"""The whole mirror made again from the records."""

from __future__ import annotations

from pathlib import Path

from tepo_lab.errors import RecordError
from tepo_lab.schema.record import RunFolder
from tepo_lab.track.address import tracking_address
from tepo_lab.track.mirror import Mirror, trouble
from tepo_lab.track.state import read_json
from tepo_lab.track.store import FAILURES, BusyError


def rebuild(home: Path, tracking_uri: str | None = None) -> dict[str, int]:
    """Make the mirror again from the records: every sweep under HOME/sweeps, every run it lists that has a folder.

    What MLflow already shows rightly stays as it is; children whose run folder is gone are deleted.
    Returns the number of runs shown, by sweep. Raises `RecordError` when a record cannot be read or MLflow not written.
    """
    uri = tracking_address(home, tracking_uri)
    return {path.parent.name: _rebuild_sweep(home, uri, path) for path in sorted(home.glob("sweeps/*/sweep.json"))}


def _rebuild_sweep(home: Path, uri: str, sweep_file: Path) -> int:
    listed = [RunFolder(home / "runs" / str(name)) for name in (read_json(sweep_file) or {}).get("runs", [])]
    folders = [folder for folder in listed if folder.run_file.exists()]
    text, table = sweep_file.with_name("table.md"), sweep_file.with_name("table.json")
    printed = (text.read_text(), read_json(table)) if text.exists() and table.exists() else None
    problems: list[str] = []
    mirror = Mirror(home, uri, sweep_file.parent.name, problems.append, verify=True)
    try:
        mirror.sync_or_raise(folders, printed)
    except BusyError:
        raise RecordError(f"Another process is writing to the mirror of {home}: call again when it is done.") from None
    except FAILURES as error:
        raise RecordError(
            f"{trouble(uri, error)} If the database is damaged, move it away and call again: it is made anew from the "
            "records."
        ) from error
    if problems:
        raise RecordError(problems[0])
    return len(folders)
