"""The best of each column, marked only among rows that are alike: more seeds or steps are another experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tepo_lab.report.table.frame import Column, Row

#: How a table's footer says it.
RULE = "among the complete, unsuspect rows of a panel that have as many seeds and steps as most of them"


def alike(rows: Sequence[Row]) -> list[Row]:
    """A panel's rows that a best may be among: complete, not suspect, of the most common number of seeds and steps.

    Of numbers that are as common the higher ones count. A row that lost a seed has a mean over those that survived,
    and a single seed may be the luckiest of several: neither is held against the others.
    """
    complete = [row for row in rows if row.outcome == "complete" and not row.suspect and row.steps != 0]
    held = Counter(_kind(row) for row in complete)
    most = max(held, key=lambda kind: (held[kind], kind), default=None)
    return [row for row in complete if _kind(row) == most]


def best(rows: Sequence[Row], columns: Sequence[Column]) -> dict[str, float]:
    """The highest percent of each column among `rows`, none where fewer than two have one.

    Keys are the benchmarks' names, `average` and `macro`.
    """
    shown = {column.name: [row.cells[column.name].percent for row in rows] for column in columns}
    shown["average"] = [row.average.generation_weighted for row in rows]
    shown["macro"] = [row.average.macro for row in rows]
    found = {name: [each for each in values if each is not None] for name, values in shown.items()}
    return {name: max(values) for name, values in found.items() if len(values) > 1}


def _kind(row: Row) -> tuple[int, int]:
    return len(row.seeds), row.steps or 0
