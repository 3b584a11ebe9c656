"""Listings of the registry and of plans, as plain values and as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tepo_lab.execute.plan import Plan
from tepo_lab.execute.progress import duration
from tepo_lab.registry.axes import point_label
from tepo_lab.registry.compose import arm_file, compose_run
from tepo_lab.registry.difference import flatten
from tepo_lab.registry.expand import load_sweep
from tepo_lab.registry.locations import names
from tepo_lab.registry.reports import FIGURES, load_report
from tepo_lab.schema.arm import Source, source_of
from tepo_lab.schema.run import RunSpec

_STYLES = {
    "skip": "green",
    "run": "cyan",
    "resume": "cyan",
    "extend": "cyan",
    "retry": "yellow",
    "wait": "magenta",
    "blocked": "red",
}


def plan_table(plan: Plan, *, cpus: float | None = None, gpus: float | None = None) -> Group:
    """A plan as a table with its totals under it, for the cluster given (see `Plan.wall_seconds`)."""
    table = _table("run", "seed", "steps", "action", "why", "GPU-hours", right=("seed", "steps", "GPU-hours"))
    for each in plan.entries:
        spec = each.planned.spec
        point = f" [{point_label(spec.arm.point)}]" if spec.arm.point else ""
        table.add_row(
            Text(f"{spec.arm.name}{point} on {spec.profile.name}"),
            str(spec.seed) if spec.arm.trained else "",
            str(spec.steps),
            Text(each.action, style=_STYLES[each.action]),
            Text(each.reason),
            f"{plan.gpu_hours(each):.1f}",
        )
    return Group(table, Text(_totals(plan, cpus, gpus)))


def _totals(plan: Plan, cpus: float | None, gpus: float | None) -> str:
    seconds = {each.planned.run_id: plan.seconds_left(each) for each in plan.pending}
    cpu_hours = sum(seconds[each.planned.run_id] * each.planned.spec.resources.cpus for each in plan.pending) / 3600
    gpu_hours = sum(plan.gpu_hours(each) for each in plan.pending)
    bases = {plan.costs.of(each.planned.spec).runs > 0 for each in plan.pending}
    basis = {True: "measured on finished runs", False: "as the profiles declare"}
    wall = plan.wall_seconds(cpus=cpus, gpus=gpus)
    took = "some runs ask for more than the cluster has" if wall is None else f"about {duration(wall)}"
    return (
        f"{plan.training_runs} training runs, {plan.base_evaluations} evaluations of untrained models; "
        f"{len(plan.pending)} to do: {took}, {gpu_hours:.1f} GPU-hours, {cpu_hours:.1f} CPU-hours"
        + (f" ({' or '.join(basis[each] for each in sorted(bases, reverse=True))})." if bases else ".")
    )


def registry_listing(kinds: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """What the registry holds, by kind (arms, sweeps, profiles, tables, figures)."""
    listing = {"arms": _arms, "sweeps": _sweeps, "profiles": _profiles, "tables": _tables, "figures": _figures}
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
        table.add_row(key, Text(_shown(value)), Text(_said(source_of(arm.sources, key))))
    rest = spec.model_dump(mode="json", include={"model", "data", "prompt", "rollout", "trainer"})
    for key, value in flatten(rest).items():
        source = source_of(arm.sources, key)
        table.add_row(key, Text(_shown(value)), Text(_said(source) if source else f"profile {spec.profile.name}"))
    table.add_row("suite", Text(", ".join(spec.suite.benchmarks)), Text(f"profile {spec.profile.name}"))
    lineage = f", child of {arm.parent}, varies {', '.join(arm.varies)}" if arm.parent else ""
    head = Text(f"{arm.name}: {arm.label}{lineage} (profile {spec.profile.name})", style="bold")
    return Group(head, *([Text(arm.note)] if arm.note else []), table)


def _said(source: Source | None) -> str:
    if source is None:
        return ""
    return f"arXiv {source.paper}, {source.where}: {source.says}" if source.paper else f"chosen: {source.chosen}"


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
                "arms": len(sweep.all_arms),
                "seeds": list(sweep.seeds),
            }
        )
    return rows


def _profiles() -> list[dict[str, Any]]:
    rows = []
    for name in names("experiments", "profile"):
        spec = compose_run("base", name)
        estimates = spec.profile.estimates
        rows.append(
            {
                "name": name,
                "label": spec.profile.label,
                "model": spec.model.path,
                "benchmarks": len(spec.suite.benchmarks),
                "steps": spec.trainer.steps,
                "gpus": spec.resources.gpus,
                "seconds_per_step": estimates.seconds_per_step,
                "gpu_memory_gb": estimates.gpu_memory_gb,
            }
        )
    return rows


def _tables() -> list[dict[str, Any]]:
    rows = []
    for name in names("reports"):
        report = load_report(name)
        rows.append({"name": name, "title": report.title, "profile": report.profile, "panels": list(report.panels)})
    return rows


def _figures() -> list[dict[str, Any]]:
    loaded = [load_report(name) for name in names("reports", FIGURES)]
    return [{"name": each.name, "title": each.title, "profile": each.profile} for each in loaded]


def _table(*headings: str, title: str | None = None, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    return table


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(str(each) for each in value) if isinstance(value, list | tuple) else str(value)
