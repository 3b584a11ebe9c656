"""Checks of printed numbers against counts and against each other, one function for each kind of finding.

Orders and claims have a module of their own, `tepo_lab.audit.orders`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from tepo_lab.audit.averages import Rule
from tepo_lab.audit.printed import AVERAGE, PrintedRow, PrintedTables

Kind = Literal["cell", "average", "delta", "mean", "duplicate", "ordering"]

DELTA, VERSUS, MEAN = "delta_", "_vs_", ":mean"


@dataclass(frozen=True)
class Finding:
    """A printed number that contradicts its counts or the table's other numbers.

    `printed` and `recomputed` are percents (of a difference: points; of a rank: the rank).
    """

    table: str
    model: str
    row: str
    column: str
    kind: Kind
    printed: float | None
    recomputed: float | None
    detail: str


def make_finding(
    row: PrintedRow,
    column: str,
    kind: Kind,
    printed: Decimal | Fraction | None,
    recomputed: Fraction | None,
    detail: str,
) -> Finding:
    """A finding at a cell; the detail names the panel."""
    return Finding(
        row.table,
        row.model,
        row.row,
        column,
        kind,
        None if printed is None else float(printed),
        None if recomputed is None else round(float(recomputed), 4),
        f"panel {row.panel}: {detail}" if row.panel else detail,
    )


def check_cells(rows: Iterable[PrintedRow], tables: PrintedTables) -> tuple[list[Finding], dict[str, int]]:
    """Cells that no count gives, and how many cells can have been printed in which way."""
    findings = []
    ways = {"checked": 0, "truncated_or_rounded": 0, "truncated": 0, "rounded": 0, "neither": 0}
    for row in rows:
        for name, printed in tables.scores(row).items():
            if printed is None:
                continue
            graded = tables.counts.benchmarks[name].generations
            truncated, rounded = reachable(printed, tables.unit(row.table), graded)
            way = "_or_".join([*["truncated"] * truncated, *["rounded"] * rounded]) or "neither"
            ways["checked"] += 1
            ways[way] += 1
            if way == "neither":
                below = min(max(math.floor(Fraction(printed) * graded / 100), 0), graded)
                percents = {k: Fraction(100 * k, graded) for k in (below, min(below + 1, graded))}
                nearest = min((abs(percent - Fraction(printed)), percent) for percent in percents.values())[1]
                shown = " and ".join(f"{k}/{graded} = {float(percent):.4f}" for k, percent in percents.items())
                detail = (
                    f"not reachable: no k of {graded} gives {printed}, truncated or rounded; the nearest are {shown}"
                )
                findings.append(make_finding(row, name, "cell", printed, nearest, detail))
    return findings, ways


def reachable(printed: Decimal, unit: Decimal, graded: int) -> tuple[bool, bool]:
    """Whether some k of n = `graded` gives the printed percent when truncated, and when rounded (a half either way).

    Args: `printed` in percent, `unit` one in its last digit.
    """
    low, step = Fraction(printed), Fraction(unit)
    k = math.ceil(low * graded / 100)
    truncated = 0 <= k <= graded and Fraction(100 * k, graded) < low + step
    k = max(0, math.ceil((low - step / 2) * graded / 100))
    rounded = k <= graded and abs(Fraction(100 * k, graded) - low) <= step / 2
    return truncated, rounded


def check_averages(rows: Iterable[PrintedRow], tables: PrintedTables, rule: Rule) -> Iterator[Finding]:
    """Printed averages that differ from the rule's by more than the tolerance."""
    for row in rows:
        recomputed = rule.average(row, tables)
        if row.average is None or recomputed is None:
            continue
        difference = Fraction(row.average) - recomputed
        if abs(difference) > tables.counts.tolerance:
            detail = (
                f"inconsistent: {rule.words}: {rule.arithmetic(row, tables)} = {float(recomputed):.4f}; printed "
                f"{row.average}, {float(difference):+.4f}"
            )
            yield make_finding(row, AVERAGE, "average", row.average, recomputed, detail)


def is_derived(row: PrintedRow) -> bool:
    """Whether a row is by its name a difference or a mean of other rows."""
    return row.row.startswith(DELTA) or row.row.endswith(MEAN)


def sources_of(row: PrintedRow, block: Sequence[PrintedRow]) -> tuple[PrintedRow, ...]:
    """The rows of its block that a derived row is computed from; none when they are missing.

    `delta_A_vs_B` is A minus B, `A:mean` the mean of the rows `A:...`.
    """
    if not row.row.startswith(DELTA):
        prefix = row.row.removesuffix(MEAN) + ":"
        return tuple(other for other in block if other.row.startswith(prefix) and not other.row.endswith(MEAN))
    by_name = {other.row: other for other in reversed(block)}
    name = row.row.removeprefix(DELTA)
    # A row's own name may contain _vs_: the first split into two known names counts.
    for place in range(len(name)):
        left, right = name[:place], name[place + len(VERSUS) :]
        if name.startswith(VERSUS, place) and left in by_name and right in by_name:
            return by_name[left], by_name[right]
    return ()


def check_derived(tables: PrintedTables) -> tuple[list[Finding], list[str]]:
    """Differences and means that their rows do not give within one in the last digit, and which were not checked."""
    findings, unchecked = [], []
    for row in filter(is_derived, tables.rows):
        block = tables.block(row.table, row.panel, row.model)
        kind: Kind = "delta" if row.row.startswith(DELTA) else "mean"
        sources = sources_of(row, block)
        if not sources:
            what = "difference" if kind == "delta" else "mean"
            unchecked.append(f"{row.place} {row.model} {row.row}: the rows of this {what} are missing")
        for name, printed in row.cells.items():
            cells = [cell for source in sources if (cell := source.cells.get(name)) is not None]
            if printed is None or not cells or len(cells) < len(sources):
                continue
            recomputed = Fraction(cells[0] - cells[1]) if kind == "delta" else Fraction(sum(cells)) / len(cells)
            if abs(Fraction(printed) - recomputed) <= Fraction(tables.unit(row.table)):
                continue
            if kind == "delta":
                detail = _difference_in_words(name, printed, cells, sources, block)
            else:
                detail = (
                    f"the mean of {', '.join(source.row for source in sources)} is ({' + '.join(map(str, cells))}) / "
                    f"{len(cells)} = {float(recomputed):.4f}; printed {printed}, "
                    f"{float(Fraction(printed) - recomputed):+.4f}"
                )
            findings.append(make_finding(row, name, kind, printed, recomputed, f"inconsistent: {detail}"))
    return findings, unchecked


def _difference_in_words(
    name: str, printed: Decimal, cells: Sequence[Decimal], sources: Sequence[PrintedRow], block: Sequence[PrintedRow]
) -> str:
    """The arithmetic of a printed difference, and another row of the block that it may have been taken from."""
    left, right = sources
    difference = cells[0] - cells[1]
    words = f"{left.row} minus {right.row} is {cells[0]} - {cells[1]} = {difference}; "
    words += f"printed {printed}, {printed - difference:+}"
    for other in block:
        cell = other.cells.get(name)
        if cell is not None and other is not left and not other.row.startswith(DELTA) and cells[0] - cell == printed:
            return f"{words} ({left.row} minus {other.row} is {cells[0]} - {cell} = {printed})"
    return words


def check_duplicates(rows: Iterable[PrintedRow], tables: PrintedTables) -> Iterator[Finding]:
    """Numbers of one run that are printed differently in two places."""
    printings: dict[tuple[str, ...], list[PrintedRow]] = {}
    for row in rows:
        name = tables.counts.same_runs.get(row.row, row.row)
        key = (row.model, name) if tables.counts.same_name_same_run else (row.table, row.panel, row.model, name)
        printings.setdefault(key, []).append(row)
    for first, *others in printings.values():
        for row in others:
            for name, here in row.cells.items():
                there = first.cells.get(name)
                if name in first.cells and here != there:
                    shown_here, shown_there = ("a dash" if cell is None else str(cell) for cell in (here, there))
                    detail = (
                        f"inconsistent: the same run is printed as {first.row} in {first.place} with {shown_there} and "
                        f"as {row.row} in {row.place} with {shown_here}"
                    )
                    recomputed = None if there is None else Fraction(there)
                    yield make_finding(row, name, "duplicate", here, recomputed, detail)
