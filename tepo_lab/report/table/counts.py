"""The graded counts of an evaluation, problem by problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tepo_lab.records.generations import COUNTED, read_generations
from tepo_lab.report.table.wanted import GradedBenchmark


@dataclass(frozen=True)
class ProblemCounts:
    """A benchmark's problems in order of their ids, how many samples of each were graded and how many are right.

    The others count samples over all problems: `truncated` by the length limit, `unextracted` without an answer, and
    `timeouts` with an answer that could not be compared in time and counts as wrong.
    """

    ids: tuple[str, ...]
    correct: NDArray[np.int64]
    graded: NDArray[np.int64]
    truncated: int = 0
    unextracted: int = 0
    timeouts: int = 0


def read_counts(path: Path, benchmarks: Iterable[GradedBenchmark]) -> dict[str, ProblemCounts]:
    """Graded and right samples of each problem in a file of generations, by benchmark.

    Raises `RecordError` for a damaged file.
    """
    rows = read_generations(path, [*COUNTED, "how"])
    grouped = rows.group_by(["benchmark", "problem"]).aggregate(
        [("correct", "sum"), ("correct", "count"), ("truncated", "sum"), ("extracted", "count")]
    )
    timeouts: dict[str, int] = {}
    # A file of an older release may be without this column.
    if "how" in rows.column_names:
        ways = rows.group_by(["benchmark", "how"]).aggregate([([], "count_all")]).to_pylist()
        timeouts = {way["benchmark"]: way["count_all"] for way in ways if way["how"] == "timeout"}
    names = np.asarray(grouped["benchmark"].to_pylist(), dtype=object)
    ids = np.asarray([str(problem) for problem in grouped["problem"].to_pylist()], dtype=object)
    correct, graded, truncated, extracted = (
        grouped[name].to_numpy().astype(np.int64)
        for name in ("correct_sum", "correct_count", "truncated_sum", "extracted_count")
    )
    counts = {}
    for benchmark in benchmarks:
        own = np.flatnonzero(names == benchmark.name)
        own = own[np.argsort(ids[own], kind="stable")]
        counts[benchmark.name] = ProblemCounts(
            tuple(ids[own]),
            correct[own],
            graded[own],
            int(truncated[own].sum()),
            int((graded[own] - extracted[own]).sum()),
            timeouts.get(benchmark.name, 0),
        )
    return counts


def shortfall(counts: Mapping[str, ProblemCounts], benchmarks: Iterable[GradedBenchmark]) -> str | None:
    """What is missing of a suite's evaluation, or None when every sample of every problem was graded once."""
    for benchmark in benchmarks:
        graded = counts[benchmark.name].graded
        if len(graded) != benchmark.problems or (graded != benchmark.samples).any():
            return f"{benchmark.name}: {int(graded.sum())} of {benchmark.generations} graded"
    return None
