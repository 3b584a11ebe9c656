"""From a report's name to finished tables: the registry says which rows, the records fill them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo_lab.errors import ConfigError

if TYPE_CHECKING:
    from tepo_lab.registry.reports import ReportRow, ResolvedReport
    from tepo_lab.report.table.budget import Budget
    from tepo_lab.report.table.build import Wanted
    from tepo_lab.report.table.frame import Table, WantedRow
    from tepo_lab.report.table.target import Target, TargetTable
    from tepo_lab.schema.table import Report


@dataclass(frozen=True)
class Resolved:
    """A report with what it asks for, one entry a profile, and the families of the home's runs.

    `note` says that the profiles are neither those asked for nor the report's own, and why. `tried` are all profiles
    of which the home was searched for runs.
    """

    reports: tuple[ResolvedReport, ...]
    held: frozenset[str]
    note: str | None = None
    tried: tuple[str, ...] = ()

    @property
    def has_runs(self) -> bool:
        """Whether the home has a trained run of any row."""
        return any(row.run.family in self.held for each in self.reports for row in each.rows)


def sweep_tables(home: Path, name: str, overrides: list[str]) -> tuple[list[Table], str]:
    """The tables that a sweep feeds, and the command that prints them again."""
    from tepo_lab.registry.expand import load_sweep
    from tepo_lab.registry.locations import find, names
    from tepo_lab.registry.reports import load_report, shown_by

    sweep, _ = load_sweep(name, overrides)
    report_name, panels = shown_by(name, sweep)
    if any(each.partition("=")[0] == "arms" for each in overrides):
        # Arms of the caller's own choice fill no panel of the paper's: a table of the sweep's own shows them.
        report_name, panels = str(find("sweeps", name)) if name in names("reports") else name, []
    tables = tables_of(home, resolved_reports(home, report_name, overrides, panels=panels, profiles=sweep.profiles))
    options = [f"--panel {panel}" for panel in panels]
    shown = [shlex.quote(each) for each in overrides if not each.startswith("seeds=")]
    if sweep.profiles != load_report(report_name).profiles and not any(each.startswith("profile=") for each in shown):
        shown.insert(0, shlex.quote(f"profile={_listed(sweep.profiles)}"))
    return tables, " ".join(["tepo-lab report", shlex.quote(report_name), *options, *shown])


def _listed(names: Sequence[str]) -> str:
    """Names as the value of an override."""
    return names[0] if len(names) == 1 else f"[{','.join(names)}]"


def resolved_reports(
    home: Path, name: str, overrides: list[str], *, panels: list[str], profiles: tuple[str, ...] = ()
) -> Resolved:
    """What a report asks for.

    The profiles are those given or overridden; else the report's own if the home has runs of theirs, else those of the
    sweeps behind it, else nano, and the sweeps' own when there is no run at all.
    """
    from tepo_lab.execute.planning.actions import families
    from tepo_lab.registry.reports import load_report, own_profiles, profiles_asked, resolve_report

    loaded, held = load_report(name), frozenset(families(home))
    asked, rest = profiles_asked(overrides)
    chosen = profiles or asked

    def resolved(wanted: tuple[str, ...]) -> tuple[ResolvedReport, ...]:
        return tuple(
            resolve_report(loaded, profile, rest, panels=panels, expect_seeds=bool(profiles)) for profile in wanted
        )

    note, tried = None, chosen
    if not chosen:
        own = own_profiles(loaded, rest)
        candidates = dict.fromkeys([loaded.profiles, own, ("nano",)])
        tried = tuple(dict.fromkeys(profile for each in candidates for profile in each))
        chosen = next((each for each in candidates if _any_held(partial(resolved, each), held)), own)
        if chosen != loaded.profiles:
            note = (
                f"No run of {' or '.join(loaded.profiles)} is in the home: this is of {', '.join(chosen)}; "
                "profile=NAME asks for another profile."
            )
    return Resolved(resolved(chosen), held, note, tried)


def _any_held(resolve: Callable[[], tuple[ResolvedReport, ...]], held: frozenset[str]) -> bool:
    """Whether the home has a run of these reports; none where the overrides fit other profiles only."""
    try:
        return any(row.run.family in held for report in resolve() for row in report.rows)
    except ConfigError:
        return False


def tables_of(home: Path, resolved: Resolved, equal: Budget | None = None, pass_at: Sequence[int] = ()) -> list[Table]:
    """The tables of a resolved report: neighbouring profiles with the same benchmarks stand in one.

    Rows are read at equal steps, or at another `equal` budget; `pass_at` are the k of pass@k.
    """
    from tepo_lab.report.table.build import build_table, columns_of

    made = [wanted(home, each, resolved.held, budget=equal is not None) for each in resolved.reports]
    notes = [resolved.note] if resolved.note else []
    return [
        build_table(resolved.reports[0].report, list(same), home=home, equal=equal, pass_at=pass_at, notes=notes)
        for _, same in groupby(made, key=lambda each: columns_of(each.suite))
    ]


def check_runs(home: Path, name: str, resolved: Resolved) -> None:
    """Raises `ConfigError` when the home of a report is not there or has no run at all."""
    from tepo_lab.records.files import run_folders
    from tepo_lab.registry.locations import names

    if run_folders(home):
        return
    own = next(iter(resolved.reports[0].report.panels.values())).sweep
    sweep = name if name in names("sweeps") else own
    why = "it holds no run at all" if home.is_dir() else "there is no such folder"
    raise ConfigError(
        f"--home {home} has no run of {name}: {why}. tepo-lab run {sweep} makes some; another home is named with "
        "--home or TEPO_LAB_HOME."
    )


def beside_published(table: Table, loaded: Report) -> Table:
    """The table with the paper's numbers. Raises `ConfigError` for a report that is none of the paper's tables."""
    from tepo_lab.registry.locations import package_root
    from tepo_lab.report.table.published import against_published, load_published

    if loaded.published is None:
        raise ConfigError(f"{loaded.name} is not one of the paper's tables: it has no published numbers.")
    return against_published(table, load_published(package_root() / "reports" / "published", loaded.published))


def target_of(home: Path, resolved: Resolved, target: Target) -> TargetTable:
    """Steps to reach a target, for the arms of a resolved report."""
    from tepo_lab.report.table.target import steps_to_target

    made = [wanted(home, each, resolved.held) for each in resolved.reports]
    notes = [resolved.note] if resolved.note else []
    return steps_to_target(resolved.reports[0].report, made, target, home=home, notes=notes)


def wanted(home: Path, resolved: ResolvedReport, held: frozenset[str], *, budget: bool = False) -> Wanted:
    """What a profile gives to a table. Args: `budget`: rows are read at one, whatever steps their panels name."""
    from tepo_lab.execute.planning.actions import damaged_seeds
    from tepo_lab.report.table.build import Wanted
    from tepo_lab.report.table.frame import WantedRow

    base, damaged = resolved.base.spec.arm, damaged_seeds(home, resolved.base)
    return Wanted(
        profile=resolved.profile,
        suite=resolved.base.spec.suite,
        rows=tuple(wanted_rows(home, resolved, held, budget=budget)),
        base=WantedRow(None, base.name, base.label, resolved.base.family, damaged=damaged),
        steps=resolved.steps,
    )


def wanted_rows(
    home: Path, resolved: ResolvedReport, held: frozenset[str], *, budget: bool = False
) -> Iterator[WantedRow]:
    """A resolved report's rows, with what a search in this home has chosen said in their labels."""
    from tepo_lab.execute.planning.actions import damaged_seeds
    from tepo_lab.execute.planning.selection import selection_notes
    from tepo_lab.registry.compose import lineage
    from tepo_lab.registry.reports import once
    from tepo_lab.report.table.frame import WantedRow

    notes = {family: f" ({note})" for family, note in selection_notes(home).items()}
    rows: Sequence[ReportRow] = once(resolved.rows, lambda row: row.exact) if budget else resolved.rows
    for row in rows:
        if row.extra and row.run.family not in held:
            continue
        arm = row.run.spec.arm.name
        yield WantedRow(
            panel=row.panel,
            arm=arm,
            label=row.label + notes.get(row.run.family, ""),
            family=row.run.family,
            seeds=row.seeds,
            steps=row.steps if (row.exact or resolved.told) and not budget else None,
            published=row.published,
            ancestors=tuple(reversed(lineage(arm)[:-1])),
            damaged=damaged_seeds(home, row.run),
        )


def figure_lines(home: Path, resolved: Resolved) -> Iterator[dict[str, Any]]:
    """The numbers behind a resolved figure, each profile's in turn; see `tepo_lab.report.figures.data`."""
    from tepo_lab.report.figures import data as figures_data
    from tepo_lab.schema.figure import FigureReport

    for each in resolved.reports:
        assert isinstance(each.report, FigureReport)
        rows, table = figure_inputs(home, each, resolved.held)
        yield from figures_data.figure_lines(each.report, rows, table, profile=each.profile, home=home)


def figure_inputs(
    home: Path, resolved: ResolvedReport, held: frozenset[str]
) -> tuple[list[WantedRow], Callable[[], Table]]:
    """What a figure of one profile is drawn from: its rows, and its table when that is asked for."""

    def table() -> Table:
        (only,) = tables_of(home, Resolved((resolved,), held))
        return only

    return list(wanted_rows(home, resolved, held)), table


def plain(tables: list[Table]) -> Any:
    """One table as an object; a list where profiles differ in their benchmarks."""
    return tables[0].to_dict() if len(tables) == 1 else [table.to_dict() for table in tables]
