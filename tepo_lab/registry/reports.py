"""From a report's name or file to the rows it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import BASE_ARM, BASE_SEED, PlannedRun, load_sweep, planned
from tepo_lab.registry.locations import find, names, read_yaml
from tepo_lab.schema.base import validate
from tepo_lab.schema.sweep import Sweep
from tepo_lab.schema.table import Panel, Report


@dataclass(frozen=True)
class ReportRow:
    """A row that a report asks for: one arm in one panel, with the seeds its sweep names."""

    panel: str
    label: str
    run: PlannedRun
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class ResolvedReport:
    """A report with its rows for one profile. `steps` is what the sweeps train to there."""

    report: Report
    profile: str
    rows: tuple[ReportRow, ...]
    base: PlannedRun
    steps: int


def load_report(name: str) -> Report:
    """A report by name, by the path of a YAML file, or made from a sweep of that name.

    Raises `ConfigError` for an unknown name (with the nearest), a wrong key, type or value.
    """
    is_path = name.endswith((".yaml", ".yml")) or "/" in name
    if is_path or name in names("reports"):
        path = Path(name) if is_path else find("reports", name)
        values = read_yaml(path)
        if is_path and "panels" not in values and "arms" in values:
            return report_of(load_sweep(name)[0], sweep_name=name)
        return validate(Report, values | {"name": path.stem}, where=str(path))
    if name in names("sweeps"):
        return report_of(load_sweep(name)[0], sweep_name=name)
    raise ConfigError(f"unknown report {name!r}.{nearest(name, [*names('reports'), *names('sweeps')])}")


def report_of(sweep: Sweep, *, sweep_name: str) -> Report:
    """The table of a sweep that no report names: one panel with its arms."""
    panel = Panel(title=sweep.title, sweep=sweep_name)
    return Report(name=sweep.name, title=sweep.title, profile=sweep.profile, panels={sweep.name: panel})


def panel_fed_by(sweep: Sweep) -> tuple[str, str] | None:
    """(report, panel) that shows a sweep, from the reports it feeds; None when none has a panel of it."""
    for name in sweep.feeds:
        for panel, content in load_report(name).panels.items():
            if content.sweep == sweep.name:
                return name, panel
    return None


def resolve_report(
    report: Report, overrides: Sequence[str] = (), *, panels: Sequence[str] = (), profile: str | None = None
) -> ResolvedReport:
    """The rows of a report (of some of its panels) for a profile, else for each sweep's own.

    Raises `ConfigError` for an unknown panel or profile, or an override that fits no run.
    """
    for panel in panels:
        if panel not in report.panels:
            raise ConfigError(f"report {report.name!r} has no panel {panel!r}.{nearest(panel, report.panels)}")
    chosen = {name: panel for name, panel in report.panels.items() if not panels or name in panels}
    own = [f"profile={profile}"] if profile else []
    rows: list[ReportRow] = []
    for name, panel in chosen.items():
        sweep, rest = load_sweep(panel.sweep, [*overrides, *own])
        steps = [f"trainer.steps={sweep.steps}"] if sweep.steps is not None else []
        for arm in panel.arms or sweep.arms:
            run = planned(compose_run(arm, sweep.profile, (*steps, *rest), seed=sweep.seeds[0]))
            if run.spec.arm.trained:
                rows.append(ReportRow(name, panel.labels.get(arm, run.spec.arm.label), run, sweep.seeds))
        base = planned(compose_run(BASE_ARM, sweep.profile, (*steps, *rest), seed=BASE_SEED))
    return ResolvedReport(report, sweep.profile, tuple(rows), base, max(row.run.spec.steps for row in rows))
