"""The audit: printed tables against the counts they are made of, and against themselves."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tepo_lab.audit.averages import RULES, RuleFit, best_fit, fit_rules
from tepo_lab.audit.checks import (
    Finding,
    Kind,
    check_averages,
    check_cells,
    check_derived,
    check_duplicates,
    is_derived,
)
from tepo_lab.audit.orders import OrderCheck
from tepo_lab.audit.printed import PrintedTables

#: The kinds of finding in the order of the report, with their headings.
TITLES: dict[Kind, str] = {
    "cell": "Cells that no count gives",
    "average": "Averages that the rule does not give",
    "delta": "Differences that their rows do not give",
    "mean": "Means that their rows do not give",
    "duplicate": "Runs that are printed differently in two places",
    "ordering": "Orders and claims that the numbers contradict",
}


@dataclass(frozen=True)
class Audit:
    """The result of an audit. `rule` explains most printed averages, of all `candidates`; None if none is printed.

    `ways` counts cells by how they can have been printed; `unchecked` names the rows that were not checked, and why.
    """

    tables: PrintedTables
    findings: tuple[Finding, ...]
    rule: RuleFit | None
    candidates: tuple[RuleFit, ...]
    ways: dict[str, int]
    orders: OrderCheck
    unchecked: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The audit as plain values, in the form of `--format json`."""
        average = None if self.rule is None else self.rule.to_dict() | {"tolerance": self.tables.counts.tolerance}
        orders = self.orders
        rules = {
            "average": average,
            "candidates": [fit.to_dict() for fit in self.candidates],
            "generations": {name: count.generations for name, count in self.tables.counts.benchmarks.items()},
            "cells": self.ways,
            "claims": {"checked": orders.claims, "held": orders.confirmed, "tied": orders.tied},
            "unchecked": list(self.unchecked),
        }
        return {"findings": [asdict(finding) for finding in self.findings], "rules": rules}

    def text(self) -> str:
        """The audit for a reader: what was checked, the rules, and each finding with its arithmetic."""
        ways, orders, tolerance = self.ways, self.orders, self.tables.counts.tolerance
        lines = [
            f"Audit of {self.tables.name}: {len(self.tables.rows)} rows, {ways['checked']} cells.",
            "",
            f"Cells: {ways['checked'] - ways['neither']} of {ways['checked']} are k of n, "
            f"{ways['truncated_or_rounded']} of them truncated or rounded alike, {ways['truncated']} only truncated, "
            f"{ways['rounded']} only rounded; {ways['neither']} are not reachable.",
        ]
        if self.rule is None:
            lines.append("Averages: none printed.")
        else:
            explained = f"{self.rule.explained} of {self.rule.rows}"
            lines += [
                f"Averages: the {self.rule.rule.words}, explains {explained} within {tolerance:g} points.",
                f"  {'rule':<46}{'explained':>10}{'to the digit':>14}{'mean off':>10}",
            ]
            for fit in self.candidates:
                lines.append(f"  {fit.rule.words:<46}{fit.explained:>10}{fit.exact:>14}{fit.mean_off:>10.3f}")
        if orders.claims:
            lines.append(f"Claims: {orders.confirmed} of {orders.claims} hold ({orders.tied} of them with a tie).")
        lines += [*self.unchecked, ""]
        for kind, title in TITLES.items():
            findings = [finding for finding in self.findings if finding.kind == kind]
            if findings:
                lines.append(f"{title} ({len(findings)})")
                lines += [f"  {each.table} {each.model} {each.row} {each.column}: {each.detail}." for each in findings]
                lines.append("")
        count = len(self.findings)
        lines.append(f"{count} finding{'s' if count > 1 else ''}." if count else "No findings.")
        return "\n".join(lines) + "\n"


def audit(tables: PrintedTables) -> Audit:
    """Check printed tables. Findings are sorted by kind, then as their rows.

    Raises `DataError` for a claim about a row that does not exist.
    """
    derived, unchecked = check_derived(tables)
    # A derived row whose sources are missing is not a run either.
    runs = [row for row in tables.rows if not is_derived(row)]
    cells, ways = check_cells(runs, tables)
    candidates = fit_rules(runs, tables)
    best = best_fit(candidates)
    rule = best.rule if best is not None else RULES[0]
    orders = OrderCheck(tables, rule)
    orders.check_claims()
    orders.check_reversals(runs)
    averages, duplicates = check_averages(runs, tables, rule), check_duplicates(runs, tables)
    kinds = list(TITLES)
    findings = sorted(
        [*cells, *averages, *derived, *duplicates, *orders.findings], key=lambda finding: kinds.index(finding.kind)
    )
    return Audit(tables, tuple(findings), best, tuple(candidates), ways, orders, tuple(unchecked))
