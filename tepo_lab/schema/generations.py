"""What rows of graded generations must be before they are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

#: Columns that a count needs. `extracted` may be of any type, and null where no answer was found.
COUNTED = ("benchmark", "problem", "sample", "correct", "truncated", "extracted")


def fault_of(rows: pyarrow.Table) -> str | None:
    """Why generations cannot be counted, in a phrase; None where they can.

    Each of `COUNTED` is there and of its type, every grade is the integer 0 or 1 (null: not graded), and no sample of
    a problem stands there twice. Args: `rows` with at least the columns `COUNTED`, further ones are not looked at.
    """
    import pyarrow.compute as compute

    for name in COUNTED:
        if name not in rows.column_names:
            return f"it has no column {name}"
    for name, (is_right, wanted) in _types().items():
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
    }
