"""Rows of a data set in a local file or folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tepo_lab.errors import DataError, is_machine_failure
from tepo_lab.schema.profile import DatasetData

#: Row by row or column by column: how a file is read, by its ending.
SUFFIXES = (".jsonl", ".parquet")


def local_files(data: DatasetData) -> list[Path]:
    """The JSONL or Parquet files at `data.path`; none where there is nothing.

    Of a folder, the files named after the split, or all its files where none is, in the order of names.
    """
    place = Path(str(data.path)).expanduser()
    if not place.is_dir():
        return [place] if place.is_file() else []
    files = sorted(file for file in place.iterdir() if file.suffix in SUFFIXES)
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
        raise DataError(f"{place}: the folder has no .jsonl or .parquet file; set {key}.path to one that does.")
    if not files:
        what = "neither a file nor a folder" if place.exists() else "no such file or folder"
        raise DataError(f"{place}: {what}; set {key}.path to a .jsonl or .parquet file or a folder.")
    for file in files:
        # A device has no end, and a pipe may never begin.
        if not file.is_file():
            raise DataError(f"{file}: not a file that can be read; remove it from the folder.")
    rows: list[dict[str, Any]] = []
    for file in files:
        rows += _parquet_rows(file) if file.suffix == ".parquet" else [row for _, row in numbered_json_lines(file)]
    return rows


def numbered_json_lines(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines file with their line numbers. Raises `DataError` naming the line that is none."""
    try:
        with file.open("rb") as stream:
            return json_objects(stream, where=str(file))
    except OSError as error:
        if is_machine_failure(error):
            raise
        raise DataError(f"{file}: cannot be read ({error}).") from None


def json_objects(lines: Iterable[bytes], *, where: str) -> list[tuple[int, dict[str, Any]]]:
    """As `numbered_json_lines`, of lines from anywhere, which `where` names in messages. Empty lines are skipped."""
    rows, number = [], 0
    try:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = json.loads(line.decode("utf-8-sig"))
            if not isinstance(row, dict):
                raise DataError(f"{where}:{number} is not a JSON object; write one object a line.")
            rows.append((number, row))
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error).partition(";")[0]
        raise DataError(f"{where}:{number} is not JSON ({reason}); write one object a line.") from None
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
