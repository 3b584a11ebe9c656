"""Orderings: what a text says of ranks and margins, and printed orders, held against recomputed numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import combinations

from tepo_lab.audit.checks import Finding, is_derived
from tepo_lab.audit.inputs import AVERAGE, Claim, PrintedRow, PrintedTables
from tepo_lab.audit.rules import Rule, average
from tepo_lab.errors import DataError, nearest

#: Two rows of a table and model, by their names.
Pair = tuple[str, str, frozenset[tuple[str, Decimal | None]]]


@dataclass(frozen=True)
class Orders:
    """Findings, how many claims of a text were held against the numbers and did not turn round, and the ties."""

    findings: tuple[Finding, ...]
    claims: int
    held: int
    tied: int


class Ordering:
    """Compares rows by their printed and by their recomputed numbers.

    A recomputed average is sure to one in the last digit only, since the cells it is made of may be truncated: two
    that are nearer to each other are not said to be in any order.
    """

    def __init__(self, tables: PrintedTables, rule: Rule) -> None:
        self.tables = tables
        self._averages = {row: average(row, tables, rule) for row in tables.rows}

    def recomputed(self, row: PrintedRow, column: str) -> Fraction | None:
        """An average by the rule; any other cell as it is printed."""
        if column == AVERAGE:
            return self._averages[row]
        cell = row.cells.get(column)
        return None if cell is None else Fraction(cell)

    def margin(self, row: PrintedRow, other: PrintedRow, column: str) -> tuple[Fraction, Fraction] | None:
        """How far a row lies above another, in points, printed and recomputed; None where a number is missing."""
        printed, printed_other = row.cells.get(column), other.cells.get(column)
        value, value_other = self.recomputed(row, column), self.recomputed(other, column)
        if printed is None or printed_other is None or value is None or value_other is None:
            return None
        return Fraction(printed) - Fraction(printed_other), value - value_other

    def unsure(self, row: PrintedRow, column: str) -> Fraction:
        """Points by which a recomputed difference may be off."""
        return Fraction(self.tables.unit(row.table)) if column == AVERAGE else Fraction(0)


def check_orders(rows: Sequence[PrintedRow], tables: PrintedTables, rule: Rule) -> Orders:
    """The claims of the counts file, then every pair of printed averages that the recomputed ones turn round."""
    ordering = Ordering(tables, rule)
    findings: list[Finding] = []
    turned: set[Pair] = set()
    held = tied = checked = 0
    for claim in tables.counts.claims:
        for column in claim.columns:
            checked += 1
            found, ties = _claim(claim, column, ordering, turned)
            findings += found
            held += not found
            tied += ties and not found
    findings += _reversals(rows, ordering, turned)
    return Orders(tuple(findings), checked, held, tied)


def _claim(claim: Claim, column: str, ordering: Ordering, turned: set[Pair]) -> tuple[list[Finding], bool]:
    block = ordering.tables.block_of(claim.table, claim.panel, claim.model)
    row = _row_of(claim, claim.row, block)
    if claim.rank is not None:
        return _rank(claim, claim.rank, row, column, block, ordering, turned)
    findings, tie = [], False
    for name in claim.over:
        other = _row_of(claim, name, block)
        margins = ordering.margin(row, other, column)
        if margins is None:
            continue
        tie = tie or margins[1] == 0
        finding = _above(claim, row, other, column, margins, ordering)
        if finding is not None:
            findings.append(finding)
            turned.add(_pair(row, other))
    return findings, tie


def _row_of(claim: Claim, name: str, block: Sequence[PrintedRow]) -> PrintedRow:
    for row in block:
        if row.row == name:
            return row
    known = nearest(name, (row.row for row in block))
    panel = f" panel {claim.panel}" if claim.panel else ""
    raise DataError(f"claim {claim.says!r}: {claim.table}{panel} has no row {name!r} of {claim.model}.{known}")


def _rank(
    claim: Claim,
    rank: int,
    row: PrintedRow,
    column: str,
    block: Sequence[PrintedRow],
    ordering: Ordering,
    turned: set[Pair],
) -> tuple[list[Finding], bool]:
    # A row that stands both in a panel and outside all of them counts once.
    others = {each.row: each for each in block if each.row != row.row and not is_derived(each)}
    margins = {other: found for other in others.values() if (found := ordering.margin(row, other, column))}
    above = [other for other, (_, found) in margins.items() if found < -ordering.unsure(row, column)]
    tie = any(found == 0 for _, found in margins.values())
    if len(above) < rank:
        return [], tie
    if column == AVERAGE:
        turned |= {_pair(row, other) for other in above if margins[other][0] > 0}
    shown = ", ".join(f"{other.row} {_numbers(other, column, ordering)}" for other in above)
    rows = f"{len(above)} rows are" if len(above) > 1 else "1 row is"
    detail = (
        f"inconsistent: {claim.where} says {claim.says!r} (rank {rank}); {rows} above its "
        f"{_numbers(row, column, ordering)}: {shown}"
    )
    return [_finding(row, column, Fraction(rank), Fraction(len(above) + 1), detail)], tie


def _above(
    claim: Claim,
    row: PrintedRow,
    other: PrintedRow,
    column: str,
    margins: tuple[Fraction, Fraction],
    ordering: Ordering,
) -> Finding | None:
    printed, recomputed = margins
    unsure = ordering.unsure(row, column)
    sign = -1 if claim.by is not None and claim.by < 0 else 1
    numbers = f"{row.row} {_numbers(row, column, ordering)}, {other.row} {_numbers(other, column, ordering)}"
    said = f"{claim.where} says {claim.says!r}"
    if sign * recomputed < -unsure or sign * printed < 0:
        detail = f"inconsistent: {said}; {_which_way(printed, recomputed, sign, column)}: {numbers}"
        return _finding(row, column, printed if claim.by is None else _exact(claim.by), recomputed, detail)
    if claim.by is None:
        return None
    by = _exact(claim.by)
    # A margin is said in its own digits, and each recomputed average is explained within the tolerance.
    digits = Fraction(Decimal(1).scaleb(int(Decimal(repr(claim.by)).as_tuple().exponent)))
    room = max(digits, 2 * _exact(ordering.tables.counts.tolerance)) if column == AVERAGE else digits
    if abs(by - printed) <= digits and abs(by - recomputed) <= room:
        return None
    detail = (
        f"inconsistent: {said}; {numbers}: the difference is {float(printed):+.2f} as printed"
        f"{f' and {float(recomputed):+.2f} recomputed' if column == AVERAGE else ''}"
    )
    return _finding(row, column, by, recomputed, detail)


def _which_way(printed: Fraction, recomputed: Fraction, sign: int, column: str) -> str:
    """Which numbers stand in the other order than a text says."""
    if column != AVERAGE:
        return "the printed numbers stand the other way round"
    if sign * printed >= 0:
        return "printed so, but the other way round when recomputed"
    return f"the other way round as printed{' and recomputed' if sign * recomputed < 0 else ', not when recomputed'}"


def _reversals(rows: Sequence[PrintedRow], ordering: Ordering, turned: set[Pair]) -> Iterator[Finding]:
    """Pairs of a table whose printed averages stand in one order and whose recomputed ones stand in the other.

    Rows of one model are held against each other whatever panels they stand in: a reader compares them all.
    """
    seen = set(turned)
    for place in dict.fromkeys((row.table, row.model) for row in rows):
        held = [row for row in rows if (row.table, row.model) == place]
        for row, other in combinations(held, 2):
            margins = ordering.margin(row, other, AVERAGE)
            # A row that stands twice is held against itself elsewhere.
            if margins is None or row.row == other.row or _pair(row, other) in seen:
                continue
            seen.add(_pair(row, other))
            upper, lower = (row, other) if margins[0] > 0 else (other, row)
            printed, recomputed = abs(margins[0]), margins[1] if margins[0] > 0 else -margins[1]
            if printed > 0 and recomputed < -ordering.unsure(row, AVERAGE):
                where = f" of panel {lower.panel}" if lower.panel and lower.panel != upper.panel else ""
                detail = (
                    f"inconsistent: printed {upper.row} {upper.average} above {lower.row} {lower.average}{where}; "
                    f"recomputed {_float(ordering, upper)} below {_float(ordering, lower)}"
                )
                yield _finding(upper, AVERAGE, printed, recomputed, detail)


def _pair(row: PrintedRow, other: PrintedRow) -> Pair:
    """What tells two pairs of rows apart: one that stands in several panels with the same averages is one."""
    return row.table, row.model, frozenset((each.row, each.average) for each in (row, other))


def _float(ordering: Ordering, row: PrintedRow) -> str:
    value = ordering.recomputed(row, AVERAGE)
    return "" if value is None else f"{float(value):.4f}"


def _numbers(row: PrintedRow, column: str, ordering: Ordering) -> str:
    printed = row.cells.get(column)
    return f"{printed} (recomputed {_float(ordering, row)})" if column == AVERAGE else str(printed)


def _exact(value: float) -> Fraction:
    return Fraction(repr(value))


def _finding(row: PrintedRow, column: str, printed: Fraction, recomputed: Fraction, detail: str) -> Finding:
    panel = f"panel {row.panel}: " if row.panel else ""
    numbers = [round(float(each), 4) for each in (printed, recomputed)]
    return Finding(row.table, row.model, row.row, column, "ordering", numbers[0], numbers[1], f"{panel}{detail}")
