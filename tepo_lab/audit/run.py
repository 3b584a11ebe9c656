"""The auditor: printed tables held against the counts they are made of, and against themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tepo_lab.audit.checks import (
    Finding,
    Kind,
    Kinds,
    check_averages,
    check_cells,
    check_deltas,
    check_duplicates,
    check_means,
    sort_rows,
)
from tepo_lab.audit.inputs import PrintedTables
from tepo_lab.audit.orders import Orders, check_orders
from tepo_lab.audit.rules import RULES, Fit, best, fits

TITLES: dict[Kind, str] = {
    "cell": "Cells that no count gives",
    "average": "Averages that the rule does not give",
    "delta": "Differences that their rows do not give",
    "mean": "Means that their rows do not give",
    "duplicate": "Runs that stand differently in two places",
    "ordering": "Orders and claims that the numbers do not bear out",
}


@dataclass(frozen=True)
class Audit:
    """What an audit found. `rule` explains most printed averages, of all `candidates`; None where there is no average.

    `ways` counts cells by how they can have been printed; `unchecked` says which rows could not be checked, and why.
    """

    tables: PrintedTables
    findings: tuple[Finding, ...]
    rule: Fit | None
    candidates: tuple[Fit, ...]
    ways: dict[str, int]
    orders: Orders
    unchecked: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The audit as plain values, in the form of `--format json`."""
        return {"findings": [asdict(each) for each in self.findings], "rules": self._rules()}

    def _rules(self) -> dict[str, Any]:
        claims = self.orders
        return {
            "average": None if self.rule is None else _fit(self.rule) | {"tolerance": self.tables.counts.tolerance},
            "candidates": [_fit(each) for each in self.candidates],
            "generations": {name: each.generations for name, each in self.tables.counts.benchmarks.items()},
            "cells": self.ways,
            "claims": {"checked": claims.claims, "held": claims.held, "tied": claims.tied},
            "unchecked": list(self.unchecked),
        }

    def text(self) -> str:
        """The audit for a reader: what was checked, the rules, and each finding with its arithmetic."""
        lines = [f"Audit of {self.tables.name}: {len(self.tables.rows)} rows, {self.ways['checked']} cells.", ""]
        lines += [*self._about_cells(), *self._about_averages(), *self._about_claims(), *self.unchecked, ""]
        for kind, title in TITLES.items():
            found = [each for each in self.findings if each.kind == kind]
            if found:
                lines += [f"{title} ({len(found)})", *(f"  {_line(each)}" for each in found), ""]
        count = len(self.findings)
        lines.append(f"{count} finding{'s' if count > 1 else ''}." if count else "No findings.")
        return "\n".join(lines) + "\n"

    def _about_cells(self) -> list[str]:
        ways = self.ways
        return [
            f"Cells: {ways['checked'] - ways['neither']} of {ways['checked']} are k of n, "
            f"{ways['truncated_or_rounded']} of them truncated or rounded alike, {ways['truncated']} only truncated, "
            f"{ways['rounded']} only rounded; {ways['neither']} are not reachable."
        ]

    def _about_averages(self) -> list[str]:
        if self.rule is None:
            return ["Averages: none printed."]
        share = f"{self.rule.explained} of {self.rule.rows}"
        lines = [
            f"Averages: the {self.rule.rule.words}, explains {share} within {self.tables.counts.tolerance:g} points.",
            f"  {'rule':<46}{'explained':>10}{'to the digit':>14}{'mean off':>10}",
        ]
        for fit in self.candidates:
            lines.append(f"  {fit.rule.words:<46}{fit.explained:>10}{fit.exact:>14}{fit.mean_off:>10.3f}")
        return lines

    def _about_claims(self) -> list[str]:
        orders = self.orders
        if not orders.claims:
            return []
        return [f"Claims of the text: {orders.held} of {orders.claims} hold ({orders.tied} of them with a tie)."]


def audit(tables: PrintedTables) -> Audit:
    """Check printed tables. Findings come by kind, in the order of the rows. Raises `DataError` for a claim about a
    row that is not there."""
    kinds = sort_rows(tables)
    cells, ways = check_cells(kinds.runs, tables)
    candidates = fits(kinds.runs, tables)
    rule = best(candidates)
    orders = check_orders(kinds.runs, tables, rule.rule if rule is not None else RULES[0])
    findings = [*cells, *_others(kinds, tables, rule), *orders.findings]
    return Audit(tables, tuple(findings), rule, tuple(candidates), ways, orders, kinds.unchecked)


def _others(kinds: Kinds, tables: PrintedTables, rule: Fit | None) -> Sequence[Finding]:
    return [
        *(check_averages(kinds.runs, tables, rule.rule) if rule is not None else ()),
        *check_deltas(kinds.deltas, tables),
        *check_means(kinds.means, tables),
        *check_duplicates(kinds.runs, tables),
    ]


def _fit(fit: Fit) -> dict[str, Any]:
    return {
        "rule": fit.rule.weights,
        "dash": fit.rule.dash,
        "rows": fit.rows,
        "explained": fit.explained,
        "to_the_digit": fit.exact,
        "mean_off": round(fit.mean_off, 4),
    }


def _line(finding: Finding) -> str:
    return f"{finding.table} {finding.model} {finding.row} {finding.column}: {finding.detail}."
