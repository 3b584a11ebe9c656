"""Orders of rows: a text's claims about ranks and margins, and printed orders, against recomputed numbers."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import combinations

from tepo_lab.audit.averages import Rule
from tepo_lab.audit.checks import Finding, is_derived, make_finding
from tepo_lab.audit.printed import AVERAGE, Claim, PrintedRow, PrintedTables
from tepo_lab.errors import DataError, nearest

#: Table, model, and the names and averages of two rows: a pair that is printed in several panels counts once.
Pair = tuple[str, str, frozenset[tuple[str, Decimal | None]]]


class OrderCheck:
    """Compares rows by their printed and by their recomputed numbers, and collects findings.

    A recomputed average is known to one in the last digit only, since its cells may be truncated: two averages nearer
    to each other than that have no order.

    Attributes: `findings`; `claims`, how many were checked; `confirmed` and `tied`, how many of them hold, and hold
    with a tie.
    """

    def __init__(self, tables: PrintedTables, rule: Rule) -> None:
        self.tables = tables
        self.findings: list[Finding] = []
        self.claims = self.confirmed = self.tied = 0
        self._averages = {row: rule.average(row, tables) for row in tables.rows}
        self._reported: set[Pair] = set()

    def check_claims(self) -> None:
        """Check every claim of the counts file. Raises `DataError` for a claim about a row that does not exist."""
        for claim in self.tables.counts.claims:
            block = self.tables.block(claim.table, claim.panel, claim.model)
            rows = {row.row: row for row in reversed(block)}
            for name in (claim.row, *claim.over):
                if name not in rows:
                    panel = f" panel {claim.panel}" if claim.panel else ""
                    raise DataError(
                        f"claim {claim.says!r}: {claim.table}{panel} has no row {name!r} of {claim.model}."
                        f"{nearest(name, (row.row for row in block))}"
                    )
            for column in claim.columns:
                before = len(self.findings)
                if claim.rank is not None:
                    tie = self._check_rank(claim, claim.rank, rows[claim.row], column, block)
                else:
                    # A list: every row of `over` is checked, also after a tie.
                    ties = [self._check_margin(claim, rows[claim.row], rows[name], column) for name in claim.over]
                    tie = any(ties)
                holds = len(self.findings) == before
                self.claims += 1
                self.confirmed += holds
                self.tied += tie and holds

    def check_reversals(self, rows: Sequence[PrintedRow]) -> None:
        """Pairs of averages that are printed in one order and recomputed in the other, unless a claim reported them.

        Rows of one table and model are compared across panels, as a reader does.
        """
        for table, model in dict.fromkeys((row.table, row.model) for row in rows):
            for row, other in combinations((row for row in rows if (row.table, row.model) == (table, model)), 2):
                margins = self._margins(row, other, AVERAGE)
                # Two printings of one row have no order.
                if margins is None or row.row == other.row or _pair(row, other) in self._reported:
                    continue
                self._reported.add(_pair(row, other))
                upper, lower = (row, other) if margins[0] > 0 else (other, row)
                printed, recomputed = abs(margins[0]), margins[1] if margins[0] > 0 else -margins[1]
                if printed > 0 and recomputed < -self._uncertainty(row, AVERAGE):
                    panel = f" of panel {lower.panel}" if lower.panel and lower.panel != upper.panel else ""
                    detail = (
                        f"inconsistent: printed {upper.row} {upper.average} above {lower.row} {lower.average}{panel}; "
                        f"recomputed {self._recomputed(upper)} below {self._recomputed(lower)}"
                    )
                    self._add(upper, AVERAGE, printed, recomputed, detail)

    def _check_rank(self, claim: Claim, rank: int, row: PrintedRow, column: str, block: Sequence[PrintedRow]) -> bool:
        """Check that a row has at least a rank in its block. Returns whether another row has the same number."""
        # A row that is printed both in a panel and outside all of them counts once.
        others = {other.row: other for other in block if other.row != row.row and not is_derived(other)}
        margins = {other: both for other in others.values() if (both := self._margins(row, other, column)) is not None}
        above = [other for other, (_, margin) in margins.items() if margin < -self._uncertainty(row, column)]
        if len(above) >= rank:
            if column == AVERAGE:
                self._reported |= {_pair(row, other) for other in above if margins[other][0] > 0}
            shown = ", ".join(f"{other.row} {self._numbers(other, column)}" for other in above)
            detail = (
                f"inconsistent: {claim.where} says {claim.says!r} (rank {rank}); "
                f"{len(above)} {'rows are' if len(above) > 1 else 'row is'} above its {self._numbers(row, column)}: "
                f"{shown}"
            )
            self._add(row, column, Fraction(rank), Fraction(len(above) + 1), detail)
        return any(margin == 0 for _, margin in margins.values())

    def _check_margin(self, claim: Claim, row: PrintedRow, other: PrintedRow, column: str) -> bool:
        """Check that a row is above another one, by so much if the claim says how much. Returns whether they tie."""
        margins = self._margins(row, other, column)
        if margins is None:
            return False
        printed, recomputed = margins
        by = None if claim.by is None else Fraction(repr(claim.by))
        sign = -1 if by is not None and by < 0 else 1
        numbers = f"{row.row} {self._numbers(row, column)}, {other.row} {self._numbers(other, column)}"
        problem = None
        if sign * recomputed < -self._uncertainty(row, column) or sign * printed < 0:
            if column != AVERAGE:
                order = "the printed numbers are in the opposite order"
            elif sign * printed >= 0:
                order = "printed in this order, but recomputed in the opposite one"
            else:
                order = (
                    f"in the opposite order as printed{' and' if sign * recomputed < 0 else ', but not as'} recomputed"
                )
            problem = f"{order}: {numbers}"
        elif by is not None:
            # A margin is compared to its own last digit; each recomputed average may be off by the tolerance.
            digit = Fraction(Decimal(1).scaleb(int(Decimal(repr(claim.by)).as_tuple().exponent)))
            tolerance = 2 * Fraction(repr(self.tables.counts.tolerance)) if column == AVERAGE else digit
            if abs(by - printed) > digit or abs(by - recomputed) > max(digit, tolerance):
                problem = f"{numbers}: the difference is {float(printed):+.2f} as printed"
                if column == AVERAGE:
                    problem += f" and {float(recomputed):+.2f} recomputed"
        if problem is not None:
            detail = f"inconsistent: {claim.where} says {claim.says!r}; {problem}"
            self._add(row, column, printed if by is None else by, recomputed, detail)
            self._reported.add(_pair(row, other))
        return recomputed == 0

    def _margins(self, row: PrintedRow, other: PrintedRow, column: str) -> tuple[Fraction, Fraction] | None:
        """How far a row is above another, in points, printed and recomputed; None where a number is missing."""
        cells = row.cells.get(column), other.cells.get(column)
        if cells[0] is None or cells[1] is None:
            return None
        printed = Fraction(cells[0]) - Fraction(cells[1])
        if column != AVERAGE:
            return printed, printed
        averages = self._averages[row], self._averages[other]
        return None if averages[0] is None or averages[1] is None else (printed, averages[0] - averages[1])

    def _uncertainty(self, row: PrintedRow, column: str) -> Fraction:
        """Points by which a recomputed difference may be off."""
        return Fraction(self.tables.unit(row.table)) if column == AVERAGE else Fraction(0)

    def _recomputed(self, row: PrintedRow) -> str:
        value = self._averages[row]
        return "" if value is None else f"{float(value):.4f}"

    def _numbers(self, row: PrintedRow, column: str) -> str:
        printed = row.cells.get(column)
        return f"{printed} (recomputed {self._recomputed(row)})" if column == AVERAGE else str(printed)

    def _add(self, row: PrintedRow, column: str, printed: Fraction, recomputed: Fraction, detail: str) -> None:
        self.findings.append(make_finding(row, column, "ordering", printed, recomputed, detail))


def _pair(row: PrintedRow, other: PrintedRow) -> Pair:
    return row.table, row.model, frozenset((each.row, each.average) for each in (row, other))
