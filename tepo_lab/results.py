"""A home's records and reports as pandas frames, for notebooks: `from tepo_lab import results`.

    results.runs("outputs")                      one row per run
    results.metrics("outputs")                   one row per training step of a run
    results.generations("outputs")               one row per graded answer
    results.report("outputs", "table3")          one row per cell of the table, in long form
    results.comparisons("outputs", "table3")     one row per arm, against its parent
    results.steps_to_target("outputs", "table4", 60)    one row per seed of an arm
    results.audit()                              one row per finding of the audit
    results.theory("outputs")                    one row per check of the theory

The units of the columns are in `frame.attrs["units"]` and in `UNITS`. Nothing is written. A run with damaged run.json,
metrics or events is left out and named on standard error; damaged generations raise `RecordError`; wrong names, a
missing home and a report on a home without runs raise `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow
import pyarrow.parquet as parquet

from tepo_lab.audit.audit import audit as audit_tables
from tepo_lab.audit.printed import read_printed, read_published
from tepo_lab.errors import ConfigError, RecordError, nearest
from tepo_lab.records.files import report_left_out
from tepo_lab.records.generations import GENERATION_COLUMNS
from tepo_lab.records.history import RunHistory, State, read_histories
from tepo_lab.registry.locations import package_root
from tepo_lab.registry.reports import load_report
from tepo_lab.report.figures import data as figures_data
from tepo_lab.report.render.formats import CSV_COLUMNS, csv_columns, lines_of
from tepo_lab.report.table.target import make_target
from tepo_lab.schema.figure import FigureReport
from tepo_lab.tables import (
    HomeReport,
    beside_published,
    check_runs,
    figure_lines,
    resolved_reports,
    tables_of,
    target_of,
)

#: Units of columns, by name or by the part before "/*". A column without an entry is a name or a count.
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

#: Columns that identify the run of a row.
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

REPORT_COLUMNS = CSV_COLUMNS
FIGURE_COLUMNS = (*figures_data.COLUMNS, "unit")
COMPARISON_COLUMNS = (
    *("table", "profile", "panel", "arm", "parent", "seeds", "difference", "difference_low", "difference_high"),
    *("p", "p_holm", "smallest_detectable", "verdict", "reason", "suspect", "steps", "label", "parent_label"),
)
FINDING_COLUMNS = ("table", "model", "row", "column", "kind", "printed", "recomputed", "detail")
CHECK_COLUMNS = ("source", "statement", "among", "cases", "holds", "share", "note")


def units(column: str) -> str | None:
    """The unit of a column, or None for a name or a count."""
    return UNITS.get(column) or UNITS.get(f"{column.partition('/')[0]}/*")


def runs(home: str | Path) -> pd.DataFrame:
    """One row per run of the home, by folder name.

    run (folder name), arm, profile, seed; id, family (the identity without the seed); label, parent; steps asked for
    and step reached; outcome (complete, collapsed, stopped by a search, failed, running, interrupted, pending);
    collapsed_at; evaluated_steps, a tuple; created; commit ("+changes" when the checkout had some); folder.
    """
    rows = []
    for history in _histories(home):
        created = history.run.get("created")
        rows.append(
            _identity(history)
            | {
                "id": history.id,
                "family": history.family,
                "label": history.spec["arm"].get("label"),
                "parent": history.parent,
                "steps": history.asked_steps,
                "step": history.step,
                "outcome": str(history.state),
                "collapsed_at": history.collapsed_at,
                "evaluated_steps": history.complete_evaluations,
                "created": pd.NaT if created is None else pd.Timestamp(created, unit="s", tz="UTC"),
                "commit": history.commit,
                "folder": str(history.folder.path),
            }
        )
    return _frame(rows, RUN_COLUMNS)


def metrics(home: str | Path) -> pd.DataFrame:
    """One row per training step of a run, in order: run, arm, profile, seed, step, then the step metrics by name.

    A value that was not finite, or that a run does not record, is NaN.
    """
    rows = []
    for history in _histories(home):
        try:
            rows += [_identity(history) | line for line in history.metrics()]
        except RecordError as error:
            report_left_out(history.folder, str(error))
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in (*IDENTITY, "step")]
    return _frame(rows, (*IDENTITY, "step", *names)).astype(dict.fromkeys(names, "float64"))


def generations(
    home: str | Path, *, steps: Iterable[int] | None = None, columns: Sequence[str] = GENERATION_COLUMNS
) -> pd.DataFrame:
    """One row per graded answer of an evaluation: run, arm, profile, seed, step, then the columns of the record.

    Args: `steps`, the training steps to read, all evaluated ones when omitted; `columns`, those of
    `GENERATION_COLUMNS` to read: without prompt and response a frame is a tenth of the size.
    `correct` is 0 or 1; `tokens` counts the response with its end token.
    """
    for name in columns:
        if name not in GENERATION_COLUMNS:
            raise ConfigError(f"generations have no column {name!r}.{nearest(name, GENERATION_COLUMNS)}")
    wanted = None if steps is None else set(steps)
    parts = []
    for history in _histories(home):
        for step in history.complete_evaluations:
            if wanted is not None and step not in wanted:
                continue
            path = history.folder.generations(step)
            try:
                part: pd.DataFrame = parquet.read_table(path, columns=list(columns)).to_pandas()
            except (pyarrow.ArrowException, OSError) as error:
                raise RecordError(f"{path} cannot be read ({error}): remove it and run the sweep again.") from None
            for place, (name, value) in enumerate((_identity(history) | {"step": step}).items()):
                part.insert(place, name, value)
            parts.append(part)
    return _with_units(pd.concat(parts, ignore_index=True)) if parts else _frame([], (*IDENTITY, "step", *columns))


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
    ["profile=nano"]; `panels`, all when omitted; `equal`, the budget that rows are read at instead of a step;
    `pass_at`, each k of pass@k, which is "aime24 pass@4" after its benchmark; `against`, "published" for the paper's
    numbers beside ours. `correct` and `graded` are counts summed over the seeds; `avg` is over all generations, `macro`
    the plain mean of the columns; `reason` says why a score is missing (NaN), `suspect` why one may not be what it
    seems. The same numbers as `tepo-lab report NAME --format csv`.

    Of a figure's name: the numbers behind it, `FIGURE_COLUMNS`, a row per value with its `unit`; see
    `tepo_lab.report.figures.data.figure_lines`.
    """
    loaded = load_report(name)
    if against not in (None, "published"):
        raise ConfigError(f"against={against!r}: give 'published'.")
    if isinstance(loaded, FigureReport):
        if equal or pass_at or against:
            raise ConfigError(f"{name} is a figure: it takes overrides and panels.")
        return _figure(home, name, overrides, panels)
    tables = tables_of(Path(home), _resolved(home, name, overrides, panels), equal, pass_at)
    if against:
        tables = [beside_published(table, loaded) for table in tables]
    frame = _frame((line for table in tables for line in lines_of(table)), csv_columns(tables[0]))
    floats = ("percent", "ci95_low", "ci95_high", "published", "published_difference")
    counts = {"correct": "Int64", "graded": "Int64", "steps": "Int64", "published_inside": "boolean"}
    return frame.astype(dict.fromkeys(floats, "float64") | counts)


def _figure(home: str | Path, name: str, overrides: Sequence[str], panels: Sequence[str]) -> pd.DataFrame:
    frame = _frame(figure_lines(Path(home), _resolved(home, name, overrides, panels)), FIGURE_COLUMNS)
    # A series is a metric with its own unit, or a score.
    frame["unit"] = [units(series) or "percent" for series in frame["series"]]
    floats = dict.fromkeys(("value", "ci95_low", "ci95_high"), "float64")
    frame = frame.astype(floats | {"seed": "Int64", "step": "Int64"})
    frame.attrs["units"] |= dict.fromkeys(floats, "as the column unit says")
    return frame


def comparisons(
    home: str | Path, name: str, overrides: Sequence[str] = (), *, panels: Sequence[str] = ()
) -> pd.DataFrame:
    """A report's arms against their parents: difference with its interval, p, p after Holm's correction, verdict.

    Args: as `report`. Where there is no comparison, `reason` says why.
    """
    rows = []
    for table in tables_of(Path(home), _resolved(home, name, overrides, panels)):
        for comparison in table.comparisons:
            low, high = comparison.ci95 or (None, None)
            rows.append(
                {
                    **asdict(comparison),
                    "table": table.name,
                    "seeds": " ".join(str(seed) for seed in comparison.seeds),
                    "suspect": " ".join(comparison.suspect),
                    "difference_low": low,
                    "difference_high": high,
                }
            )
    return _frame(rows, COMPARISON_COLUMNS).astype({"steps": "Int64"})


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
    resolved = _resolved(home, name, overrides, [])
    table = target_of(Path(home), resolved, make_target(percent, metric, window))
    return _frame(lines_of(table), csv_columns(table)).astype({"step": "Int64"})


def audit(file: str | Path | None = None, counts: str | Path | None = None) -> pd.DataFrame:
    """One row per finding of the audit, of the paper's tables or of a CSV of printed ones.

    Args: `counts`, the YAML file with what they were graded on; when omitted, that of the same name beside the CSV.
    For the columns see `tepo_lab.audit.checks.Finding`.
    """
    if file is None:
        tables = read_published(package_root() / "reports" / "published")
    else:
        tables = read_printed(Path(file), None if counts is None else Path(counts))
    return _frame((asdict(each) for each in audit_tables(tables).findings), FINDING_COLUMNS)


def theory(home: str | Path, seed: int = 0) -> pd.DataFrame:
    """One row per check of the paper's theory: `holds` of `cases`, then the checks' further values (NaN where a check
    has none). Trains the nano model for a few steps, as `tepo-lab theory` does."""
    # Imports torch and the trainer, which no other frame needs.
    from tepo_lab.theory.report import check_theory

    checks = [each.to_dict() for each in check_theory(Path(home), seed).checks]
    values = dict.fromkeys(name for each in checks for name in each["values"])
    return _frame((each | each.pop("values") for each in checks), (*CHECK_COLUMNS, *values))


def _histories(home: str | Path) -> Iterator[RunHistory]:
    """The readable runs of a home, by name; damaged ones are named on standard error."""
    if not Path(home).is_dir():
        raise ConfigError(f"--home {home}: there is no such folder; name the home that runs were made in.")
    for history in read_histories(Path(home)):
        if history.state is State.DAMAGED:
            report_left_out(history.folder, str(history.damage))
        else:
            yield history


def _identity(history: RunHistory) -> dict[str, Any]:
    """The `IDENTITY` columns of a run."""
    return {"run": history.name, "arm": history.arm, "profile": history.profile or None, "seed": history.seed}


def _resolved(home: str | Path, name: str, overrides: Sequence[str], panels: Sequence[str]) -> HomeReport:
    resolved = resolved_reports(Path(home), name, list(overrides), panels=list(panels))
    check_runs(Path(home), name, resolved)
    return resolved


def _frame(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    return _with_units(pd.DataFrame.from_records([dict(row) for row in rows], columns=list(columns)))


def _with_units(frame: pd.DataFrame) -> pd.DataFrame:
    frame.attrs["units"] = {name: unit for name in frame.columns if (unit := units(str(name))) is not None}
    return frame
