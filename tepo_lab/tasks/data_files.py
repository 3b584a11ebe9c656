"""Rows of a data set: of a local file or folder, or of the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tepo_lab.errors import DataError, is_machine_failure
from tepo_lab.schema.profile import DatasetData
from tepo_lab.tasks.hub_data import (
    HubUnreachableError,
    data_commit,
    hub_name,
    in_one_line,
    is_out_of_reach,
    read_copy,
    ready_copies,
)

#: Row by row or column by column: how a file is read, by its ending.
SUFFIXES = (".jsonl", ".parquet")


def local_files(data: DatasetData) -> list[Path]:
    """The JSONL or Parquet files at `data.path`; none where there is nothing.

    Of a folder, the files named after the split, or all its files where none is, in the order of names.
    """
    place = Path(str(data.path)).expanduser()
    if not place.is_dir():
        return [place] if place.is_file() else []
    files = sorted(each for each in place.iterdir() if each.suffix in SUFFIXES)
    if len(files) > 1:
        return [file for file in files if data.split in re.split("[^a-z0-9]+", file.stem.lower())] or files
    return files


def local_rows(data: DatasetData, *, key: str = "data") -> list[dict[str, Any]]:
    """Rows of the `local_files` of a data set.

    Args: `key` of the setting, for messages. Raises `DataError` for a missing, empty or unreadable file or folder.
    """
    place = Path(str(data.path)).expanduser()
    files = local_files(data)
    if not files and place.is_dir():
        raise DataError(f"{place}: the folder holds no .jsonl or .parquet file; set {key}.path to one that does.")
    if not files:
        what = "neither a file nor a folder" if place.exists() else "no such file or folder"
        raise DataError(f"{place}: {what}; set {key}.path to a .jsonl or .parquet file or a folder.")
    for file in files:
        # A device has no end, and a pipe may never begin.
        if not file.is_file():
            raise DataError(f"{file}: not a file that can be read; take it out of the folder.")
    return [row for file in files for row in (_parquet_rows(file) if file.suffix == ".parquet" else json_lines(file))]


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file. Raises `DataError` naming the line that is none."""
    return [row for _, row in numbered_json_lines(file)]


def numbered_json_lines(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """As `json_lines`, each with its line's number; empty lines count, and are passed over."""
    try:
        with file.open("rb") as stream:
            return json_objects(stream, where=str(file))
    except OSError as error:
        if is_machine_failure(error):
            raise
        raise DataError(f"{file}: cannot be read ({error}).") from None


def json_objects(lines: Iterable[bytes], *, where: str) -> list[tuple[int, dict[str, Any]]]:
    """As `numbered_json_lines`, of lines that come from anywhere; `where` names it in messages."""
    rows, number = [], 0
    try:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = json.loads(line.decode("utf-8-sig"))
            if not isinstance(row, dict):
                raise DataError(f"{where}:{number} is not a JSON object; write one object a line.")
            rows.append((number, row))
    except json.JSONDecodeError as error:
        raise DataError(f"{where}:{number} is not JSON ({error.msg}); write one object a line.") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{where}:{number} cannot be read ({error}).") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}:{number} is not JSON that can be read ({str(error).partition(';')[0]}).") from None
    return rows


def _parquet_rows(file: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    except (pa.ArrowException, OSError) as error:
        if is_machine_failure(error):
            raise
        raise DataError(f"{file}: cannot be read as Parquet ({' '.join(str(error).split())[:200]}).") from None
    return rows


def hub_rows(data: DatasetData) -> list[dict[str, Any]]:
    """Rows of a data set of the hub: of the copy that lies ready here, else of the hub.

    A process asks for each data set once. Raises `DataError`; `HubUnreachableError`, which is one too, when the hub
    does not answer.
    """
    return [dict(row) for row in _hub_table(data.hub, data.subset, data.split, data.revision)]


@cache
def _hub_table(hub: str | None, subset: str | None, split: str, revision: str | None) -> Any:
    """Rows that lie in a file and are read from there one by one, so that to keep them takes no memory."""
    from datasets import load_dataset

    data = DatasetData(kind="dataset", hub=hub, subset=subset, split=split, revision=revision)
    commit = data_commit(data)
    copy = ready_copies(data).get(commit or "")
    try:
        if copy is not None:
            return read_copy(copy, data)
        loaded = load_dataset(hub, subset, split=split, revision=commit or revision)
        ready = ready_copies(data)
        if commit is not None and ready and commit not in ready:
            # When it is cut off, `datasets` takes whatever copy it finds.
            raise ConnectionError(f"commit {commit[:12]} did not arrive")
        return loaded
    except Exception as error:  # noqa: BLE001 - the hub's client raises a dozen unrelated kinds
        kind = HubUnreachableError if is_out_of_reach(error) else DataError
        reason, mend = in_one_line(error), "check its name, subset and split, or set data.path to a local copy"
        raise kind(f"{hub_name(data)}: cannot be loaded ({reason}); {mend}.") from None
