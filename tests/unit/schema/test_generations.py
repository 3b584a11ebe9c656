"""Rows of graded generations that may be counted, and those that may not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tepo_lab.records.generations import LASTING, fault_of

ROWS: dict[str, list[Any]] = {
    "benchmark": ["a", "a", "b"],
    "problem": ["1", "1", "1"],
    "sample": [0, 1, 0],
    "correct": [0, 1, None],
    "truncated": [False, True, False],
    "extracted": [None, "2", "3"],
}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, None),
        ({"extracted": [None] * 3}, None),
        ({"correct": pa.array([0, 1, 1], pa.int8()), "problem": pa.array(["1"] * 3, pa.large_string())}, None),
        ({"correct": [0, 1, 7]}, "it has a grade of 7, which is neither 0 nor 1"),
        ({"correct": [0.0, 1.0, 1.0]}, "its column correct is of type double, not integer"),
        ({"sample": [1, 1, 0]}, "1 of 3 rows repeat a sample"),
        ({"sample": [None, 1, 0]}, "its column sample has no value in 1 of 3 rows"),
    ],
)
def test_faults(changed: dict[str, Any], fault: str | None) -> None:
    assert fault_of(pa.table(ROWS | changed)) == fault


def test_a_missing_column() -> None:
    assert fault_of(pa.table(ROWS).drop_columns(["truncated"])) == "it has no column truncated"


def test_further_columns_are_looked_at_where_they_are_asked_for() -> None:
    further: dict[str, Any] = {"prompt": ["p"] * 3, "answer": ["2"] * 3, "response": ["2"] * 3, "tokens": [3, 3, 3]}
    whole = pa.table(ROWS | further)
    assert fault_of(whole, LASTING) is None
    lacking = whole.drop_columns(["response"])
    assert (fault_of(lacking), fault_of(lacking, LASTING)) == (None, "it has no column response")
    assert fault_of(pa.table(ROWS | further | {"answer": [2, 2, 2]}), LASTING) == (
        "its column answer is of type int64, not text"
    )
