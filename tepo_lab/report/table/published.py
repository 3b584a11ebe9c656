"""The paper's printed numbers, set beside ours only where both speak of the same thing."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from pydantic import Field

from tepo_lab.errors import DataError
from tepo_lab.report.table.columns import AVERAGE
from tepo_lab.report.table.frame import Table
from tepo_lab.report.table.rows import PublishedScore, Row
from tepo_lab.schema.base import PositiveInt, Strict, validate


class PublishedBenchmark(Strict):
    """A benchmark as the paper graded it."""

    label: str
    problems: PositiveInt
    samples: PositiveInt


class PublishedSource(Strict):
    """reports/published/source.yaml: where the numbers come from and what they were graded on."""

    paper: str
    url: str
    steps: dict[str, PositiveInt] = Field(default={}, description="table -> training steps of its rows")
    benchmarks: dict[str, PublishedBenchmark]


@dataclass(frozen=True)
class PublishedTable:
    """Printed percents by (panel, model, row, benchmark); a panel is "" where the table has none, a dash is None."""

    name: str
    source: PublishedSource
    percents: dict[tuple[str, str, str, str], float | None]

    @property
    def models(self) -> set[str]:
        return {model for _, model, _, _ in self.percents}

    def percent(self, panel: str | None, model: str, row: str, benchmark: str) -> float | None:
        """A printed number: the panel's, or that of the table's rows outside all panels."""
        for key in ((panel or "", model, row, benchmark), ("", model, row, benchmark)):
            if key in self.percents:
                return self.percents[key]
        return None


def load_published(folder: Path, name: str) -> PublishedTable:
    """Read NAME.csv and source.yaml of a folder of published tables.

    Raises `DataError` when either cannot be read, `ConfigError` for a wrong key or value in source.yaml.
    """
    path, source = folder / f"{name}.csv", folder / "source.yaml"
    try:
        declared = yaml.safe_load(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{source}: {error.strerror}: no published table can be read there.") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise DataError(f"{source} is not YAML ({' '.join(str(error).split())}): restore the file.") from None
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        percents = {
            (row["panel"], row["model"], row["row"], row["benchmark"]): float(row["percent"])
            if row["percent"]
            else None
            for row in rows
        }
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}: there is no published table {name!r}.") from None
    except (KeyError, ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{path} is not a published table ({error}): give columns panel, model, row, …") from None
    return PublishedTable(name, validate(PublishedSource, declared, where=str(source)), percents)


def why_not_comparable(table: Table, published: PublishedTable) -> str | None:
    """Why the paper's numbers cannot stand beside the table's, or None when profile and suite are the paper's."""
    models = ", ".join(sorted(published.models))
    if others := [profile for profile in table.profiles if profile not in published.models]:
        return f"profile {', '.join(others)} is not the paper's ({models})"
    theirs = published.source.benchmarks
    for ours in table.benchmarks:
        if ours.name not in theirs:
            return f"the paper has no benchmark {ours.name}"
        paper = theirs[ours.name]
        if (ours.problems, ours.samples) != (paper.problems, paper.samples):
            return (
                f"{ours.name} has {ours.problems} problems x {ours.samples} samples here and "
                f"{paper.problems} x {paper.samples} in the paper"
            )
    if missing := sorted(theirs.keys() - {ours.name for ours in table.benchmarks}):
        return f"the paper's {', '.join(missing)} is missing from the suite"
    return None


def against_published(table: Table, published: PublishedTable) -> Table:
    """The table with the paper's number beside each cell.

    Unchanged but for a note with the reason, where profile or suite are not the paper's (`why_not_comparable`).
    """
    reason = why_not_comparable(table, published)
    if reason is not None:
        note = f"The paper's numbers ({published.source.paper}) are not shown: {reason}."
        return replace(table, notes=(*table.notes, note))
    shown = replace(
        table,
        untrained=tuple(
            replace(untrained, row=_beside(untrained.row, published) if untrained.row else None)
            for untrained in table.untrained
        ),
        rows=tuple(_beside(row, published) for row in table.rows),
        published=published.source.paper,
    )
    notes = list(table.notes)
    paper_steps = published.source.steps.get(published.name)
    going = [row for row in table.rows if row.seeds and not row.outcome.startswith("collapsed")]
    others = sorted({row.steps for row in going if row.steps is not None} - {paper_steps})
    if paper_steps is not None and others:
        here = " and ".join(map(str, others))
        notes.append(f"Rows are read at step {here}, the paper's stand at step {paper_steps}.")
    unknown = dict.fromkeys(row.label for row in shown.rows if row.seeds and AVERAGE.name not in row.published)
    if unknown:
        notes.append(f"The paper has no number for {', '.join(unknown)}.")
    return replace(shown, notes=tuple(notes))


def _beside(row: Row, table: PublishedTable) -> Row:
    scores = {**row.scores, AVERAGE.name: row.average}
    published = {}
    for name in (*table.source.benchmarks, AVERAGE.name):
        percent = table.percent(row.panel, row.profile, row.wanted.published_name, name)
        if percent is not None:
            score = scores.get(name)
            ours = () if score is None else (score.percent - percent, score.ci95[0] <= percent <= score.ci95[1])
            published[name] = PublishedScore(percent, *ours)
    return replace(row, published=published)
