"""A home's records and reports as pandas frames, for notebooks: `from tepo_lab import results`.

    results.runs("outputs")                      one row a run
    results.metrics("outputs")                   one row a training step of a run
    results.generations("outputs")               one row a graded answer
    results.report("outputs", "table3")          one row a cell of the table, in long form
    results.comparisons("outputs", "table3")     one row an arm against its parent
    results.steps_to_target("outputs", "table4", 60)    one row a seed of an arm
    results.audit()                              one row a finding of the auditor
    results.theory("outputs")                    one row a check of the theory

Every frame says what its columns are measured in: `frame.attrs["units"]`, also in `UNITS`. Nothing is written. A run
with a damaged run.json, metrics or events is left out and named on standard error; damaged generations raise
`RecordError`; wrong names, a home that is not there and a report on a home without runs `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import pyarrow
import pyarrow.parquet as parquet

from tepo_lab.errors import ConfigError, RecordError, nearest
from tepo_lab.records.files import readable_runs
from tepo_lab.records.generations import GENERATION_COLUMNS
from tepo_lab.report.figures import data as figures_data
from tepo_lab.report.render.formats import CSV_COLUMNS
from tepo_lab.report.render.formats import lines_of as table_lines
from tepo_lab.report.table.scan import FoundRun, scan_of

if TYPE_CHECKING:
    from tepo_lab.report.table.frame import Table
    from tepo_lab.tables import Resolved

#: What columns are measured in, by name or by the part before "/*". A column without an entry is a name or a count.
UNITS: dict[str, str] = {
    "created": "UTC",
    "time": "seconds since 1970 (Unix)",
    "steps": "training steps",
    "step": "training steps",
    "last_step": "training steps",
    "target": "percent of the metric",
    "window": "training steps",
    "seconds": "seconds of training",
    "collapsed_at": "training steps",
    "reward/*": "share of responses or groups, 0 to 1",
    "reward/timed_out": "responses",
    "data/dropped_overlaps": "problems",
    "rollout/tokens": "tokens",
    "rollout/prompt_tokens": "tokens",
    "rollout/response_tokens_mean": "tokens",
    "rollout/response_tokens_max": "tokens",
    "rollout/truncated_share": "share of responses, 0 to 1",
    "rollout/kept_groups": "prompts",
    "rollout/generation_batches": "batches",
    "rollout/sampler_mismatch_mean": "nats per token",
    "rollout/sampler_mismatch_max": "nats per token",
    "ratio/*": "ratio of probabilities",
    "actor/entropy": "nats per token",
    "entropy/change_mean": "nats per token",
    "actor/ppo_kl": "nats per token",
    "actor/kl_loss": "nats per token",
    "penalty/kl_on_mask": "nats per token",
    "actor/pg_clipfrac": "share of tokens, 0 to 1",
    "actor/pg_clipfrac_lower": "share of tokens, 0 to 1",
    "actor/clip_fraction_high": "share of tokens, 0 to 1",
    "actor/clip_fraction_low": "share of tokens, 0 to 1",
    "actor/clip_fraction_positive": "share of tokens, 0 to 1",
    "actor/clip_fraction_negative": "share of tokens, 0 to 1",
    "actor/pg_loss": "no unit: the policy term of the loss",
    "actor/kl_coef": "loss per nat",
    "penalty/gradient_ratio": "no unit: norm of the penalty's gradient by that of the rest",
    "selection/dropped": "share of tokens, 0 to 1",
    "weights/*": "no unit",
    "actor/grad_norm": "Euclidean norm before clipping",
    "actor/lr": "per update",
    "actor/updates": "optimizer steps",
    "mask/share": "share of tokens, 0 to 1",
    "cells/*": "share of tokens, 0 to 1",
    "seconds/*": "seconds",
    "tokens": "tokens",
    "percent": "percent of graded answers that are right",
    "ci95_low": "percent",
    "ci95_high": "percent",
    "published": "percent, as the paper prints it",
    "published_difference": "points: ours minus the paper's",
    "difference": "points of the generation-weighted average",
    "difference_low": "points",
    "difference_high": "points",
    "smallest_detectable": "points",
    "printed": "percent (points for a difference, a rank for a rank)",
    "recomputed": "percent (points for a difference, a rank for a rank)",
    "share": "share of cases, 0 to 1",
}

#: Columns that say which run a row belongs to.
IDENTITY = ("run", "arm", "profile", "seed")

RUN_COLUMNS = (
    *IDENTITY,
    "id",
    "family",
    "label",
    "parent",
    "steps",
    "step",
    "outcome",
    "collapsed_at",
    "evaluated_steps",
    "created",
    "commit",
    "folder",
)

#: As the CSV rendering has them.
REPORT_COLUMNS = CSV_COLUMNS

FIGURE_COLUMNS = (*figures_data.COLUMNS, "unit")

FINDING_COLUMNS = ("table", "model", "row", "column", "kind", "printed", "recomputed", "detail")
CHECK_COLUMNS = ("source", "statement", "among", "cases", "holds", "share", "note")


def units(column: str) -> str | None:
    """What a column is measured in, or None for a name or a count."""
    return UNITS.get(column) or UNITS.get(f"{column.partition('/')[0]}/*")


def runs(home: str | Path) -> pd.DataFrame:
    """One row a run of the home, by folder name.

    run (folder name), arm, profile, seed; id, family (the identity without the seed); label, parent; steps asked for
    and step reached; outcome (complete, collapsed, stopped by a search, failed, running, interrupted, pending);
    collapsed_at; evaluated_steps, a tuple; created; commit ("+changes" when the checkout had some); folder.
    """
    return _frame((_run_row(spec, run) for spec, run in _found(home)), RUN_COLUMNS)


def metrics(home: str | Path) -> pd.DataFrame:
    """One row a training step of a run, in order: run, arm, profile, seed, step, then the step metrics by their names.

    A value that was not finite, or that a run does not record, is NaN.
    """
    rows = [
        _identity(spec, run) | line for spec, run in _found(home, metrics=True) for line in run.folder.whole_metrics()
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = dict.fromkeys([*IDENTITY, "step", *names])
    frame = _frame(rows, columns)
    measured = [name for name in columns if name not in IDENTITY and name != "step"]
    return _with_units(frame.astype(dict.fromkeys(measured, "float64")))


def generations(
    home: str | Path, *, steps: Iterable[int] | None = None, columns: Sequence[str] = GENERATION_COLUMNS
) -> pd.DataFrame:
    """One row a graded answer of an evaluation: run, arm, profile, seed, step, then the columns of the record.

    Args: `steps`, the training steps to read, all evaluated ones when left out; `columns`, those of
    `GENERATION_COLUMNS` that are wanted: without prompt and response a frame is a tenth of the size.
    `correct` is 0 or 1; `tokens` counts the response with its end token.
    """
    for name in columns:
        if name not in GENERATION_COLUMNS:
            raise ConfigError(f"generations have no column {name!r}.{nearest(name, GENERATION_COLUMNS)}")
    wanted = None if steps is None else set(steps)
    parts = [
        _evaluation(spec, run, step, columns)
        for spec, run in _found(home)
        for step in run.evaluated_steps
        if wanted is None or step in wanted
    ]
    if not parts:
        return _frame([], (*IDENTITY, "step", *columns))
    return _with_units(pd.concat(parts, ignore_index=True))


def report(
    home: str | Path,
    name: str,
    overrides: Sequence[str] = (),
    *,
    panels: Sequence[str] = (),
    equal: Literal["tokens", "seconds"] | None = None,
    pass_at: Sequence[int] = (),
    against: Literal["published"] | None = None,
) -> pd.DataFrame:
    """A report in long form: one row for each of its rows and benchmarks, then `avg` and `macro`.

    Args: `name`, a report's or sweep's name or the path of a YAML file; `overrides` as on the command line, such as
    ["profile=nano"]; `panels`, all when left out; `equal`, the budget that rows are read at instead of a step;
    `pass_at`, each k of pass@k, which stands as "aime24 pass@4" after its benchmark; `against`, "published" for the
    paper's numbers beside ours. `correct` and `graded` are counts summed over the seeds; `avg` is over all generations,
    `macro` the plain mean of the columns; `reason` says why a score is missing (NaN), `suspect` why one may not be what
    it seems. The same numbers as `tepo-lab report NAME --format csv`.

    Of a figure's name: the numbers behind it, `FIGURE_COLUMNS`, a row a value with its `unit`; see
    `tepo_lab.report.figures.data.figure_lines`.
    """
    from tepo_lab.registry.reports import load_report
    from tepo_lab.schema.figure import FigureReport
    from tepo_lab.tables import beside_published

    loaded = load_report(name)
    if against not in (None, "published"):
        raise ConfigError(f"against={against!r}: give 'published'.")
    if isinstance(loaded, FigureReport):
        if equal or pass_at or against:
            raise ConfigError(f"{name} is a figure: it takes overrides and panels.")
        return _figure(home, name, overrides, panels)
    tables = _tables(home, name, overrides, panels, equal, pass_at)
    if against:
        tables = [beside_published(table, loaded) for table in tables]
    frame = _frame((line for table in tables for line in table_lines(table)), REPORT_COLUMNS)
    floats = ("percent", "ci95_low", "ci95_high", "published", "published_difference")
    frame = frame.astype(dict.fromkeys(floats, "float64") | {"published_inside": "boolean"})
    return _with_units(frame.astype({"correct": "Int64", "graded": "Int64", "steps": "Int64"}))


def comparisons(
    home: str | Path, name: str, overrides: Sequence[str] = (), *, panels: Sequence[str] = ()
) -> pd.DataFrame:
    """A report's arms against their parents: difference with its interval, p, p after Holm's correction, verdict.

    Args: as `report`. Where there is no comparison, `reason` says why.
    """
    rows = []
    for table in _tables(home, name, overrides, panels):
        for each in table.comparisons:
            values = asdict(each)
            low, high = values.pop("ci95") or (None, None)
            seeds = " ".join(str(seed) for seed in values.pop("seeds"))
            suspect = " ".join(values.pop("suspect"))
            rows.append({"table": table.name, **values, "seeds": seeds, "suspect": suspect})
            rows[-1] |= {"difference_low": low, "difference_high": high}
    columns = (
        *("table", "profile", "panel", "arm", "parent", "seeds", "difference", "difference_low", "difference_high"),
        *("p", "p_holm", "smallest_detectable", "verdict", "reason", "suspect", "steps", "label", "parent_label"),
    )
    return _with_units(_frame(rows, columns).astype({"steps": "Int64"}))


def steps_to_target(
    home: str | Path,
    name: str,
    percent: float,
    overrides: Sequence[str] = (),
    *,
    metric: str = "reward/mean",
    window: int | None = None,
) -> pd.DataFrame:
    """Where each seed of a report's arms first reached a mean reward or a validation score, NaN where it never did,
    with the tokens and seconds of training until then. As `tepo-lab report NAME --target PERCENT`.

    Args: `percent` of the responses right, in the mean over the last `window` steps; `metric`, "validation" for a
    search's validation score; others as `report`.
    """
    from tepo_lab.report.render.target import COLUMNS, lines_of
    from tepo_lab.report.table.target import make_target
    from tepo_lab.tables import target_of

    resolved = _resolved(home, name, overrides, [])
    table = target_of(Path(home), resolved, make_target(percent, metric, window))
    return _frame(lines_of(table), COLUMNS).astype({"step": "Int64"})


def audit(file: str | Path | None = None, counts: str | Path | None = None) -> pd.DataFrame:
    """The auditor's findings, one a row, in the paper's tables or in a CSV of printed ones.

    Args: `counts`, the YAML file of what they were graded on, the one of the same name beside the CSV when left out.
    What the columns mean is said in `tepo_lab.audit.checks.Finding`.
    """
    from tepo_lab.audit.audit import audit as audit_tables
    from tepo_lab.audit.printed import read_printed, read_published
    from tepo_lab.registry.locations import package_root

    if file is None:
        tables = read_published(package_root() / "reports" / "published")
    else:
        tables = read_printed(Path(file), None if counts is None else Path(counts))
    return _frame((asdict(each) for each in audit_tables(tables).findings), FINDING_COLUMNS)


def theory(home: str | Path, seed: int = 0) -> pd.DataFrame:
    """The checks of the paper's theory, one a row: `holds` of `cases`, and each check's further values as columns
    (NaN where it has none). Takes about as long as `tepo-lab theory`."""
    from tepo_lab.theory.report import check_theory

    checks = [each.to_dict() for each in check_theory(Path(home), seed).checks]
    values = dict.fromkeys(name for each in checks for name in each["values"])
    return _frame((each | each.pop("values") for each in checks), (*CHECK_COLUMNS, *values))


def _found(home: str | Path, *, metrics: bool = False) -> Iterator[tuple[dict[str, Any], FoundRun]]:
    """The runs of a home by folder name, each with its resolved configuration; with `metrics`, if those are whole."""
    if not Path(home).is_dir():
        raise ConfigError(f"--home {home}: there is no such folder; name the home that runs were made in.")
    records = list(readable_runs(Path(home), tell=True))
    values = {folder.path: record for folder, record in records}
    for run in scan_of(records, (), metrics=metrics).values():
        if run.damaged is None:
            yield values[run.folder.path], run


def _identity(values: Mapping[str, Any], run: FoundRun) -> dict[str, Any]:
    profile = values["spec"].get("profile") or {}
    return {"run": run.folder.name, "arm": run.arm, "profile": profile.get("name"), "seed": run.seed}


def _run_row(values: Mapping[str, Any], run: FoundRun) -> dict[str, Any]:
    spec, created = values["spec"], values.get("created")
    trained = spec["arm"].get("trained", True)
    return _identity(values, run) | {
        "id": run.id,
        "family": run.family,
        "label": spec["arm"].get("label"),
        "parent": run.parent,
        "steps": spec["trainer"]["steps"] if trained else 0,
        "step": run.last_step,
        "outcome": _outcome(run),
        "collapsed_at": run.collapsed_at,
        "evaluated_steps": run.evaluated_steps,
        "created": pd.NaT if created is None else pd.Timestamp(created, unit="s", tz="UTC"),
        "commit": run.commit,
        "folder": str(run.folder.path),
    }


def _outcome(run: FoundRun) -> str:
    event = run.status.get("event")
    if event in {"complete", "collapsed", "stopped", "failed"}:
        return str(event)
    if event is None:
        return "pending"
    return "running" if run.running else "interrupted"


def _evaluation(values: Mapping[str, Any], run: FoundRun, step: int, columns: Sequence[str]) -> pd.DataFrame:
    path = run.folder.generations(step)
    try:
        frame: pd.DataFrame = parquet.read_table(path, columns=list(columns)).to_pandas()
    except (pyarrow.ArrowException, OSError) as error:
        raise RecordError(f"{path} cannot be read ({error}): remove it and run the sweep again.") from None
    described = _identity(values, run) | {"step": step}
    for place, (name, value) in enumerate(described.items()):
        frame.insert(place, name, value)
    return frame


def _tables(
    home: str | Path,
    name: str,
    overrides: Sequence[str],
    panels: Sequence[str],
    equal: Literal["tokens", "seconds"] | None = None,
    pass_at: Sequence[int] = (),
) -> list[Table]:
    from tepo_lab.tables import tables_of

    return tables_of(Path(home), _resolved(home, name, overrides, panels), equal, pass_at)


def _resolved(home: str | Path, name: str, overrides: Sequence[str], panels: Sequence[str]) -> Resolved:
    from tepo_lab.tables import check_runs, resolved_reports

    resolved = resolved_reports(Path(home), name, list(overrides), panels=list(panels))
    check_runs(Path(home), name, resolved)
    return resolved


def _figure(home: str | Path, name: str, overrides: Sequence[str], panels: Sequence[str]) -> pd.DataFrame:
    from tepo_lab.tables import figure_lines

    frame = _frame(figure_lines(Path(home), _resolved(home, name, overrides, panels)), FIGURE_COLUMNS)
    frame["unit"] = [_figure_unit(series) for series in frame["series"]]
    floats = dict.fromkeys(("value", "ci95_low", "ci95_high"), "float64")
    frame = _with_units(frame.astype(floats | {"seed": "Int64", "step": "Int64"}))
    # Each line says its own.
    frame.attrs["units"] |= dict.fromkeys(floats, "as the column unit says")
    return frame


def _figure_unit(series: str) -> str:
    """What a figure's series is measured in: a metric's own unit, points of a difference, percent of a score."""
    return units(series) or "percent"


def _frame(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    return _with_units(pd.DataFrame.from_records([dict(row) for row in rows], columns=list(columns)))


def _with_units(frame: pd.DataFrame) -> pd.DataFrame:
    frame.attrs["units"] = {name: unit for name in frame.columns if (unit := units(str(name))) is not None}
    return frame
