"""Listings of the registry and of plans, as plain values and as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tepo_lab.execute.maintain.clean import size_text
from tepo_lab.execute.planning.actions import Entry
from tepo_lab.execute.planning.gpu_memory import memory_lines
from tepo_lab.execute.planning.plan import Plan
from tepo_lab.execute.showing.text import counted, duration
from tepo_lab.registry.compose import arm_file, compose_run
from tepo_lab.registry.expand import load_sweep, point_label
from tepo_lab.registry.locations import names
from tepo_lab.registry.reports import FIGURES, load_report
from tepo_lab.registry.values import flatten
from tepo_lab.schema.arm import ValueSource, source_of
from tepo_lab.schema.run import RunSpec

#: A plan of more runs than these is shown with the seeds of an arm in one row.
MAX_ROWS = 200

_STYLES = {
    "skip": "green",
    "run": "cyan",
    "resume": "cyan",
    "extend": "cyan",
    "retry": "yellow",
    "wait": "magenta",
    "blocked": "red",
}


def plan_table(
    plan: Plan,
    *,
    cpus: float | None = None,
    gpus: float | None = None,
    asked: int | None = None,
    gpu_memory_gb: float | None = None,
) -> Group:
    """A plan as a table with its totals under it, for the cluster given (see `Plan.wall_seconds`).

    Args: `asked`, runs that the sweeps ask for, each counted as often as it is asked for; `gpu_memory_gb` of one GPU.
    """
    has_gpus = any(entry.planned.spec.resources.gpus for entry in plan.entries)
    figures = ("time", *(("GPU-hours",) if has_gpus else ()))
    folds = len(plan.entries) > MAX_ROWS
    seeds = "seeds" if folds else "seed"
    table = _table("run", seeds, "steps", "what", "why", *figures, right=(seeds, "steps", *figures))
    for row in _alike(plan.entries) if folds else [[entry] for entry in plan.entries]:
        first, spec = row[0], row[0].planned.spec
        seed = f"{len(row):,} of them" if folds else str(spec.seed)
        table.add_row(
            Text(_run_label(first)),
            seed if spec.arm.trained else "",
            str(spec.steps),
            Text(first.action, style=_STYLES[first.action]),
            Text(first.reason),
            duration(sum(map(plan.seconds_left, row))) if first.action.is_pending else "",
            *((f"{sum(map(plan.gpu_hours, row)):,.1f}",) if has_gpus else ()),
        )
    memory = memory_lines((entry.planned.spec for entry in plan.pending), gpu_memory_gb)
    return Group(table, Text("\n" + "\n".join([*_totals(plan, cpus, gpus, asked), *memory])))


def _run_label(entry: Entry) -> str:
    spec = entry.planned.spec
    point = f" [{point_label(spec.arm.point)}]" if spec.arm.point else ""
    return f"{spec.arm.name}{point} on {spec.profile.name}"


def _alike(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The runs that differ in their seed alone and are to do the same for the same reason, together."""
    rows: dict[tuple[str, int, str, str], list[Entry]] = {}
    for entry in entries:
        key = (_run_label(entry), entry.planned.spec.steps, entry.action, entry.reason)
        rows.setdefault(key, []).append(entry)
    return list(rows.values())


def _totals(plan: Plan, cpus: float | None, gpus: float | None, asked: int | None) -> list[str]:
    """What the runs come to, one line each: how many, shared, time, cost, disk."""
    seconds = {entry.planned.run_id: plan.seconds_left(entry) for entry in plan.pending}
    cpu_hours = sum(seconds[entry.planned.run_id] * entry.planned.spec.resources.cpus for entry in plan.pending) / 3600
    gpu_hours = sum(plan.gpu_hours(entry) for entry in plan.pending)
    bases = {plan.costs.of(entry.planned.spec).runs > 0 for entry in plan.pending}
    basis = {True: "measured on finished runs", False: "as the profiles declare"}
    wall = plan.wall_seconds(cpus=cpus, gpus=gpus)
    runs = counted(plan.training_runs, "training run")
    evaluations = counted(plan.base_evaluations, "evaluation") + " of untrained models" * bool(plan.base_evaluations)
    blocked = sum(entry.action == "blocked" for entry in plan.entries)
    apart = f", {blocked} blocked" if blocked else ""
    lines = [f"Runs: {runs} and {evaluations}; {len(plan.pending)} to do{apart}."]
    if asked is not None and asked > len(plan.entries):
        shared = asked - len(plan.entries)
        lines.append(f"Shared: the sweeps ask for {asked:,} runs; {shared:,} of them stand in several, and run once.")
    if not plan.pending:
        text = f"Nothing can be run; {counted(blocked, 'run')} blocked for the reason above."
        return [*lines, text if blocked else "Nothing is left to run."]
    text = " or ".join(basis[is_measured] for is_measured in sorted(bases, reverse=True))
    lines.append(
        f"Time: none, since {_shortage(plan, cpus, gpus)}."
        if wall is None
        else f"Time: about {duration(wall)} on {_cluster(plan, cpus, gpus)}, {text}."
    )
    lines.append(f"Cost: {cpu_hours:.1f} CPU-hours" + (f", {gpu_hours:,.1f} GPU-hours." if gpu_hours else "."))
    disk, unknown = disk_bytes(plan)
    if disk:
        besides = f", besides {counted(unknown, 'run')} of models of unknown size" if unknown else ""
        lines.append(f"Disk: about {size_text(disk)} of checkpoints{besides}; records are small beside them.")
    return lines


def _shortage(plan: Plan, cpus: float | None, gpus: float | None) -> str:
    """What the cluster given has too little of for the largest run."""
    asked = [entry.planned.spec.resources for entry in plan.pending]
    given = (
        ("--cpus", cpus, max(resources.cpus for resources in asked), "core"),
        ("--gpus", gpus, max(resources.gpus for resources in asked), "GPU"),
    )
    return " and ".join(
        f"one run takes {_counted(most, unit)} and {option} gives {has:g}"
        for option, has, most, unit in given
        if has is not None and most > has
    )


def _cluster(plan: Plan, cpus: float | None, gpus: float | None) -> str:
    """The machines that a plan's time is estimated for."""
    has = plan.cluster(cpus=cpus, gpus=gpus)
    asked = {(entry.planned.spec.resources.cpus, entry.planned.spec.resources.gpus) for entry in plan.pending}
    needs = "one run takes" if len(asked) <= 1 else "the largest runs take"
    cores, on_gpus = _counted(has.cpus, "core"), _counted(has.gpus, "GPU")
    whose = {
        "given": cores,
        "own": f"this machine's {cores}",
        "needed": f"the {cores} that {'their runs take (--cpus N estimates with fewer)' if gpus else needs}",
    }[has.cores]
    if gpus is not None:
        return f"{on_gpus} and {whose}"
    if not has.gpus:
        return whose
    both = f"the {cores} and {on_gpus}" if has.cores == "needed" else f"{whose} and the {on_gpus}"
    return f"{both} that {needs} (--gpus N estimates for more)"


def _counted(amount: float, unit: str) -> str:
    return f"{amount:g} {unit}{'s' * (amount != 1)}"


def disk_bytes(plan: Plan) -> tuple[int, int]:
    """Bytes of the checkpoints that the pending runs will keep, and how many runs' models have no known size.

    A checkpoint has the weights and Adam's two moments in float32, besides bfloat16 weights where one process has them.
    """
    total = unknown = 0
    for entry in plan.pending:
        spec = entry.planned.spec
        if not spec.arm.trained:
            continue
        width = {"float32": 4, "bfloat16": 2}[spec.model.dtype]
        weights = sum(path.stat().st_size for path in spec.model.folder.glob("*.safetensors"))
        parameters = spec.model.sizes.parameters if spec.model.sizes else weights // width
        unknown += not parameters
        beside = 2 if width == 2 and spec.resources.learners == 1 else 0
        total += parameters * (4 + 8 + beside) * spec.trainer.keep_checkpoints
    return total, unknown


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
    unread = {f"objective.{key}" for key in spec.objective.unread}
    for key, value in flatten({"objective": spec.objective.model_dump(mode="json")}).items():
        if key in unread:
            continue
        table.add_row(key, Text(_shown(value)), Text(_said(source_of(arm.sources, key))))
    rest = spec.model_dump(mode="json", include={"model", "data", "prompt", "rollout", "trainer"})
    for key, value in flatten(rest).items():
        source = source_of(arm.sources, key)
        table.add_row(key, Text(_shown(value)), Text(_said(source) if source else f"profile {spec.profile.name}"))
    table.add_row("suite", Text(", ".join(spec.suite.benchmarks)), Text(f"profile {spec.profile.name}"))
    lineage = f", child of {arm.parent}, varies {', '.join(arm.varies)}" if arm.parent else ""
    head = Text(f"{arm.name}: {arm.label}{lineage} (profile {spec.profile.name})", style="bold")
    return Group(head, *([Text(arm.note)] if arm.note else []), table)


def _said(source: ValueSource | None) -> str:
    if source is None:
        return "no source"
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
    return [{"name": report.name, "title": report.title, "profile": report.profile} for report in loaded]


def _table(*headings: str, title: str | None = None, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    return table


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
