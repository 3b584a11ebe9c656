"""Repeated problems: within a data set, with other answers, or in training and in a benchmark."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tepo_lab.errors import DataError
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import Data, DatasetData, Suite
from tepo_lab.tasks.answers import normalised
from tepo_lab.tasks.sources import ListSource, ProblemSource, open_source

#: Problems looked at of the embedded task's endless stream.
STREAM_SAMPLE = 5000

#: Ids shown per line.
EXAMPLES = 5

_FRACTION = re.compile(r"\\[dtc]frac(?![a-z])")
_LAYOUT = re.compile(r"\\(?:left|right|displaystyle|q?quad|[()\[\],;:! ])(?![a-z])|[\s${}~]|\.(?![0-9])|[;:?!\"'’“”]")


def statement(problem: Problem) -> str:
    """A problem's text as it is compared: without case, spaces, layout and punctuation; operators and digits remain."""
    text = unicodedata.normalize("NFKC", problem.prompt).casefold()
    return _LAYOUT.sub("", _FRACTION.sub(r"\\frac", text))


@dataclass(frozen=True)
class DataReport:
    """The faults of one data set.

    `repeated` are ids of statements that an earlier problem of the set has, `conflicting` those among them with another
    answer, `overlaps` ids of training problems by the benchmark that has them, `error` why the set cannot be read.
    """

    name: str
    problems: int = 0
    repeated: tuple[str, ...] = ()
    conflicting: tuple[str, ...] = ()
    overlaps: dict[str, tuple[str, ...]] = field(default_factory=dict)
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values, all ids included."""
        plain: dict[str, Any] = {"name": self.name, "problems": self.problems}
        if self.error is not None:
            return plain | {"error": self.error}
        plain |= {"repeated": list(self.repeated), "conflicting": list(self.conflicting)}
        return plain | {"overlaps": {name: list(ids) for name, ids in self.overlaps.items()}}

    def lines(self) -> list[str]:
        """The report for people."""
        if self.error is not None:
            return [f"{self.name}: {self.error}"]
        lines = [
            f"{self.name}: {self.problems} problems, {len(self.repeated)} repeated, "
            f"{len(self.conflicting)} of them with another answer" + _examples(self.conflicting or self.repeated)
        ]
        for benchmark, ids in self.overlaps.items():
            if ids:
                lines.append(f"  {len(ids)} are in {benchmark} and are left out of training{_examples(ids)}")
        return lines


def check_data(training: Data, suite: Suite) -> list[DataReport]:
    """Reports on the training data and on each benchmark. What cannot be read is reported as such."""
    try:
        source = open_source(training)
        problems = source.problems if isinstance(source, ListSource) else source.training(0, STREAM_SAMPLE, seed=0)
        first = _report("training", problems)
    except DataError as error:
        problems, first = [], DataReport("training", error=str(error))
    reports, overlaps = [], {}
    for name, benchmark in suite.benchmarks.items():
        try:
            held_out = open_source(benchmark.data, key=f"suite.benchmarks.{name}.data").benchmark(benchmark.problems)
        except DataError as error:
            reports.append(DataReport(name, error=str(error)))
            continue
        known = set(map(statement, held_out))
        overlaps[name] = tuple(problem.id for problem in problems if statement(problem) in known)
        reports.append(_report(name, held_out))
    return [replace(first, overlaps=overlaps), *reports]


def without_overlaps(source: ProblemSource, suite: Suite) -> tuple[ProblemSource, int]:
    """The training problems that are in no benchmark of the suite, and how many were dropped.

    The embedded task is left as it is: its splits are apart by construction. Raises `DataError` when none is left.
    """
    benchmarks = [benchmark for benchmark in suite.benchmarks.values() if isinstance(benchmark.data, DatasetData)]
    if not isinstance(source, ListSource) or not benchmarks:
        return source, 0
    held_out = {
        statement(problem)
        for benchmark in benchmarks
        for problem in open_source(benchmark.data).benchmark(benchmark.problems)
    }
    remaining = [problem for problem in source.problems if statement(problem) not in held_out]
    if not remaining:
        raise DataError(
            f"{source.where}: all of its {len(source.problems)} problems are in a benchmark of suite {suite.name}; "
            "train on other data."
        )
    return ListSource(remaining, where=source.where), len(source.problems) - len(remaining)


def _report(name: str, problems: Sequence[Problem]) -> DataReport:
    repeated, conflicting = [], []
    answers: defaultdict[str, set[str]] = defaultdict(set)
    for problem in problems:
        known, answer = answers[statement(problem)], normalised(problem.answer)
        if known:
            repeated.append(problem.id)
            if answer not in known:
                conflicting.append(problem.id)
        known.add(answer)
    return DataReport(name, len(problems), tuple(repeated), tuple(conflicting))


def _examples(ids: Iterable[str]) -> str:
    shown = list(ids)
    if not shown:
        return ""
    return f" ({', '.join(shown[:EXAMPLES])}{', ...' if len(shown) > EXAMPLES else ''})"
