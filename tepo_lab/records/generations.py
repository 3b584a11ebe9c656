"""What rows of graded generations must be before they are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

#: Columns that a count needs. `extracted` may be of any type, and null where no answer was found.
COUNTED = ("benchmark", "problem", "sample", "correct", "truncated", "extracted")

#: Columns that every file of generations has; one of an older version may lack the others.
LASTING = (*COUNTED, "prompt", "answer", "response", "tokens")


def fault_of(rows: pyarrow.Table, columns: Sequence[str] = COUNTED) -> str | None:
    """Why generations cannot be counted, in a phrase; None where they can.

    Each of `columns`, which are those of `COUNTED` or more, is there and of its type, every grade is the integer 0 or 1
    (null: not graded), and no sample of a problem stands there twice. Further columns of `rows` are not looked at.
    """
    import pyarrow.compute as compute

    types = _types()
    for name in columns:
        if name not in rows.column_names:
            return f"it has no column {name}"
        if name not in types:
            continue
        is_right, wanted = types[name]
        if not is_right(rows.schema.field(name).type):
            return f"its column {name} is of type {rows.schema.field(name).type}, not {wanted}"
        if name != "correct" and rows[name].null_count:
            return f"its column {name} has no value in {rows[name].null_count} of {rows.num_rows} rows"
    grades = compute.min_max(rows["correct"]).as_py()
    strange = [grade for grade in grades.values() if grade not in (None, 0, 1)]
    if strange:
        return f"it has a grade of {strange[0]}, which is neither 0 nor 1"
    repeated = rows.num_rows - rows.group_by(["benchmark", "problem", "sample"]).aggregate([]).num_rows
    return f"{repeated} of {rows.num_rows} rows repeat a sample" if repeated else None


def ungraded(generations: pyarrow.Table) -> pyarrow.Table:
    """Generations as before their grading, whatever stood in the columns that a count needs of it."""
    import pyarrow as pa

    for column, kind in (("correct", pa.int64()), ("extracted", pa.string())):
        generations = with_column(generations, column, pa.nulls(generations.num_rows, kind))
    return generations


def with_column(table: pyarrow.Table, name: str, values: pyarrow.Array) -> pyarrow.Table:
    """The table with a column in the place of the one of that name, or behind the others."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, name, values) if place >= 0 else table.append_column(name, values)


def _types() -> dict[str, tuple[Callable[[Any], bool], str]]:
    from pyarrow import types

    def is_text(kind: Any) -> bool:
        plain = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_string(plain) or types.is_large_string(plain))

    return {
        "benchmark": (is_text, "text"),
        "problem": (is_text, "text"),
        "sample": (types.is_integer, "integer"),
        "correct": (types.is_integer, "integer"),
        "truncated": (types.is_boolean, "boolean"),
        "prompt": (is_text, "text"),
        "answer": (is_text, "text"),
        "response": (is_text, "text"),
        "tokens": (types.is_integer, "integer"),
    }
