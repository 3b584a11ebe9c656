"""The paper's printed numbers, set beside ours only where both speak of the same thing."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from pydantic import Field

from tepo_lab.errors import DataError
from tepo_lab.report.table.frame import Average, Cell, Published, Row, Table
from tepo_lab.schema.base import PositiveInt, Strict, validate

AVERAGE = "avg"


class PublishedBenchmark(Strict):
    """A benchmark as the paper graded it."""

    label: str
    problems: PositiveInt
    samples: PositiveInt


class Source(Strict):
    """reports/published/source.yaml: where the numbers come from and what they were graded on."""

    paper: str
    url: str
    steps: dict[str, PositiveInt] = Field(default={}, description="table -> training steps of its rows")
    benchmarks: dict[str, PublishedBenchmark]


@dataclass(frozen=True)
class PublishedTable:
    """Printed percents by (panel, model, row, benchmark); a panel is "" where the table has none, a dash is None."""

    name: str
    source: Source
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
    """Read NAME.csv and source.yaml of a folder of published tables. Raises `DataError` when either cannot be read."""
    path, source = folder / f"{name}.csv", folder / "source.yaml"
    try:
        declared = validate(Source, yaml.safe_load(source.read_text()), where=str(source))
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        percents = {
            (row["panel"], row["model"], row["row"], row["benchmark"]): float(row["percent"])
            if row["percent"]
            else None
            for row in rows
        }
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}: no published table {name!r} can be read there.") from None
    except (KeyError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path} is not a published table ({error}): give columns panel, model, row, …") from None
    return PublishedTable(name, declared, percents)


def why_not_comparable(table: Table, published: PublishedTable) -> str | None:
    """Why the paper's numbers cannot stand beside the table's, or None when profile and suite are the paper's."""
    models = ", ".join(sorted(published.models))
    if others := [profile for profile in table.profiles if profile not in published.models]:
        return f"profile {', '.join(others)} is not the paper's ({models})"
    theirs = {name: (each.problems, each.samples) for name, each in published.source.benchmarks.items()}
    for column in table.columns:
        if column.name not in theirs:
            return f"the paper has no benchmark {column.name}"
        problems, samples = theirs[column.name]
        if (column.problems, column.samples) != (problems, samples):
            return (
                f"{column.name} has {column.problems} problems x {column.samples} samples here and "
                f"{problems} x {samples} in the paper"
            )
    if lacking := sorted(theirs.keys() - {column.name for column in table.columns}):
        return f"the suite lacks the paper's {', '.join(lacking)}"
    return None


def against_published(table: Table, published: PublishedTable) -> Table:
    """The table with the paper's number beside each cell.

    Unchanged but for a note that says why, where profile or suite are not the paper's (`why_not_comparable`).
    """
    reason = why_not_comparable(table, published)
    if reason is not None:
        note = f"The paper's numbers ({published.source.paper}) are not shown: {reason}."
        return replace(table, notes=(*table.notes, note))
    steps = published.source.steps.get(published.name)
    notes = table.notes
    going = [row for row in table.rows if row.seeds and not row.outcome.startswith("collapsed")]
    others = sorted({row.steps for row in going if row.steps is not None} - {steps})
    if steps is not None and others:
        here = " and ".join(str(each) for each in others)
        notes = (*notes, f"Rows are read at step {here}, the paper's stand at step {steps}.")
    shown = replace(
        table,
        notes=notes,
        untrained=tuple(
            replace(each, row=_beside(each.row, published) if each.row else None) for each in table.untrained
        ),
        rows=tuple(_beside(row, published) for row in table.rows),
        published=published.source.paper,
    )
    lacking = [row.label for row in shown.rows if row.seeds and row.average.published is None]
    note = f"The paper has no number for {', '.join(dict.fromkeys(lacking))}."
    return replace(shown, notes=(*notes, note)) if lacking else shown


def _beside(row: Row, published: PublishedTable) -> Row:
    cells: dict[str, Cell] = {}
    for name, cell in row.cells.items():
        percent = published.percent(row.panel, row.profile, row.published, name)
        cells[name] = replace(cell, published=_published(percent, cell.percent, cell.ci95))
    average: Average = row.average
    percent = published.percent(row.panel, row.profile, row.published, AVERAGE)
    shown = _published(percent, average.generation_weighted, average.ci95)
    return replace(row, cells=cells, average=replace(average, published=shown))


def _published(percent: float | None, ours: float | None, ci95: tuple[float, float] | None) -> Published | None:
    if percent is None:
        return None
    if ours is None or ci95 is None:
        return Published(percent)
    return Published(percent, ours - percent, ci95[0] <= percent <= ci95[1])
