"""From a report's name to finished tables: the registry gives the rows, the records of a home fill them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tepo_lab.errors import ConfigError
from tepo_lab.execute.planning.actions import damaged_seeds, families
from tepo_lab.execute.planning.selection import selection_notes
from tepo_lab.records.files import run_folders
from tepo_lab.registry.compose import lineage
from tepo_lab.registry.expand import load_sweep
from tepo_lab.registry.locations import find, names, package_root
from tepo_lab.registry.reports import (
    ResolvedReport,
    load_report,
    once,
    own_profiles,
    profiles_asked,
    resolve_report,
    shown_by,
)
from tepo_lab.report.figures import data as figures_data
from tepo_lab.report.table.budget import Budget
from tepo_lab.report.table.build import build_table
from tepo_lab.report.table.frame import Table
from tepo_lab.report.table.published import against_published, load_published
from tepo_lab.report.table.target import Target, TargetTable, steps_to_target
from tepo_lab.report.table.wanted import Wanted, WantedRow, graded_benchmarks
from tepo_lab.schema.figure import FigureReport
from tepo_lab.schema.table import Report


@dataclass(frozen=True)
class HomeReport:
    """A report resolved for the runs of a home, one entry for each profile.

    `families` are those of the home's runs. `note` says that the profiles are neither those asked for nor the report's
    own, and why. `tried` are all profiles that were looked for in the home.
    """

    reports: tuple[ResolvedReport, ...]
    families: frozenset[str]
    note: str | None = None
    tried: tuple[str, ...] = ()

    @property
    def has_runs(self) -> bool:
        """Whether the home has a run of any row."""
        return _has_runs(self.reports, self.families)

    @property
    def has_base(self) -> bool:
        """Whether the home has the evaluation of an untrained model."""
        return any(report.base.family in self.families for report in self.reports)

    @property
    def notes(self) -> list[str]:
        return [self.note] if self.note else []


def _has_runs(reports: Sequence[ResolvedReport], families: frozenset[str]) -> bool:
    return any(row.run.family in families for report in reports for row in report.rows)


def resolved_reports(
    home: Path, name: str, overrides: list[str], *, panels: list[str], profiles: tuple[str, ...] = ()
) -> HomeReport:
    """What a report asks for.

    The profiles are those given or overridden; else the report's own if the home has runs of theirs, else those of the
    sweeps behind it, else nano, and the sweeps' own when there is no run at all.
    """
    report, in_home = load_report(name), frozenset(families(home))
    asked, rest = profiles_asked(overrides)

    def resolve(chosen: Sequence[str]) -> tuple[ResolvedReport, ...]:
        return tuple(
            resolve_report(report, profile, rest, panels=panels, expect_seeds=bool(profiles)) for profile in chosen
        )

    if chosen := profiles or asked:
        return HomeReport(resolve(chosen), in_home, tried=chosen)
    own = own_profiles(report, rest)
    candidates = list(dict.fromkeys([report.profiles, own, ("nano",)]))
    tried = tuple(dict.fromkeys(profile for candidate in candidates for profile in candidate))
    for candidate in candidates:
        try:
            reports = resolve(candidate)
        except ConfigError:
            # The overrides fit other profiles only.
            continue
        if _has_runs(reports, in_home):
            break
    else:
        candidate, reports = own, resolve(own)
    note = None
    if candidate != report.profiles:
        note = (
            f"No run of {' or '.join(report.profiles)} is in the home: this is of {', '.join(candidate)}; "
            "profile=NAME asks for another profile."
        )
    return HomeReport(reports, in_home, note, tried)


def check_runs(home: Path, name: str, resolved: HomeReport) -> None:
    """Raises `ConfigError` when the home of a report does not exist or has no run at all."""
    if run_folders(home):
        return
    own = next(iter(resolved.reports[0].report.panels.values())).sweep
    sweep = name if name in names("sweeps") else own
    why = "it holds no run at all" if home.is_dir() else "there is no such folder"
    raise ConfigError(
        f"--home {home} has no run of {name}: {why}. tepo-lab run {sweep} makes some; another home is named with "
        "--home or TEPO_LAB_HOME."
    )


def tables_of(
    home: Path, resolved: HomeReport, equal: Budget | None = None, pass_at: Sequence[int] = ()
) -> list[Table]:
    """The tables of a resolved report: neighbouring profiles with the same benchmarks are in one.

    Rows are read at equal steps, or at another `equal` budget; `pass_at` are the k of pass@k.
    """
    profiles = [_wanted(home, report, resolved.families, budget=equal is not None) for report in resolved.reports]
    return [
        build_table(
            resolved.reports[0].report, list(same), home=home, equal=equal, pass_at=pass_at, notes=resolved.notes
        )
        for _, same in groupby(profiles, key=lambda wanted: graded_benchmarks(wanted.suite))
    ]


def sweep_tables(home: Path, name: str, overrides: list[str]) -> tuple[list[Table], str]:
    """The tables that a sweep feeds, and the command that prints them again."""
    sweep, _ = load_sweep(name, overrides)
    report_name, panels = shown_by(name, sweep)
    if any(override.startswith("arms=") for override in overrides):
        # Arms of the user's choice fill no panel of the paper's: they have a table of the sweep's own.
        report_name, panels = str(find("sweeps", name)) if name in names("reports") else name, []
    tables = tables_of(home, resolved_reports(home, report_name, overrides, panels=panels, profiles=sweep.profiles))
    arguments = [report_name, *(text for panel in panels for text in ("--panel", panel))]
    if sweep.profiles != load_report(report_name).profiles and not profiles_asked(overrides)[0]:
        listed = sweep.profiles[0] if len(sweep.profiles) == 1 else f"[{','.join(sweep.profiles)}]"
        arguments.append(f"profile={listed}")
    arguments += [override for override in overrides if not override.startswith("seeds=")]
    return tables, f"tepo-lab report {shlex.join(arguments)}"


def target_of(home: Path, resolved: HomeReport, target: Target) -> TargetTable:
    """Steps to reach a target, for the arms of a resolved report."""
    profiles = [_wanted(home, report, resolved.families) for report in resolved.reports]
    return steps_to_target(resolved.reports[0].report, profiles, target, home=home, notes=resolved.notes)


def beside_published(table: Table, report: Report) -> Table:
    """The table with the paper's numbers. Raises `ConfigError` for a report that is none of the paper's tables."""
    if report.published is None:
        raise ConfigError(f"{report.name} is not one of the paper's tables: it has no published numbers.")
    return against_published(table, load_published(package_root() / "reports" / "published", report.published))


def figure_inputs(
    home: Path, resolved: ResolvedReport, families: frozenset[str]
) -> tuple[list[WantedRow], Callable[[], Table]]:
    """What a figure of one profile is drawn from: its rows, and its table when that is asked for."""

    def table() -> Table:
        (only,) = tables_of(home, HomeReport((resolved,), families))
        return only

    return list(_wanted_rows(home, resolved, families)), table


def figure_lines(home: Path, resolved: HomeReport) -> Iterator[dict[str, Any]]:
    """The numbers behind a resolved figure, per profile; see `tepo_lab.report.figures.data`."""
    for profile in resolved.reports:
        assert isinstance(profile.report, FigureReport)
        rows, table = figure_inputs(home, profile, resolved.families)
        yield from figures_data.figure_lines(profile.report, rows, table, profile=profile.profile, home=home)


def plain(tables: list[Table]) -> Any:
    """One table as an object; a list where profiles differ in their benchmarks."""
    return tables[0].to_dict() if len(tables) == 1 else [table.to_dict() for table in tables]


def _wanted(home: Path, resolved: ResolvedReport, families: frozenset[str], *, budget: bool = False) -> Wanted:
    """What a profile gives to a table. Args: `budget`: rows are read at one, whatever steps their panels name."""
    base = resolved.base.spec.arm
    return Wanted(
        profile=resolved.profile,
        suite=resolved.base.spec.suite,
        rows=tuple(_wanted_rows(home, resolved, families, budget=budget)),
        base=WantedRow(None, base.name, base.label, resolved.base.family, damaged=damaged_seeds(home, resolved.base)),
        steps=resolved.steps,
    )


def _wanted_rows(
    home: Path, resolved: ResolvedReport, families: frozenset[str], *, budget: bool = False
) -> Iterator[WantedRow]:
    """A resolved report's rows; a label says what a search in this home has chosen."""
    notes = {family: f" ({note})" for family, note in selection_notes(home).items()}
    for row in once(resolved.rows, lambda row: row.exact) if budget else resolved.rows:
        if row.extra and row.run.family not in families:
            continue
        arm = row.run.spec.arm.name
        yield WantedRow(
            panel=row.panel,
            arm=arm,
            label=row.label + notes.get(row.run.family, ""),
            family=row.run.family,
            seeds=row.seeds,
            steps=row.steps if (row.exact or resolved.steps_overridden) and not budget else None,
            published=row.published,
            ancestors=tuple(reversed(lineage(arm)[:-1])),
            damaged=damaged_seeds(home, row.run),
        )
