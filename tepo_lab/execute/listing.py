"""Listings of the registry and of plans, as plain values and as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tepo_lab.execute.plan import Plan, gpu_hours, seconds_left
from tepo_lab.execute.progress import duration
from tepo_lab.registry.compose import arm_file, compose_run
from tepo_lab.registry.difference import flatten
from tepo_lab.registry.expand import load_sweep
from tepo_lab.registry.locations import names
from tepo_lab.registry.reports import load_report
from tepo_lab.schema.run import RunSpec

_STYLES = {"skip": "green", "run": "cyan", "resume": "cyan", "extend": "cyan", "retry": "yellow", "wait": "magenta"}


def plan_table(plan: Plan) -> Group:
    """A plan as a table with its totals under it."""
    table = _table("run", "seed", "steps", "action", "why", "GPU-hours", right=("seed", "steps", "GPU-hours"))
    for each in plan.entries:
        spec = each.planned.spec
        table.add_row(
            f"{spec.arm.name} on {spec.profile.name}",
            str(spec.seed) if spec.arm.trained else "",
            str(spec.steps),
            Text(each.action, style=_STYLES[each.action]),
            each.reason,
            f"{gpu_hours(each):.1f}",
        )
    total = sum(seconds_left(each) for each in plan.entries)
    cpus = sum(seconds_left(each) * each.planned.spec.resources.cpus for each in plan.entries)
    hours = sum(gpu_hours(each) for each in plan.entries)
    summary = (
        f"{plan.training_runs} training runs, {plan.base_evaluations} evaluations of untrained models; "
        f"{len(plan.pending)} to do: {duration(total)} one after another, {hours:.1f} GPU-hours, "
        f"{cpus / 3600:.1f} CPU-hours (estimated)."
    )
    return Group(table, Text(summary))


def registry_listing(kinds: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """What the registry holds, by kind (arms, sweeps, profiles, tables)."""
    listing = {"arms": _arms, "sweeps": _sweeps, "profiles": _profiles, "tables": _tables}
    return {kind: listing[kind]() for kind in kinds}


def registry_tables(listing: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Table]:
    """A listing, one table a kind."""
    tables = []
    for kind, rows in listing.items():
        table = _table(*(rows[0] if rows else ["name"]), title=kind)
        for row in rows:
            table.add_row(*(_shown(value) for value in row.values()))
        tables.append(table)
    return tables


def arm_table(spec: RunSpec) -> Group:
    """An arm's resolved values with where each comes from."""
    arm = spec.arm
    table = _table("key", "value", "source")
    for key, value in flatten({"objective": spec.objective.model_dump(mode="json")}).items():
        source = arm.sources.get(key)
        if source is None:
            said = ""
        elif source.paper:
            said = f"arXiv {source.paper}, {source.where}: {source.says}"
        else:
            said = f"chosen: {source.chosen}"
        table.add_row(key, _shown(value), said)
    lineage = f", child of {arm.parent}, varies {', '.join(arm.varies)}" if arm.parent else ""
    head = Text(f"{arm.name}: {arm.label}{lineage} (profile {spec.profile.name})", style="bold")
    return Group(head, *([Text(arm.note)] if arm.note else []), table)


def difference_table(left: str, right: str, found: Mapping[str, tuple[Any, Any]]) -> Table | Text:
    """Two arms' differing values side by side."""
    if not found:
        return Text(f"{left} and {right} resolve to the same configuration.")
    table = _table("key", left, right)
    for key, (first, second) in found.items():
        table.add_row(key, _shown(first), _shown(second))
    return table


def _arms() -> list[dict[str, Any]]:
    rows = []
    for name in names("experiments", "arm"):
        arm = arm_file(name)
        rows.append({"name": name, "label": arm.label, "parent": arm.parent, "varies": list(arm.varies)})
    return rows


def _sweeps() -> list[dict[str, Any]]:
    rows = []
    for name in names("sweeps"):
        sweep, _ = load_sweep(name)
        rows.append(
            {
                "name": name,
                "title": sweep.title,
                "profile": sweep.profile,
                "arms": len(sweep.arms),
                "seeds": list(sweep.seeds),
            }
        )
    return rows


def _profiles() -> list[dict[str, Any]]:
    rows = []
    for name in names("experiments", "profile"):
        spec = compose_run("base", name)
        rows.append({"name": name, "label": spec.profile.label, "gpus": spec.resources.gpus})
    return rows


def _tables() -> list[dict[str, Any]]:
    rows = []
    for name in names("reports"):
        report = load_report(name)
        rows.append({"name": name, "title": report.title, "profile": report.profile, "panels": list(report.panels)})
    return rows


def _table(*headings: str, title: str | None = None, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    return table


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(str(each) for each in value) if isinstance(value, list | tuple) else str(value)
