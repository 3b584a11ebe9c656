"""From a report's name to finished tables: the registry says which rows, the records fill them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo_lab.errors import ConfigError

if TYPE_CHECKING:
    from tepo_lab.registry.reports import ReportRow, ResolvedReport
    from tepo_lab.report.budget import Budget
    from tepo_lab.report.frame import Table, WantedRow


def sweep_tables(home: Path, name: str, overrides: list[str]) -> tuple[list[Table], str]:
    """The tables that a sweep feeds, and the command that prints them again."""
    from tepo_lab.registry.expand import load_sweep
    from tepo_lab.registry.reports import shown_by

    sweep, _ = load_sweep(name, overrides)
    # Arms of the caller's own choice fill no panel of the paper's.
    own_arms = any(each.partition("=")[0] == "arms" for each in overrides)
    report_name, panels = (name, []) if own_arms else shown_by(name, sweep)
    tables = build_tables(home, report_name, overrides, panels=panels, profiles=sweep.profiles)
    options = [f"--panel {panel}" for panel in panels]
    shown = [shlex.quote(each) for each in overrides if not each.startswith("seeds=")]
    return tables, " ".join(["tepo-lab report", shlex.quote(report_name), *options, *shown])


def build_tables(
    home: Path,
    name: str,
    overrides: list[str],
    *,
    panels: list[str],
    profiles: tuple[str, ...] = (),
    equal: Budget | None = None,
) -> list[Table]:
    """A report's tables, one or more for each profile, read at equal steps or at another `equal` budget."""
    resolved, held = resolved_reports(home, name, overrides, panels=panels, profiles=profiles)
    return [table_of(home, each, held, equal) for each in resolved]


def resolved_reports(
    home: Path, name: str, overrides: list[str], *, panels: list[str], profiles: tuple[str, ...] = ()
) -> tuple[list[ResolvedReport], set[str]]:
    """A report's rows, one report or more for each profile, and the families of the home's runs.

    The profiles are those given or overridden; else the report's own if the home has runs of theirs, else those of the
    sweeps behind it, else nano, and the sweeps' own when there is no run at all.
    """
    from tepo_lab.execute.ledger import families
    from tepo_lab.registry.reports import load_report, own_profiles, profiles_asked, resolve_tables

    loaded, held = load_report(name), families(home)
    asked, rest = profiles_asked(overrides)
    chosen = profiles or asked

    def resolved(wanted: tuple[str, ...]) -> list[ResolvedReport]:
        return [
            table
            for profile in wanted
            for table in resolve_tables(loaded, profile, rest, panels=panels, expect_seeds=bool(profiles))
        ]

    if not chosen:
        own = own_profiles(loaded, rest)
        candidates = dict.fromkeys([loaded.profiles, own, ("nano",)])
        chosen = next((each for each in candidates if _any_held(partial(resolved, each), held)), own)
    return resolved(chosen), held


def _any_held(resolve: Callable[[], list[ResolvedReport]], held: set[str]) -> bool:
    """Whether the home has a run of these reports; none where the overrides fit other profiles only."""
    try:
        return any(row.run.family in held for report in resolve() for row in report.rows)
    except ConfigError:
        return False


def table_of(home: Path, resolved: ResolvedReport, held: set[str], equal: Budget | None = None) -> Table:
    """The table of a resolved report. `held` are the families of the home's runs."""
    from tepo_lab.report.frame import WantedRow
    from tepo_lab.report.table import build_table

    base = WantedRow(None, resolved.base.spec.arm.name, resolved.base.spec.arm.label, resolved.base.family)
    return build_table(
        resolved.report,
        wanted_rows(home, resolved, held),
        base=base,
        home=home,
        suite=resolved.base.spec.suite,
        profile=resolved.profile,
        steps=resolved.steps,
        equal=equal,
        # A panel that names its steps says so in its heading: other steps' numbers do not belong under it.
        exact_steps=any(panel.steps is not None for panel in resolved.report.panels.values()),
    )


def wanted_rows(home: Path, resolved: ResolvedReport, held: set[str]) -> list[WantedRow]:
    from tepo_lab.execute.selection import selection_notes
    from tepo_lab.report.frame import WantedRow

    notes = {family: f" ({note})" for family, note in selection_notes(home).items()}

    def labelled(row: ReportRow) -> str:
        return row.label + notes.get(row.run.family, "")

    return [
        WantedRow(row.panel, row.run.spec.arm.name, labelled(row), row.run.family, row.seeds)
        for row in resolved.rows
        if not row.extra or row.run.family in held
    ]


def plain(tables: list[Table]) -> Any:
    """One table as an object, several as a list."""
    return tables[0].to_dict() if len(tables) == 1 else [table.to_dict() for table in tables]
