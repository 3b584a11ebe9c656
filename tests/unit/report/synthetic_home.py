"""Homes with synthetic runs, written by the record contract (`tepo_lab.records.files`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from tepo_lab.records.files import RunFolder, append_line, write_json
from tepo_lab.records.generations import GENERATION_COLUMNS
from tepo_lab.report.table.build import build_table
from tepo_lab.report.table.frame import Table
from tepo_lab.report.table.wanted import Wanted, WantedRow
from tepo_lab.schema.profile import Suite
from tepo_lab.schema.table import Report
from tests.generation_columns import generation_columns

SUITE = Suite.model_validate(
    {
        "name": "tiny",
        "max_new_tokens": 8,
        "benchmarks": {
            "greedy": {"label": "Greedy", "problems": 6, "data": {"kind": "chain", "terms": [3], "split": "test"}},
            "sampled": {
                "label": "Sampled @4",
                "problems": 3,
                "samples": 4,
                "temperature": 0.6,
                "data": {"kind": "chain", "terms": [6], "split": "test"},
            },
        },
    }
)

REPORT = Report.model_validate(
    {
        "name": "table3",
        "title": "Table 3: ablations",
        "profile": "qwen2.5-7b",
        "published": "table3",
        "panels": {"e": {"title": "Panel E: masks", "sweep": "panel-e"}},
    }
)

#: Right samples of every problem, by benchmark.
Right = Mapping[str, list[int]]


def digest(*parts: object) -> str:
    return sha256(repr(parts).encode()).hexdigest()[:12]


def columns_of(suite: Suite, right: Right) -> dict[str, Any]:
    """Generations in which the first `right` samples of each problem are right."""
    columns: dict[str, list[Any]] = {name: [] for name in GENERATION_COLUMNS}
    for name, benchmark in suite.benchmarks.items():
        for problem, count in enumerate(right[name]):
            for sample in range(benchmark.samples):
                values = [name, f"{name}-{problem}", sample, "1+1=", "2", "2", 3, False, "2", int(sample < count)]
                for column, value in zip(GENERATION_COLUMNS, [*values, "exact", "1"], strict=True):
                    columns[column].append(value)
    return columns


def random_columns(suite: Suite, share: float, seed: int) -> dict[str, Any]:
    """Generations right at random, without the cost of a Python loop."""
    random = np.random.default_rng(seed)
    correct = {
        name: random.random(benchmark.problems * benchmark.samples) < share
        for name, benchmark in suite.benchmarks.items()
    }
    return generation_columns(suite, correct)


def parquet_at(folder: RunFolder, step: int, columns: Mapping[str, Any]) -> None:
    """An evaluation of the run at a step: its generations, and the event with their counts."""
    tallies = {name: {"correct": 0, "graded": 0} for name in columns["benchmark"]}
    for name, correct in zip(columns["benchmark"], columns.get("correct", []), strict=False):
        tallies[name]["correct"] += int(correct == 1)
        tallies[name]["graded"] += 1
    folder.generations(step).parent.mkdir(exist_ok=True)
    parquet.write_table(pa.table(dict(columns)), folder.generations(step))
    append_line(folder.events_file, {"time": 1.7e9, "event": "evaluated", "step": step, "benchmarks": tallies})


@dataclass
class SyntheticHome:
    """A home whose runs are written by hand, and the table over its arms."""

    path: Path
    suite: Suite = SUITE
    rows: dict[str, WantedRow] = field(default_factory=dict)
    folders: dict[tuple[str, int], RunFolder] = field(default_factory=dict)

    def want(self, arm: str, seeds: tuple[int, ...] = (1, 2, 3), panel: str | None = "e") -> WantedRow:
        row = WantedRow(panel, arm, arm.upper(), digest(arm), seeds)
        self.rows[arm] = row
        return row

    def run(
        self,
        arm: str,
        seed: int = 1,
        *,
        right: Right | None = None,
        steps: int = 20,
        asked: int | None = None,
        parent: str | None = None,
        events: tuple[dict[str, Any], ...] | None = None,
        columns: Mapping[str, Any] | None = None,
        commit: str = "0123456789abcdef",
        provenance: Mapping[str, Any] | None = None,
        earlier: Sequence[Mapping[str, Any]] = (),
        rollout: Mapping[str, Any] | None = None,
    ) -> RunFolder:
        """A run with an evaluation at `steps`: from the right samples of each problem, or from ready columns.

        It was to train `asked` steps, as many as it was evaluated at when left out. `events` are its own after
        `started` and `evaluated`: complete at `steps` when left out.
        """
        identity = digest(arm, seed)
        self.folders[arm, seed] = folder = RunFolder(self.path / "runs" / f"{arm}-tiny-s{seed}-{identity[:8]}")
        spec = {"arm": {"name": arm, "parent": parent}, "seed": seed, "trainer": {"steps": asked or steps}}
        spec |= {"rollout": dict(rollout or {})}
        made_with = {"commit": commit, "dirty": False} | dict(provenance or {})
        values = {"id": identity, "family": digest(arm), "name": folder.name, "spec": spec, "provenance": made_with}
        write_json(folder.run_file, values | ({"earlier_provenance": list(earlier)} if earlier else {}))
        if right is not None:
            columns = columns_of(self.suite, right)
        if events is None:
            events = ({"event": "complete", "step": steps},)
        # With a checkpoint an evaluation that is missing can be made again, and the run is not damaged by it.
        folder.checkpoint(0).mkdir(parents=True, exist_ok=True)
        folder.events_file.unlink(missing_ok=True)
        # What was evaluated before an attempt began is void.
        begin = [event for event in events if event["event"] == "resumed"] if columns is not None else []
        for event in ({"event": "started", "step": 0}, *begin):
            append_line(folder.events_file, {"time": 1.7e9, **event})
        if columns is not None:
            parquet_at(folder, steps, columns)
        for event in events:
            if event not in begin:
                append_line(folder.events_file, {"time": 1.7e9, **event})
        return folder

    def table(self, base: str | None = None, **options: Any) -> Table:
        return build_table(REPORT, [self.wanted(base, options)], home=self.path, **{"draws": 500, **options})

    def wanted(self, base: str | None = None, options: dict[str, Any] | None = None) -> Wanted:
        """What the table asks for; takes `profile` and `steps` out of the options."""
        options = {} if options is None else options
        profile, steps = options.pop("profile", "nano"), options.pop("steps", 20)
        rows = tuple(row for arm, row in self.rows.items() if arm != base)
        return Wanted(profile, self.suite, rows, self.rows[base] if base else None, steps)


#: Right answers of each problem: of one greedy sample, and of four.
RIGHT = {"greedy": [1, 1, 0, 0, 0, 0], "sampled": [4, 1, 0]}


def collapsed(step: int) -> dict[str, Any]:
    return {"event": "collapsed", "step": step, "rule": "reward/mean < 0.02"}


def complete(step: int) -> dict[str, Any]:
    return {"event": "complete", "step": step}


def failed(step: int, kind: str = "user") -> dict[str, Any]:
    return {"event": "failed", "step": step, "kind": kind, "error": "loss is not finite"}


def outcome(table: Table, arm: str) -> str:
    return next(row.outcome for row in table.rows if row.arm == arm)


def only_row(home: SyntheticHome, **options: object) -> tuple[str, tuple[int, ...], str | None]:
    """The single row's outcome, seeds and the reason of its cells."""
    (row,) = home.table(**options).rows
    return row.outcome, row.seeds, row.reason
