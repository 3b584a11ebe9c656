"""From a report's name or file to the rows it asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.registry.expand import PlannedRun, base_run, is_path, load_sweep, planned, variants
from tepo_lab.registry.locations import find, find_named, names, package_root, parse_yaml, read_yaml
from tepo_lab.schema.base import validate
from tepo_lab.schema.figure import FigureReport
from tepo_lab.schema.sweep import Sweep
from tepo_lab.schema.table import Panel, Report

#: The folder of reports/ whose files are figures.
FIGURES = "figures"

#: Overrides that say how far runs go, and so where they are read.
_STEPS = ("trainer.steps=", "steps=")


@dataclass(frozen=True)
class ReportRow:
    """A row that a report asks for: one arm (at one point of its sweep) in one panel.

    `seeds` are those expected; when empty, all that the home has are taken. `steps` is where the row is read: nowhere
    else when `exact`, because its panel names them. An `extra` row is shown only where the home has its runs.
    `published` is its name among the published rows.
    """

    panel: str | None
    label: str
    run: PlannedRun
    seeds: tuple[int, ...]
    steps: int
    exact: bool = False
    extra: bool = False
    published: str = ""


@dataclass(frozen=True)
class ResolvedReport:
    """A report's rows for one profile.

    `steps` is where rows whose panel names no steps are read: nowhere else when `steps_overridden`.
    """

    report: Report
    profile: str
    rows: tuple[ReportRow, ...]
    base: PlannedRun
    steps: int
    steps_overridden: bool = False


def load_report(name: str) -> Report:
    """A report by name, by the path of a YAML file, or made from a sweep of that name.

    A file with the key `draw` is a `FigureReport`.
    Raises `ConfigError` for an unknown name (with the nearest), a wrong key, type or value.
    """
    tables, figures, sweeps = names("reports"), names("reports", FIGURES), names("sweeps")
    if is_path(name) or name in tables or name in figures:
        path = Path(name) if is_path(name) else find("reports", name, FIGURES if name in figures else "")
        values = read_yaml(path)
        if is_path(name) and "panels" not in values and values.keys() & {"arms", "parts"}:
            return _report_of(load_sweep(name)[0], name)
        report = validate(FigureReport if "draw" in values else Report, values | {"name": path.stem}, where=str(path))
        _check_names(report, str(path))
        return report
    if name in sweeps:
        return _report_of(load_sweep(name)[0], name)
    raise ConfigError(f"unknown report {name!r}.{nearest(name, [*tables, *figures, *sweeps])}")


def _report_of(sweep: Sweep, name: str) -> Report:
    """The table of a sweep that no report names: one panel with its arms."""
    panel = Panel(title=sweep.title, sweep=name)
    return Report(name=sweep.name, title=sweep.title, profile=sweep.profiles, panels={sweep.name: panel})


def _check_names(report: Report, where: str) -> None:
    """Raise `ConfigError` for a profile, a published table, a sweep or an arm that does not exist."""
    for profile in report.profiles:
        find_named("experiments", profile, "profile", where=where)
    published = sorted(path.stem for path in (package_root() / "reports" / "published").glob("*.csv"))
    if report.published is not None and report.published not in published:
        name = report.published
        raise ConfigError(f"{where}: published: unknown table {name!r}.{nearest(name, published)}")
    for panel_name, panel in report.all_panels.items():
        place = f"{where}: {_place(panel_name)}"
        if not is_path(panel.sweep):
            find_named("sweeps", panel.sweep, where=place)
        _check_arms(place, panel)


def _place(panel: str | None) -> str:
    return "head, the rows above all panels" if panel is None else f"panel {panel!r}"


def _check_arms(place: str, panel: Panel) -> None:
    """Raise `ConfigError` for a row or a label of an arm that the panel's sweep does not have."""
    sweep = load_sweep(panel.sweep)[0]
    for name in (*(panel.arms or ()), *panel.extra):
        if name not in sweep.all_arms:
            raise ConfigError(f"{place}: sweep {sweep.name} has no arm {name!r}.{nearest(name, sweep.all_arms)}")
    for name in panel.labels:
        if name not in sweep.all_arms:
            raise ConfigError(f"{place}: labels: no row is of arm {name!r}.{nearest(name, sweep.all_arms)}")


def shown_by(name: str, sweep: Sweep) -> tuple[str, list[str]]:
    """The report that shows a sweep, and its panels that do (none named: all of it).

    Args: `name`, what the user called the sweep. A sweep that feeds no report is shown by a table of its own.
    """
    if is_path(name) and (sweep.name not in names("sweeps") or Path(name).resolve() != find("sweeps", sweep.name)):
        return name, []
    if sweep.name in sweep.feeds:
        return sweep.name, []
    for report in sweep.feeds:
        for panel, content in load_report(report).panels.items():
            if content.sweep == sweep.name:
                return report, [panel]
    return name, []


def profiles_asked(overrides: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The profiles that `profile=` names (a name or a list), and the other overrides."""
    asked = [text for text in overrides if text.startswith("profile=")]
    if not asked:
        return (), list(overrides)
    value = parse_yaml(asked[-1].partition("=")[2])
    if not value:
        raise ConfigError(f"{asked[-1]!r}: it has no value; name a profile, such as profile=nano.")
    profiles = tuple(value) if isinstance(value, list) else (str(value),)
    return profiles, [text for text in overrides if text not in asked]


def own_profiles(report: Report, overrides: Sequence[str] = ()) -> tuple[str, ...]:
    """The profiles that the sweeps behind a report name themselves, each once."""
    sweeps = (load_sweep(panel.sweep, overrides)[0] for panel in report.panels.values())
    return tuple(dict.fromkeys(profile for sweep in sweeps for profile in sweep.profiles))


def resolve_report(
    report: Report,
    profile: str | None = None,
    overrides: Sequence[str] = (),
    *,
    panels: Sequence[str] = (),
    expect_seeds: bool = False,
) -> ResolvedReport:
    """A report's rows (of some of its panels) for one profile, else for the first that its sweeps name.

    Args: `expect_seeds`: every row expects the seeds that its sweep names, as after running it.
    Raises `ConfigError` for an unknown panel or profile, or an override that fits no run.
    """
    for name in panels:
        if name not in report.panels:
            raise ConfigError(f"report {report.name!r} has no panel {name!r}.{nearest(name, report.panels)}")
    profile = profile or own_profiles(report, overrides)[0]
    chosen = {name: panel for name, panel in report.all_panels.items() if not panels or name in panels}
    expect = expect_seeds or any(text.startswith("seeds=") for text in overrides)
    given = [*(text for text in overrides if not text.startswith("profile=")), f"profile={profile}"]
    rows = [row for name, panel in chosen.items() for row in _rows(name, panel, profile, given, expect)]
    if panels and report.head is not None:
        # The rows above all panels are what the panels' rows are compared with.
        shown = {row.run.family for row in rows}
        above = _rows(None, report.head, profile, given, expect)
        rows = [*(replace(row, extra=True) for row in above if row.run.family not in shown), *rows]
    steps_overridden = any(text.startswith(_STEPS) for text in given)
    if steps_overridden:
        rows = once(rows, lambda row: row.exact)
    sweep, rest = load_sweep(next(iter(chosen.values())).sweep, given)
    base = planned(base_run(sweep, profile, rest))
    # The table has one number of steps besides those that panels name: the furthest that any of its rows goes to.
    steps = max((row.steps for row in rows if not row.exact), default=0)
    return ResolvedReport(report, profile, tuple(rows), base, steps, steps_overridden)


def once(rows: Iterable[ReportRow], which: Callable[[ReportRow], bool]) -> list[ReportRow]:
    """The rows without those `which` repeat an earlier row: the same runs and seeds, read at another panel's steps."""
    distinct: list[ReportRow] = []
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for row in rows:
        key = row.run.family, row.seeds
        if not (which(row) and key in seen):
            distinct.append(row)
        seen.add(key)
    return distinct


def _rows(
    name: str | None, panel: Panel, profile: str, overrides: Sequence[str], expect_seeds: bool
) -> Iterator[ReportRow]:
    sweep, rest = load_sweep(panel.sweep, overrides)
    wanted = [*(panel.arms or (arm for arm in sweep.all_arms if arm not in panel.extra)), *panel.extra]
    # Checked without overrides: a label of an arm that they take out is no error, but a row of it would be empty.
    _check_arms(_place(name), panel)
    if left_out := [arm for arm in wanted if arm not in sweep.all_arms]:
        by = " ".join(text for text in overrides if text.startswith(("arms=", "parts=")))
        raise ConfigError(
            f"{by}: arm {left_out[0]!r}, a row of {_place(name)}, is left out: name it too, or report the sweep that "
            "was run (tepo-lab report SWEEP)."
        )
    own_steps = panel.steps is None or any(text.startswith(_STEPS) for text in overrides)
    # Figures and tables of the sweep itself call its arms as the tables that it feeds do.
    labels: dict[str, str] = {}
    for report in map(load_report, sweep.feeds):
        for fed in (*report.panels.values(), report.head):
            labels |= fed.labels if fed is not None else {}
    selected = "" if sweep.search is None else f" (exploratory, selected on {sweep.search.metric})"
    chosen = [variant for variant in variants(sweep, profile, rest) if variant.run.spec.arm.name in wanted]
    for variant in sorted(chosen, key=lambda variant: wanted.index(variant.run.spec.arm.name)):
        arm, steps = variant.run.spec.arm, variant.run.spec.steps
        if not arm.trained:
            continue
        # An arm at a point of an axis, or that its part calls something else, is not the paper's row.
        is_own = bool(arm.point) or arm.name in variant.part.labels
        label = panel.labels.get(arm.name) or (arm.label if is_own else labels.get(arm.name, arm.label))
        yield ReportRow(
            panel=name,
            label=label + selected,
            run=variant.run,
            seeds=panel.seeds or ((variant.part.seeds or ()) if expect_seeds else ()),
            steps=steps if own_steps or panel.steps is None else panel.steps,
            exact=panel.steps is not None,
            extra=arm.name in panel.extra,
            published=arm.name + panel.published,
        )
