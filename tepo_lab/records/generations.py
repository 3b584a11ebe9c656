"""Graded generations: one Parquet file an evaluation, one row a sampled answer."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo_lab.errors import RecordError, is_machine_failure
from tepo_lab.records.files import open_record, write_atomically

if TYPE_CHECKING:
    import pyarrow

#: Columns of the file. `correct` is 0 or 1; `tokens` counts the response with its end token; `extracted` is null where
#: no answer was found.
GENERATION_COLUMNS = (
    "benchmark",
    "problem",
    "sample",
    "prompt",
    "answer",
    "response",
    "tokens",
    "truncated",
    "extracted",
    "correct",
    "how",
    "grader",
)

#: Columns that a count needs.
COUNTED = ("benchmark", "problem", "sample", "correct", "truncated", "extracted")

#: Columns that every file has; the others may be absent from one of an older release.
LASTING = (*COUNTED, "prompt", "answer", "response", "tokens")


def write_generations(path: Path, rows: Sequence[Mapping[str, Any]] | pyarrow.Table) -> None:
    """Write all rows of one evaluation (`GENERATION_COLUMNS`), atomically, with checksums of every page."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not isinstance(rows, pa.Table):
        rows = pa.Table.from_pylist([{column: row[column] for column in GENERATION_COLUMNS} for row in rows])
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="zstd", write_page_checksum=True)
    write_atomically(path, buffer.getvalue())


def read_generations(path: Path, columns: Sequence[str] = COUNTED, *, graded: bool = True) -> pyarrow.Table:
    """An evaluation's rows, verified: every column there and of its type, every grade 0 or 1, no sample twice.

    Args: `columns` to read, those of `COUNTED` or more; `graded`: False, whatever the grades are.
    Raises `RecordError` for a damaged file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Arrow would wait for a pipe.
        open_record(path).close()
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            present = set(file.schema_arrow.names)
            rows = file.read(columns=[name for name in columns if name in present])
        # The other columns may be absent from a file of an older release.
        fault = _fault_of(rows, [name for name in columns if name in LASTING], graded)
    except (pa.ArrowException, OSError, ValueError) as error:
        if is_machine_failure(error):
            raise
        fault = (str(error) or type(error).__name__).splitlines()[0]
    if fault is not None:
        raise RecordError(f"{path} is damaged ({fault}): remove it and run the sweep again, or restore it.")
    return rows


def with_column(table: pyarrow.Table, name: str, values: pyarrow.Array) -> pyarrow.Table:
    """The table with a column in the place of the one of that name, or behind the others."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, values) if place >= 0 else table.append_column(name, values)


def _fault_of(rows: pyarrow.Table, columns: Sequence[str], graded: bool) -> str | None:
    """Why the rows cannot be counted, in a phrase; None where they can."""
    import pyarrow.compute as compute

    types = _types()
    for name in columns:
        if name in ("correct", "extracted") and not graded:
            continue
        if name not in rows.column_names:
            return f"it has no column {name}"
        if name not in types:
            continue
        is_right, wanted = types[name]
        if not is_right(rows.schema.field(name).type):
            return f"its column {name} is of type {rows.schema.field(name).type}, not {wanted}"
        if rows[name].null_count:
            fix = "; tepo-lab regrade grades them" if name == "correct" else ""
            return f"its column {name} has no value in {rows[name].null_count} of {rows.num_rows} rows{fix}"
    if graded:
        grades = compute.min_max(rows["correct"]).as_py()
        strange = [grade for grade in grades.values() if grade not in (None, 0, 1)]
        if strange:
            return f"it has a grade of {strange[0]}, which is neither 0 nor 1; tepo-lab regrade grades it"
    repeated = rows.num_rows - rows.group_by(["benchmark", "problem", "sample"]).aggregate([]).num_rows
    return f"{repeated} of {rows.num_rows} rows repeat a sample" if repeated else None


def _types() -> dict[str, tuple[Callable[[Any], bool], str]]:
    from pyarrow import types

    def is_text(kind: Any) -> bool:
        plain = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_string(plain) or types.is_large_string(plain))

    text = dict.fromkeys(("benchmark", "problem", "prompt", "answer", "response"), (is_text, "text"))
    integers = dict.fromkeys(("sample", "correct", "tokens"), (types.is_integer, "integer"))
    return text | integers | {"truncated": (types.is_boolean, "boolean")}
