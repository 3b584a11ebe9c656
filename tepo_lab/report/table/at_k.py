"""avg@n and pass@k of the benchmarks that were sampled more than once, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tepo_lab.errors import ConfigError
from tepo_lab.report.table.rows import Row
from tepo_lab.report.table.wanted import GradedBenchmark
from tepo_lab.stats.at_k import pass_at_k_by_problem
from tepo_lab.stats.bootstrap import Array, estimate


def check_pass_at(pass_at: Sequence[int], benchmarks: Sequence[GradedBenchmark]) -> None:
    """Raises `ConfigError` when some k is beyond the samples of every benchmark."""
    most = max(benchmarks, key=lambda benchmark: benchmark.samples)
    for k in pass_at:
        if k > most.samples:
            counted = f"{most.samples} samples a problem, of {most.label}" if most.samples > 1 else "1 sample a problem"
            raise ConfigError(f"pass@{k} needs {k} samples of a problem; the most that a benchmark has is {counted}.")


def at_k(
    rows: Sequence[Row], benchmarks: Sequence[GradedBenchmark], pass_at: Sequence[int], draws: int, seed: int
) -> list[Row]:
    """The rows with avg@n and pass@k of the benchmarks that have the samples.

    avg@n is the row's score with its interval. pass@k is estimated without bias for each problem and seed; its interval
    is over the same draws of seeds and problems as a score's.
    """
    sampled = [benchmark for benchmark in benchmarks if benchmark.samples > 1]
    scored = [row for row in rows if row.scores]
    values = [
        {
            benchmark.name: {
                f"avg@{benchmark.samples}": (row.scores[benchmark.name].percent, row.scores[benchmark.name].ci95)
            }
            for benchmark in sampled
        }
        for row in scored
    ]
    for k in sorted(set(pass_at)):
        # A benchmark with too few samples has its score here, so that the others keep their place in the draws.
        shares = [tuple(_by_problem(row, benchmark, k) for benchmark in benchmarks) for row in scored]
        estimates = estimate(shares, list(np.eye(len(benchmarks))), draws=draws, seed=seed)
        for row_values, row_estimates in zip(values, estimates, strict=True):
            for benchmark, one in zip(benchmarks, row_estimates, strict=True):
                if benchmark in sampled and k <= benchmark.samples:
                    interval = (100 * one.low, 100 * one.high)
                    row_values[benchmark.name][f"pass@{k}"] = (100 * one.value, interval)
    of_scored = iter(values)
    return [replace(row, at_k=next(of_scored)) if row.scores else row for row in rows]


def _by_problem(row: Row, benchmark: GradedBenchmark, k: int) -> Array:
    """(S, P) chances that one of k samples is right; the shares of right samples where k is 1 or beyond them."""
    counts = [result.counts[benchmark.name] for result in row.counted.values()]
    if k == 1 or k > benchmark.samples:
        return np.stack([problems.correct / problems.graded for problems in counts])
    return np.stack([pass_at_k_by_problem(problems.correct, problems.graded, k) for problems in counts])
