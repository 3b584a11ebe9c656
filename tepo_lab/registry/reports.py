"""From a report's name or file to the rows it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.registry.expand import PlannedRun, base_run, is_path, load_sweep, planned, variants
from tepo_lab.registry.locations import find, names, parse_yaml, read_yaml
from tepo_lab.schema.base import validate
from tepo_lab.schema.figure import FigureReport
from tepo_lab.schema.sweep import Sweep
from tepo_lab.schema.table import Panel, Report

#: The folder of reports/ whose files are figures.
FIGURES = "figures"


@dataclass(frozen=True)
class ReportRow:
    """A row that a report asks for: one arm (at one point of its sweep) in one panel.

    `seeds` are those expected; when empty, whichever are found are taken. `steps` is where it is to be read. A row that
    is `extra` is shown only where the home has its runs.
    """

    panel: str | None
    label: str
    run: PlannedRun
    seeds: tuple[int, ...]
    steps: int
    extra: bool = False


@dataclass(frozen=True)
class ResolvedReport:
    """A report's rows for one profile, all read at `steps`: one table."""

    report: Report
    profile: str
    rows: tuple[ReportRow, ...]
    base: PlannedRun
    steps: int


def load_report(name: str) -> Report:
    """A report by name, by the path of a YAML file, or made from a sweep of that name.

    A file that says what to `draw` is a `FigureReport`.
    Raises `ConfigError` for an unknown name (with the nearest), a wrong key, type or value.
    """
    figures = names("reports", FIGURES)
    if is_path(name) or name in names("reports") or name in figures:
        path = Path(name) if is_path(name) else find("reports", name, FIGURES if name in figures else "")
        values = read_yaml(path)
        if is_path(name) and "panels" not in values and values.keys() & {"arms", "parts"}:
            return report_of(load_sweep(name)[0], sweep_name=name)
        return validate(FigureReport if "draw" in values else Report, values | {"name": path.stem}, where=str(path))
    if name in names("sweeps"):
        return report_of(load_sweep(name)[0], sweep_name=name)
    raise ConfigError(f"unknown report {name!r}.{nearest(name, [*names('reports'), *figures, *names('sweeps')])}")


def report_of(sweep: Sweep, *, sweep_name: str) -> Report:
    """The table of a sweep that no report names: one panel with its arms."""
    panel = Panel(title=sweep.title, sweep=sweep_name)
    return Report(name=sweep.name, title=sweep.title, profile=sweep.profiles, panels={sweep.name: panel})


def panel_fed_by(sweep: Sweep) -> tuple[str, str] | None:
    """(report, panel) that shows a sweep, from the reports it feeds; None when none has a panel of it."""
    for name in sweep.feeds:
        for panel, content in load_report(name).panels.items():
            if content.sweep == sweep.name:
                return name, panel
    return None


def shown_by(name: str, sweep: Sweep) -> tuple[str, list[str]]:
    """The report that shows a sweep, and its panels that do (none named: all of it).

    Args: `name`, what the user called the sweep. A sweep that feeds no report is shown by a table of its own.
    """
    if is_path(name) and (sweep.name not in names("sweeps") or Path(name).resolve() != find("sweeps", sweep.name)):
        return name, []
    if sweep.name in sweep.feeds:
        return sweep.name, []
    fed = panel_fed_by(sweep)
    return (fed[0], [fed[1]]) if fed else (name, [])


def profiles_asked(overrides: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The profiles that `profile=` names (a name or a list), and the other overrides."""
    asked = [text for text in overrides if text.startswith("profile=")]
    if not asked:
        return (), list(overrides)
    value = parse_yaml(asked[-1].partition("=")[2])
    profiles = tuple(value) if isinstance(value, list) else (str(value),)
    return profiles, [text for text in overrides if text not in asked]


def own_profiles(report: Report, overrides: Sequence[str] = ()) -> tuple[str, ...]:
    """The profiles that the sweeps behind a report name themselves, each once."""
    sweeps = (load_sweep(panel.sweep, overrides)[0] for panel in report.panels.values())
    return tuple(dict.fromkeys(profile for sweep in sweeps for profile in sweep.profiles))


def resolve_report(
    report: Report, overrides: Sequence[str] = (), *, panels: Sequence[str] = (), profile: str | None = None
) -> ResolvedReport:
    """The first table of a report (of some of its panels) for a profile, else for the sweeps' own. Raises as
    `resolve_tables`."""
    return resolve_tables(report, profile or own_profiles(report, overrides)[0], overrides, panels=panels)[0]


def resolve_tables(
    report: Report,
    profile: str,
    overrides: Sequence[str] = (),
    *,
    panels: Sequence[str] = (),
    expect_seeds: bool = False,
) -> list[ResolvedReport]:
    """A report's tables for one profile: one for each number of training steps that its panels name.

    Args: `expect_seeds`: every row expects the seeds that its sweep names, as after running it.
    Raises `ConfigError` for an unknown panel or profile, or an override that fits no run.
    """
    chosen = _chosen_panels(report, panels)
    expect = expect_seeds or any(text.startswith("seeds=") for text in overrides)
    given = [*(text for text in overrides if not text.startswith("profile=")), f"profile={profile}"]
    rows = [row for name, panel in chosen for row in _rows(name, panel, profile, given, expect)]
    sweep, rest = load_sweep(chosen[0][1].sweep, given)
    base = planned(base_run(sweep, profile, rest))
    if profile in report.profiles:
        report = report.model_copy(update={"profiles": (profile,)})
    steps = sorted({row.steps for row in rows})
    if not any(panel.steps for _, panel in chosen):
        # No panel names its steps: the table has one number, the furthest that any of its rows goes to.
        return [ResolvedReport(report, profile, tuple(rows), base, steps[-1] if steps else 0)]
    return [_at_steps(report, profile, rows, base, each) for each in steps]


def _chosen_panels(report: Report, panels: Sequence[str]) -> list[tuple[str | None, Panel]]:
    """Panels with their names, the rows above them first where all are asked for."""
    for name in panels:
        if name not in report.panels:
            raise ConfigError(f"report {report.name!r} has no panel {name!r}.{nearest(name, report.panels)}")
    if panels:
        return [(name, panel) for name, panel in report.panels.items() if name in panels]
    return [*([(None, report.head)] if report.head is not None else []), *report.panels.items()]


def _at_steps(report: Report, profile: str, rows: Sequence[ReportRow], base: PlannedRun, steps: int) -> ResolvedReport:
    here = tuple(row for row in rows if row.steps == steps)
    held = {row.panel for row in here}
    panels = {name: panel for name, panel in report.panels.items() if name in held}
    return ResolvedReport(report.model_copy(update={"panels": panels}), profile, here, base, steps)


def _rows(
    name: str | None, panel: Panel, profile: str, overrides: Sequence[str], expect_seeds: bool
) -> Iterator[ReportRow]:
    sweep, rest = load_sweep(panel.sweep, overrides)
    wanted = [*(panel.arms or (arm for arm in sweep.all_arms if arm not in panel.extra)), *panel.extra]
    for each_name in wanted:
        if each_name not in sweep.all_arms:
            known = nearest(each_name, sweep.all_arms)
            raise ConfigError(f"panel {name!r}: sweep {sweep.name} has no arm {each_name!r}.{known}")
    own_steps = panel.steps is None or any(text.startswith(("trainer.steps=", "steps=")) for text in overrides)
    found = [each for each in variants(sweep, profile, rest) if each.spec.arm.trained and each.spec.arm.name in wanted]
    for each in sorted(found, key=lambda each: wanted.index(each.spec.arm.name)):
        arm = each.spec.arm
        yield ReportRow(
            panel=name,
            label=panel.labels.get(arm.name, arm.label) + _selected(sweep),
            run=planned(each.spec),
            seeds=panel.seeds or ((each.part.seeds or ()) if expect_seeds else ()),
            steps=each.spec.steps if own_steps or panel.steps is None else panel.steps,
            extra=arm.name in panel.extra,
        )


def _selected(sweep: Sweep) -> str:
    """What a row of an exploratory sweep says of itself."""
    return "" if sweep.search is None else f" (exploratory, selected on {sweep.search.metric})"
