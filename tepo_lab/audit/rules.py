"""How printed numbers can have come about: k of n, and the ways to average a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from tepo_lab.audit.inputs import BenchmarkCount, PrintedRow, PrintedTables

#: What each rule weighs a benchmark by. The simplest first: where rules agree, it is the one that is named.
WEIGHTS: dict[str, Callable[[BenchmarkCount], int]] = {
    "plain": lambda count: 1,
    "problem_weighted": lambda count: count.problems,
    "generation_weighted": lambda count: count.generations,
}

DASHES = ("left_out", "zero")


@dataclass(frozen=True)
class Rule:
    """A way to average a row: weights, and whether a dash counts as zero or is left out."""

    weights: str
    dash: str

    @property
    def words(self) -> str:
        return f"{self.weights.replace('_', '-')} mean, dash {'as zero' if self.dash == 'zero' else 'left out'}"


RULES = tuple(Rule(weights, dash) for weights in WEIGHTS for dash in DASHES)


@dataclass(frozen=True)
class Fit:
    """How a rule does over `rows` printed averages.

    `explained` of them lie within the tolerance, `exact` within one in the last digit; `mean_off` is in points.
    """

    rule: Rule
    rows: int
    explained: int
    exact: int
    mean_off: float


def reachable(printed: Decimal, unit: Decimal, graded: int) -> tuple[bool, bool]:
    """Whether some k of n = `graded` gives the print when truncated, and when rounded (a half either way).

    Args: `printed` in percent, `unit` one in its last digit.
    """
    low, step = Fraction(printed), Fraction(unit)
    k = math.ceil(low * graded / 100)
    truncated = 0 <= k <= graded and Fraction(100 * k, graded) < low + step
    k = max(0, math.ceil((low - step / 2) * graded / 100))
    rounded = k <= graded and abs(Fraction(100 * k, graded) - low) <= step / 2
    return truncated, rounded


def neighbours(printed: Decimal, graded: int) -> tuple[int, int]:
    """The counts of `graded` whose percents lie next below (or at) and above a print."""
    k = min(max(math.floor(Fraction(printed) * graded / 100), 0), graded)
    return k, min(k + 1, graded)


def average(row: PrintedRow, tables: PrintedTables, rule: Rule) -> Fraction | None:
    """A row's average by a rule from its printed cells, in percent; None where all of them are dashes."""
    weights = weighed(row, tables, rule)
    total = sum(weights.values())
    cells = row.scores(tuple(weights))
    if not total or all(value is None for value in cells.values()):
        return None
    return (
        sum((weights[name] * Fraction(value) for name, value in cells.items() if value is not None), Fraction()) / total
    )


def weighed(row: PrintedRow, tables: PrintedTables, rule: Rule) -> dict[str, int]:
    """The weight of each benchmark in a row's average."""
    cells = row.scores(tables.benchmarks[row.table])
    weight = WEIGHTS[rule.weights]
    return {
        name: weight(tables.counts.benchmarks[name])
        for name, value in cells.items()
        if value is not None or rule.dash == "zero"
    }


def fits(rows: Iterable[PrintedRow], tables: PrintedTables) -> list[Fit]:
    """Every rule over the rows that print an average and cells, in the order of `RULES`."""
    averaged = [row for row in rows if row.average is not None and average(row, tables, RULES[-1]) is not None]
    return [_fit(averaged, tables, rule) for rule in RULES] if averaged else []


def _fit(rows: list[PrintedRow], tables: PrintedTables, rule: Rule) -> Fit:
    offs = [(off(row, tables, rule), tables.unit(row.table)) for row in rows]
    return Fit(
        rule,
        len(rows),
        sum(abs(each) <= tables.counts.tolerance for each, _ in offs),
        sum(abs(each) <= unit for each, unit in offs),
        float(sum(abs(each) for each, _ in offs) / len(offs)),
    )


def off(row: PrintedRow, tables: PrintedTables, rule: Rule) -> Fraction:
    """A row's printed average minus the one recomputed, in points; both must be there."""
    recomputed = average(row, tables, rule)
    assert recomputed is not None, "only rows with cells are averaged"
    assert row.average is not None, "only rows with a printed average are compared"
    return Fraction(row.average) - recomputed


def best(candidates: Iterable[Fit]) -> Fit | None:
    """The rule that explains most rows; among equals the one that is least off, then the simplest."""
    return min(candidates, key=lambda fit: (-fit.explained, fit.mean_off), default=None)


def arithmetic(row: PrintedRow, weights: Mapping[str, int]) -> str:
    """A weighted mean written out."""
    if set(weights.values()) == {1}:
        terms = " + ".join(str(row.cells.get(name) or 0) for name in weights)
    else:
        terms = " + ".join(f"{row.cells.get(name) or 0} x {weight}" for name, weight in weights.items())
    return f"({terms}) / {sum(weights.values())}"
