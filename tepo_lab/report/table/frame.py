"""A table before it is rendered: rows, comparisons and notes of one profile or several. Its plain form is its JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from tepo_lab.report.table.columns import COLUMNS, COMPARISON_COLUMNS
from tepo_lab.report.table.rows import Row
from tepo_lab.report.table.wanted import GradedBenchmark


@dataclass(frozen=True)
class Comparison:
    """An arm against its parent, in points of the generation-weighted average; or the reason why there is none.

    `parent` is the nearest ancestor that has a row in the table. `suspect` names those of the two whose row is suspect;
    `label` and `parent_label` are the labels of their rows; `steps` is where they were to be read, None where that is
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
    benchmarks: tuple[GradedBenchmark, ...]
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
        return tuple(
            row
            for untrained in self.untrained
            for row in (*([untrained.row] if untrained.row else []), *self.rows_of(untrained.profile))
        )

    def rows_of(self, profile: str) -> list[Row]:
        """The rows of one profile."""
        return [row for row in self.rows if row.profile == profile]

    def of_profile(self, profile: str) -> Table:
        """The table with one of its profiles alone."""
        return replace(
            self,
            profiles=(profile,),
            untrained=tuple(untrained for untrained in self.untrained if untrained.profile == profile),
            rows=tuple(self.rows_of(profile)),
            comparisons=tuple(comparison for comparison in self.comparisons if comparison.profile == profile),
        )

    @property
    def distinct_rows(self) -> tuple[Row, ...]:
        """All rows, but those of the same name and runs as an earlier one: a head row that its panel has again."""
        distinct: dict[tuple[Any, ...], Row] = {}
        for row in self.all_rows:
            runs = (tuple(line.items()) for line in row.run_lines())
            distinct.setdefault((row.profile, row.label, *runs), row)
        return tuple(distinct.values())

    def footer(self) -> dict[str, Any]:
        """What the footnotes are about, as plain values."""
        runs = [line for row in self.all_rows for line in row.run_lines()]
        return {
            "title": self.title,
            "profile": self.profile,
            "paper_profile": ", ".join(self.paper_profiles),
            "steps": self.steps,
            "seeds": sorted({seed for row in self.rows for seed in row.seeds}),
            "interval": self.interval,
            "problems_only": list(dict.fromkeys(row.arm for row in self.all_rows if row.scored_seeds == 1)),
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
        bases = {untrained.profile: self._base(untrained.row) for untrained in self.untrained}
        return {
            "table": self.name,
            "profile": self.profile,
            "benchmarks": [
                {name: value for name, value in asdict(benchmark).items() if name != "temperature"}
                for benchmark in self.benchmarks
            ],
            "base": bases[self.profiles[0]],
            **({"bases": bases} if several else {}),
            **({"base_reason": self.base_reason} if self.base is None else {}),
            "rows": [self._row(row, several) for row in self.rows],
            "comparisons": [self._comparison(comparison, several) for comparison in self.comparisons],
            "footer": self.footer(),
        }

    def _base(self, row: Row | None) -> dict[str, Any] | None:
        return None if row is None else {**self._scores(row), "suspect": list(row.suspect)}

    def _scores(self, row: Row) -> dict[str, Any]:
        reason = {} if row.average else {"reason": row.reason}

        def published(name: str) -> dict[str, Any]:
            return {"published": asdict(row.published[name])} if name in row.published else {}

        cells = {}
        for benchmark in self.benchmarks:
            score = row.scores.get(benchmark.name)
            counts = {"correct": score.correct, "graded": score.graded, "percent": score.percent} if score else {}
            cell = dict.fromkeys(("correct", "graded", "percent")) | counts | reason | published(benchmark.name)
            if at_k := row.at_k.get(benchmark.name):
                cell["at_k"] = {name: {"percent": value, "ci95": list(ci95)} for name, (value, ci95) in at_k.items()}
            cells[benchmark.name] = cell
        average = {
            "generation_weighted": row.average.percent if row.average else None,
            "macro": row.macro,
            "ci95": list(row.average.ci95) if row.average else None,
        }
        return {"cells": cells, "average": average | reason | published("avg")}

    def _row(self, row: Row, several: bool) -> dict[str, Any]:
        return {
            **({"profile": row.profile} if several else {}),
            "panel": row.panel,
            "arm": row.arm,
            "label": row.label,
            "seeds": list(row.seeds),
            "steps": row.steps,
            "outcome": row.outcome,
            **({"collapses": [asdict(collapse) for collapse in row.collapses]} if row.collapses else {}),
            **self._scores(row),
            "suspect": list(row.suspect),
            **({"provenance": list(row.provenance)} if row.provenance else {}),
            **{column.name: column.count(row, self) for column in COLUMNS if column.is_fact},
        }

    def _comparison(self, comparison: Comparison, several: bool) -> dict[str, Any]:
        values = asdict(comparison) | {"seeds": list(comparison.seeds), "suspect": list(comparison.suspect)}
        values["ci95"] = list(comparison.ci95) if comparison.ci95 else None
        absent = {"reason": comparison.reason is None, "suspect": not comparison.suspect, "profile": not several}
        values = {name: value for name, value in values.items() if not absent.get(name)}
        own = {column.name: column.count(comparison, self) for column in COMPARISON_COLUMNS if column.is_fact}
        return values | own
