"""What is checked of printed numbers, one function a kind of finding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from tepo_lab.audit.inputs import AVERAGE, PrintedRow, PrintedTables
from tepo_lab.audit.rules import Rule, arithmetic, average, neighbours, reachable, weighed

Kind = Literal["cell", "average", "delta", "mean", "duplicate", "ordering"]

DELTA, VERSUS, MEAN = "delta_", "_vs_", ":mean"


@dataclass(frozen=True)
class Finding:
    """A printed number that its table's other numbers or its counts do not give.

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


@dataclass(frozen=True)
class Kinds:
    """Rows by what they are: runs, differences of two rows, means of several; and those that fit none of these."""

    runs: tuple[PrintedRow, ...]
    deltas: tuple[tuple[PrintedRow, PrintedRow, PrintedRow], ...]
    means: tuple[tuple[PrintedRow, tuple[PrintedRow, ...]], ...]
    unchecked: tuple[str, ...]


def sort_rows(tables: PrintedTables) -> Kinds:
    """Sort the rows by their names: `delta_A_vs_B` is A minus B, `A:mean` the mean of the rows `A:...`."""
    runs, deltas, means, unchecked = [], [], [], []
    for row in tables.rows:
        if row.row.startswith(DELTA):
            pair = _pair(row, tables)
            if pair is None:
                unchecked.append(f"{row.place} {row.model} {row.row}: the rows it is the difference of are not there")
            else:
                deltas.append((row, *pair))
        elif row.row.endswith(MEAN) and (members := _members(row, tables)):
            means.append((row, members))
        elif row.row.endswith(MEAN):
            unchecked.append(f"{row.place} {row.model} {row.row}: the rows it is the mean of are not there")
        else:
            runs.append(row)
    return Kinds(tuple(runs), tuple(deltas), tuple(means), tuple(unchecked))


def is_derived(row: PrintedRow) -> bool:
    """Whether a row is by its name a difference or a mean of others."""
    return row.row.startswith(DELTA) or row.row.endswith(MEAN)


def _pair(row: PrintedRow, tables: PrintedTables) -> tuple[PrintedRow, PrintedRow] | None:
    block = {each.row: each for each in reversed(tables.block(row))}
    name = row.row.removeprefix(DELTA)
    for place in range(len(name)):
        if name.startswith(VERSUS, place):
            left, right = name[:place], name[place + len(VERSUS) :]
            if left in block and right in block:
                return block[left], block[right]
    return None


def _members(row: PrintedRow, tables: PrintedTables) -> tuple[PrintedRow, ...]:
    prefix = row.row.removesuffix(MEAN) + ":"
    return tuple(each for each in tables.block(row) if each.row.startswith(prefix) and not each.row.endswith(MEAN))


def check_cells(rows: Iterable[PrintedRow], tables: PrintedTables) -> tuple[list[Finding], dict[str, int]]:
    """Cells that no k of n prints, and how many cells are printed in which way."""
    findings = []
    ways = {"checked": 0, "truncated_or_rounded": 0, "truncated": 0, "rounded": 0, "neither": 0}
    for row in rows:
        for name, printed in row.scores(tables.benchmarks[row.table]).items():
            if printed is None:
                continue
            graded, unit = tables.counts.benchmarks[name].generations, tables.unit(row.table)
            truncated, rounded = reachable(printed, unit, graded)
            both = "truncated_or_rounded" if truncated and rounded else "truncated" if truncated else "rounded"
            ways["checked"] += 1
            ways[both if truncated or rounded else "neither"] += 1
            if not (truncated or rounded):
                findings.append(_unreachable(row, name, printed, graded))
    return findings, ways


def _unreachable(row: PrintedRow, name: str, printed: Decimal, graded: int) -> Finding:
    counts = dict.fromkeys(neighbours(printed, graded))
    percents = {k: Fraction(100 * k, graded) for k in counts}
    nearest = min(percents.values(), key=lambda each: abs(each - Fraction(printed)))
    shown = " and ".join(f"{k}/{graded} = {float(percent):.4f}" for k, percent in percents.items())
    return _finding(
        row,
        name,
        "cell",
        printed,
        nearest,
        f"not reachable: no k of {graded} gives {printed}, truncated or rounded; the nearest are {shown}",
    )


def check_averages(rows: Iterable[PrintedRow], tables: PrintedTables, rule: Rule) -> Iterator[Finding]:
    """Printed averages that the rule does not explain within the tolerance."""
    for row in rows:
        recomputed = average(row, tables, rule)
        if row.average is None or recomputed is None:
            continue
        difference = Fraction(row.average) - recomputed
        if abs(difference) > tables.counts.tolerance:
            weights = weighed(row, tables, rule)
            detail = (
                f"inconsistent: {rule.words}: {arithmetic(row, weights)} = {float(recomputed):.4f}; printed "
                f"{row.average}, {float(difference):+.4f}"
            )
            yield _finding(row, AVERAGE, "average", row.average, recomputed, detail)


def check_deltas(
    deltas: Iterable[tuple[PrintedRow, PrintedRow, PrintedRow]], tables: PrintedTables
) -> Iterator[Finding]:
    """Printed differences that their two rows do not give, one in the last digit allowed for."""
    for row, left, right in deltas:
        for name, printed in row.cells.items():
            first, second = left.cells.get(name), right.cells.get(name)
            if printed is None or first is None or second is None:
                continue
            difference = first - second
            if abs(printed - difference) > tables.unit(row.table):
                detail = (
                    f"inconsistent: {left.row} minus {right.row} is {first} - {second} = {difference}; printed "
                    f"{printed}, {printed - difference:+}{_other_pair(row, name, printed, left, tables)}"
                )
                yield _finding(row, name, "delta", printed, Fraction(difference), detail)


def _other_pair(row: PrintedRow, name: str, printed: Decimal, left: PrintedRow, tables: PrintedTables) -> str:
    """Another row of the block that gives the printed difference, if there is one."""
    value = left.cells[name]
    for other in tables.block(row):
        cell = other.cells.get(name)
        if cell is not None and value is not None and other not in (row, left) and value - cell == printed:
            return f" ({left.row} minus {other.row} is {value} - {cell} = {printed})"
    return ""


def check_means(means: Iterable[tuple[PrintedRow, Sequence[PrintedRow]]], tables: PrintedTables) -> Iterator[Finding]:
    """Printed means that their rows do not give, one in the last digit allowed for."""
    for row, members in means:
        for name, printed in row.cells.items():
            cells = [each.cells.get(name) for each in members]
            held = [cell for cell in cells if cell is not None]
            if printed is None or len(held) != len(members):
                continue
            mean = Fraction(sum(held)) / len(held)
            if abs(Fraction(printed) - mean) > Fraction(tables.unit(row.table)):
                terms = " + ".join(str(cell) for cell in held)
                detail = (
                    f"inconsistent: the mean of {', '.join(each.row for each in members)} is ({terms}) / {len(held)} = "
                    f"{float(mean):.4f}; printed {printed}, {float(Fraction(printed) - mean):+.4f}"
                )
                yield _finding(row, name, "mean", printed, mean, detail)


def check_duplicates(rows: Iterable[PrintedRow], tables: PrintedTables) -> Iterator[Finding]:
    """Numbers of one run that stand differently in two places."""
    printings: dict[tuple[str, ...], list[PrintedRow]] = {}
    for row in rows:
        name = tables.counts.same_runs.get(row.row, row.row)
        key = (row.model, name) if tables.counts.same_name_same_run else (row.table, row.panel, row.model, name)
        printings.setdefault(key, []).append(row)
    for first, *others in printings.values():
        for row in others:
            for name in (each for each in row.cells if each in first.cells):
                here, there = row.cells[name], first.cells[name]
                if here != there:
                    detail = (
                        f"inconsistent: the same run stands as {first.row} in {first.place} with {_shown(there)} and "
                        f"as {row.row} in {row.place} with {_shown(here)}"
                    )
                    yield _finding(row, name, "duplicate", here, None if there is None else Fraction(there), detail)


def _shown(value: Decimal | None) -> str:
    return "a dash" if value is None else str(value)


def _finding(
    row: PrintedRow, column: str, kind: Kind, printed: Decimal | None, recomputed: Fraction | None, detail: str
) -> Finding:
    return Finding(
        row.table,
        row.model,
        row.row,
        column,
        kind,
        None if printed is None else float(printed),
        None if recomputed is None else round(float(recomputed), 4),
        f"{f'panel {row.panel}: ' if row.panel else ''}{detail}",
    )
