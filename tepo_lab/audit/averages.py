"""The rules by which a row's average can have been computed, and which of them the printed averages follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tepo_lab.audit.printed import BenchmarkCount, PrintedRow, PrintedTables

#: Weight of a benchmark under each rule, the simplest first: among rules that fit equally well, the first is named.
WEIGHTS: dict[str, Callable[[BenchmarkCount], int]] = {
    "plain": lambda count: 1,
    "problem_weighted": lambda count: count.problems,
    "generation_weighted": lambda count: count.generations,
}


@dataclass(frozen=True)
class Rule:
    """A weighted mean of a row's cells. `weights` is a key of `WEIGHTS`, `dash` "left_out" or "zero"."""

    weights: str
    dash: str

    @property
    def words(self) -> str:
        return f"{self.weights.replace('_', '-')} mean, dash {'as zero' if self.dash == 'zero' else 'left out'}"

    def weights_of(self, row: PrintedRow, tables: PrintedTables) -> dict[str, int]:
        """The weight of each benchmark in a row's average."""
        return {
            name: WEIGHTS[self.weights](tables.counts.benchmarks[name])
            for name, printed in tables.scores(row).items()
            if printed is not None or self.dash == "zero"
        }

    def average(self, row: PrintedRow, tables: PrintedTables) -> Fraction | None:
        """A row's average from its printed cells, in percent; None where all of them are dashes."""
        weights = self.weights_of(row, tables)
        if all(row.cells.get(name) is None for name in weights):
            return None
        total = sum((weight * Fraction(row.cells.get(name) or 0) for name, weight in weights.items()), Fraction())
        return total / sum(weights.values())

    def arithmetic(self, row: PrintedRow, tables: PrintedTables) -> str:
        """The weighted mean written out."""
        weights = self.weights_of(row, tables)
        plain = set(weights.values()) == {1}
        terms = [f"{row.cells.get(name) or 0}{'' if plain else f' x {weight}'}" for name, weight in weights.items()]
        return f"({' + '.join(terms)}) / {sum(weights.values())}"


RULES = tuple(Rule(weights, dash) for weights in WEIGHTS for dash in ("left_out", "zero"))


@dataclass(frozen=True)
class RuleFit:
    """How well a rule gives `rows` printed averages.

    `explained` of them are within the tolerance, `exact` within one in the last digit; `mean_off` is the mean absolute
    difference in points.
    """

    rule: Rule
    rows: int
    explained: int
    exact: int
    mean_off: float

    def to_dict(self) -> dict[str, Any]:
        """The fit as plain values."""
        return {
            "rule": self.rule.weights,
            "dash": self.rule.dash,
            "rows": self.rows,
            "explained": self.explained,
            "to_the_digit": self.exact,
            "mean_off": round(self.mean_off, 4),
        }


def fit_rules(rows: Iterable[PrintedRow], tables: PrintedTables) -> list[RuleFit]:
    """The fit of every rule to the rows that print an average and cells, in the order of `RULES`."""
    averaged = [row for row in rows if row.average is not None and RULES[-1].average(row, tables) is not None]
    if not averaged:
        return []
    fits = []
    for rule in RULES:
        differences = [abs(Fraction(row.average or 0) - (rule.average(row, tables) or Fraction())) for row in averaged]
        fits.append(
            RuleFit(
                rule,
                rows=len(averaged),
                explained=sum(off <= tables.counts.tolerance for off in differences),
                exact=sum(off <= tables.unit(row.table) for row, off in zip(averaged, differences, strict=True)),
                mean_off=float(sum(differences) / len(differences)),
            )
        )
    return fits


def best_fit(fits: Iterable[RuleFit]) -> RuleFit | None:
    """The rule that explains most rows; among equals the one with the smallest `mean_off`, then the simplest."""
    return min(fits, key=lambda fit: (-fit.explained, fit.mean_off), default=None)
