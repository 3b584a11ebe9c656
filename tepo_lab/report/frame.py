"""What a table is made of. Scores are counts of generations; shares are shown in percent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

#: One word for a cell without a score, where there is room for no more; `Cell.reason` says it in full.
Missing = Literal["not run", "running", "stopped", "failed", "collapsed", "not graded", "incomplete"]


@dataclass(frozen=True)
class WantedRow:
    """A row asked for. `family` is the run's identity without its seed, as in run.json.

    `seeds` are those expected, and the row says how many of them are there; when empty, all that are found are taken.
    """

    panel: str | None
    arm: str
    label: str
    family: str
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Column:
    """A benchmark: its problems, the samples drawn of each, and the temperature (0: greedy)."""

    name: str
    label: str
    problems: int
    samples: int
    temperature: float

    @property
    def generations(self) -> int:
        return self.problems * self.samples


@dataclass(frozen=True)
class Published:
    """The paper's number for a cell, ours minus it in points, and whether it lies in our 95 % interval."""

    percent: float
    difference: float
    inside: bool


@dataclass(frozen=True)
class Cell:
    """k right of n graded generations, summed over the seeds; or the reason why there is no score."""

    correct: int | None = None
    graded: int | None = None
    ci95: tuple[float, float] | None = None
    reason: str | None = None
    missing: Missing | None = None
    published: Published | None = None

    @property
    def percent(self) -> float | None:
        return None if self.correct is None or not self.graded else 100 * self.correct / self.graded


@dataclass(frozen=True)
class Average:
    """Averages over the benchmarks in percent.

    `generation_weighted` counts every generation once, as the paper's "Avg." does; `macro` is the plain mean of the
    columns. `ci95` belongs to the former. `seeds` is how many seeds the interval is over (1: problems only).
    """

    generation_weighted: float | None = None
    macro: float | None = None
    ci95: tuple[float, float] | None = None
    seeds: int = 0
    reason: str | None = None
    missing: Missing | None = None
    published: Published | None = None


@dataclass(frozen=True)
class RunLine:
    """A run behind a row, for the footer."""

    arm: str
    seed: int
    id: str
    commit: str | None
    step: int | None
    state: str


@dataclass(frozen=True)
class Row:
    """An arm's scores. `seeds` are those whose evaluations are counted; `steps` is where they were evaluated."""

    panel: str | None
    arm: str
    label: str
    seeds: tuple[int, ...]
    steps: int | None
    outcome: str
    cells: dict[str, Cell]
    average: Average
    runs: tuple[RunLine, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """An arm against its parent, in points of the generation-weighted average; or the reason why there is none."""

    panel: str | None
    arm: str
    parent: str
    seeds: tuple[int, ...]
    difference: float | None = None
    ci95: tuple[float, float] | None = None
    p: float | None = None
    p_holm: float | None = None
    smallest_detectable: float | None = None
    verdict: str = "not resolved"
    reason: str | None = None


@dataclass(frozen=True)
class Table:
    """A table, ready to be rendered.

    `base` is the untrained model's row, or None with `base_reason`; `panels` maps names to titles; `published` names
    the source of the published numbers beside the cells, when there are any.
    """

    name: str
    title: str
    profile: str
    paper_profile: str
    steps: int | None
    columns: tuple[Column, ...]
    panels: dict[str, str]
    base: Row | None
    base_reason: str | None
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    interval: str = ""
    published: str | None = None

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """The untrained model, when there is one, and the rows."""
        return (*((self.base,) if self.base else ()), *self.rows)

    def best(self) -> dict[str, float]:
        """The highest percent of each column among the rows (not the untrained model), where two or more have one.

        Keys are the benchmarks' names, `average` and `macro`.
        """
        shown: dict[str, list[float | None]] = {
            column.name: [row.cells[column.name].percent for row in self.rows] for column in self.columns
        }
        shown["average"] = [row.average.generation_weighted for row in self.rows]
        shown["macro"] = [row.average.macro for row in self.rows]
        found = {name: [each for each in values if each is not None] for name, values in shown.items()}
        return {name: max(values) for name, values in found.items() if len(values) > 1}

    def footer(self) -> dict[str, Any]:
        """What stands under the table, as plain values."""
        runs = [asdict(run) for row in self.all_rows for run in row.runs]
        return {
            "title": self.title,
            "profile": self.profile,
            "paper_profile": self.paper_profile,
            "steps": self.steps,
            "seeds": sorted({seed for row in self.rows for seed in row.seeds}),
            "interval": self.interval,
            "problems_only": [row.arm for row in self.all_rows if row.average.seeds == 1],
            "commits": sorted({run["commit"] for run in runs if run["commit"]}),
            "runs": list({run["id"]: run for run in runs}.values()),
            "notes": list(self.notes),
            **({"published": self.published} if self.published else {}),
        }

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values, in the form of `--format json`."""
        return {
            "table": self.name,
            "profile": self.profile,
            "benchmarks": [
                {"name": each.name, "label": each.label, "problems": each.problems, "samples": each.samples}
                for each in self.columns
            ],
            "base": {"cells": _cells(self.base), "average": _average(self.base.average)} if self.base else None,
            **({"base_reason": self.base_reason} if self.base is None else {}),
            "rows": [
                {
                    "panel": row.panel,
                    "arm": row.arm,
                    "label": row.label,
                    "seeds": list(row.seeds),
                    "steps": row.steps,
                    "outcome": row.outcome,
                    "cells": _cells(row),
                    "average": _average(row.average),
                }
                for row in self.rows
            ],
            "comparisons": [_comparison(each) for each in self.comparisons],
            "footer": self.footer(),
        }


def _cells(row: Row) -> dict[str, dict[str, Any]]:
    return {
        name: {"correct": cell.correct, "graded": cell.graded, "percent": cell.percent, **_extras(cell)}
        for name, cell in row.cells.items()
    }


def _average(average: Average) -> dict[str, Any]:
    return {
        "generation_weighted": average.generation_weighted,
        "macro": average.macro,
        "ci95": list(average.ci95) if average.ci95 else None,
        **_extras(average),
    }


def _extras(scored: Cell | Average) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if scored.reason is not None:
        extras["reason"] = scored.reason
    if scored.published is not None:
        extras["published"] = asdict(scored.published)
    return extras


def _comparison(comparison: Comparison) -> dict[str, Any]:
    values = asdict(comparison) | {"seeds": list(comparison.seeds)}
    values["ci95"] = list(comparison.ci95) if comparison.ci95 else None
    if comparison.reason is None:
        del values["reason"]
    return values
