"""What a table is made of. Scores are counts of generations; shares are shown in percent."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

#: One word for a cell without a score, where there is room for no more; `Cell.reason` says it in full.
Missing = Literal["not run", "running", "stopped", "failed", "collapsed", "not graded", "incomplete", "damaged"]


@dataclass(frozen=True)
class WantedRow:
    """A row asked for. `family` is the run's identity without its seed, as in run.json.

    `seeds` are those expected, and the row says how many of them are there; when empty, all that are found are taken.
    `steps` is where the row alone may be read; None: where its table is. `published` is its name among published rows.
    `ancestors` are its arm's parent, the parent's parent and so on, for a table that lacks the parent. `damaged` are
    the seeds whose run.json cannot be read.
    """

    panel: str | None
    arm: str
    label: str
    family: str
    seeds: tuple[int, ...] = ()
    steps: int | None = None
    published: str = ""
    ancestors: tuple[str, ...] = ()
    damaged: tuple[int, ...] = ()

    @property
    def published_name(self) -> str:
        return self.published or self.arm


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
    """The paper's number for a cell, ours minus it in points, and whether it lies in our 95 % interval.

    Where we have no score the latter two are None.
    """

    percent: float
    difference: float | None = None
    inside: bool | None = None


@dataclass(frozen=True)
class Score:
    """A percent with its 95 % interval."""

    percent: float
    ci95: tuple[float, float]


@dataclass(frozen=True)
class Cell:
    """k right of n graded generations, summed over the seeds; or the reason why there is no score.

    `at_k` holds avg@n and pass@k by name, where they were asked for and the benchmark has the samples.
    """

    correct: int | None = None
    graded: int | None = None
    ci95: tuple[float, float] | None = None
    reason: str | None = None
    missing: Missing | None = None
    published: Published | None = None
    at_k: dict[str, Score] = field(default_factory=dict)

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
class Collapse:
    """The end of a seed's run by a stop rule, which is named as it is written."""

    seed: int
    step: int
    rule: str


@dataclass(frozen=True)
class Row:
    """An arm's scores. `seeds` are those whose evaluations are counted; `steps` is where they were evaluated.

    `suspect` says why the scores may not be what they seem, `provenance` which of its runs were made from a changed
    source tree or partly by other code; both are empty when nothing is to be said. `collapses` are those of its seeds.
    """

    panel: str | None
    arm: str
    label: str
    seeds: tuple[int, ...]
    steps: int | None
    outcome: str
    cells: dict[str, Cell]
    average: Average
    runs: tuple[RunLine, ...] = ()
    profile: str = ""
    published: str = ""
    suspect: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()
    collapses: tuple[Collapse, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """An arm against its parent, in points of the generation-weighted average; or the reason why there is none.

    `parent` is the nearest ancestor that stands in the table. `suspect` names those of the two whose row is suspect;
    `label` and `parent_label` are what their rows are called; `steps` is where they were to be read, None where that is
    at an equal budget.
    """

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
    profile: str = ""
    suspect: tuple[str, ...] = ()
    label: str = ""
    parent_label: str = ""
    steps: int | None = None


@dataclass(frozen=True)
class Untrained:
    """A profile's untrained model: its row, or why there is none."""

    profile: str
    row: Row | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Table:
    """A table, ready to be rendered: the rows of one profile, or of several that share their benchmarks.

    `untrained` has an entry for each profile; `panels` maps names to titles; `steps` is where all rows are read, None
    where they are read at different steps; `published` names the source of the published numbers beside the cells, when
    there are any; `pass_at` are the k of pass@k that were asked for.
    """

    name: str
    title: str
    profiles: tuple[str, ...]
    paper_profiles: tuple[str, ...]
    columns: tuple[Column, ...]
    panels: dict[str, str]
    untrained: tuple[Untrained, ...]
    rows: tuple[Row, ...]
    steps: int | None = None
    comparisons: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    interval: str = ""
    published: str | None = None
    pass_at: tuple[int, ...] = ()

    @property
    def profile(self) -> str:
        """The profile, or all of them in one phrase."""
        return ", ".join(self.profiles)

    @property
    def base(self) -> Row | None:
        """The first profile's untrained model."""
        return self.untrained[0].row

    @property
    def base_reason(self) -> str | None:
        """Why the first profile has no untrained model."""
        return self.untrained[0].reason

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """Each profile's untrained model, when there is one, and its rows."""
        return tuple(row for each in self.untrained for row in (*self._base_of(each), *self.rows_of(each.profile)))

    def rows_of(self, profile: str) -> list[Row]:
        """The rows of one profile."""
        return [row for row in self.rows if row.profile == profile]

    @staticmethod
    def _base_of(untrained: Untrained) -> tuple[Row, ...]:
        return () if untrained.row is None else (untrained.row,)

    def of_profile(self, profile: str) -> Table:
        """The table with one of its profiles alone."""
        return replace(
            self,
            profiles=(profile,),
            untrained=tuple(each for each in self.untrained if each.profile == profile),
            rows=tuple(self.rows_of(profile)),
            comparisons=tuple(each for each in self.comparisons if each.profile == profile),
        )

    @property
    def distinct_rows(self) -> tuple[Row, ...]:
        """All rows, but those of the same name and runs as an earlier one: a head row that its panel has again."""
        once: dict[tuple[str, str, tuple[RunLine, ...]], Row] = {}
        for row in self.all_rows:
            once.setdefault((row.profile, row.label, row.runs), row)
        return tuple(once.values())

    def footer(self) -> dict[str, Any]:
        """What stands under the table, as plain values."""
        runs = [asdict(run) for row in self.all_rows for run in row.runs]
        return {
            "title": self.title,
            "profile": self.profile,
            "paper_profile": ", ".join(self.paper_profiles),
            "steps": self.steps,
            "seeds": sorted({seed for row in self.rows for seed in row.seeds}),
            "interval": self.interval,
            "problems_only": list(dict.fromkeys(row.arm for row in self.all_rows if row.average.seeds == 1)),
            "commits": sorted({run["commit"] for run in runs if run["commit"]}),
            "runs": list({run["id"]: run for run in runs}.values()),
            "notes": list(self.notes),
            **({"published": self.published} if self.published else {}),
        }

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values, in the form of `--format json`.

        `base` is the (first) profile's untrained model; of several profiles, `bases` has each one's by name.
        """
        several = len(self.profiles) > 1
        bases = {each.profile: _untrained(each) for each in self.untrained}
        return {
            "table": self.name,
            "profile": self.profile,
            "benchmarks": [
                {"name": each.name, "label": each.label, "problems": each.problems, "samples": each.samples}
                for each in self.columns
            ],
            "base": bases[self.profiles[0]],
            **({"bases": bases} if several else {}),
            **({"base_reason": self.base_reason} if self.base is None else {}),
            "rows": [_row(row, with_profile=several) for row in self.rows],
            "comparisons": [_comparison(each, with_profile=several) for each in self.comparisons],
            "footer": self.footer(),
        }


def _row(row: Row, *, with_profile: bool) -> dict[str, Any]:
    return {
        **({"profile": row.profile} if with_profile else {}),
        "panel": row.panel,
        "arm": row.arm,
        "label": row.label,
        "seeds": list(row.seeds),
        "steps": row.steps,
        "outcome": row.outcome,
        **({"collapses": [asdict(each) for each in row.collapses]} if row.collapses else {}),
        "cells": _cells(row),
        "average": _average(row.average),
        "suspect": list(row.suspect),
        **({"provenance": list(row.provenance)} if row.provenance else {}),
    }


def _untrained(untrained: Untrained) -> dict[str, Any] | None:
    row = untrained.row
    if row is None:
        return None
    return {"cells": _cells(row), "average": _average(row.average), "suspect": list(row.suspect)}


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
    if isinstance(scored, Cell) and scored.at_k:
        extras["at_k"] = {
            name: {"percent": each.percent, "ci95": list(each.ci95)} for name, each in scored.at_k.items()
        }
    return extras


def _comparison(comparison: Comparison, *, with_profile: bool) -> dict[str, Any]:
    values = asdict(comparison) | {"seeds": list(comparison.seeds), "suspect": list(comparison.suspect)}
    values["ci95"] = list(comparison.ci95) if comparison.ci95 else None
    for key, dropped in (
        ("reason", comparison.reason is None),
        ("suspect", not comparison.suspect),
        ("profile", not with_profile),
    ):
        if dropped:
            del values[key]
    return values
