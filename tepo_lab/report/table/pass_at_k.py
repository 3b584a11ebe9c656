"""avg@n and pass@k of the benchmarks that were sampled more than once, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tepo_lab.errors import ConfigError
from tepo_lab.report.table.frame import Cell, Column, Score
from tepo_lab.report.table.rows import RowResult
from tepo_lab.stats.at_k import pass_at_k_by_problem
from tepo_lab.stats.bootstrap import Array, estimate


def check_pass_at(pass_at: Sequence[int], columns: Sequence[Column]) -> None:
    """Raises `ConfigError` when some k is beyond the samples of every benchmark."""
    most = max(columns, key=lambda column: column.samples)
    for k in pass_at:
        if k > most.samples:
            counted = f"{most.samples} samples a problem, of {most.label}" if most.samples > 1 else "1 sample a problem"
            raise ConfigError(f"pass@{k} needs {k} samples of a problem; the most that a benchmark has is {counted}.")


def at_k(
    rows: Sequence[RowResult],
    cells: Sequence[Mapping[str, Cell]],
    columns: Sequence[Column],
    pass_at: Sequence[int],
    draws: int,
    seed: int,
) -> list[dict[str, dict[str, Score]]]:
    """For each row: benchmark -> "avg@n" and "pass@k" -> percent with its interval, where it has the samples.

    Args: `cells`, each row's scores: avg@n is such a score, and has its interval. pass@k is estimated without bias for
    each problem and seed; its interval is over the same draws of seeds and problems as a score's.
    """
    found = [_averages(row, held, columns) for row, held in zip(rows, cells, strict=True)]
    counted = [number for number, row in enumerate(rows) if row.counted]
    weightings = list(np.eye(len(columns)))
    for k in sorted(set(pass_at)):
        # A benchmark with too few samples stands in by its score, so that the others keep their place in the draws.
        scores = [tuple(_by_problem(rows[number], column, k) for column in columns) for number in counted]
        estimates = estimate(scores, weightings, draws=draws, seed=seed)
        for number, each in zip(counted, estimates, strict=True):
            for column, one in zip(columns, each, strict=True):
                if k <= column.samples and column.samples > 1:
                    score = Score(100 * one.value, (100 * one.low, 100 * one.high))
                    found[number][column.name][f"pass@{k}"] = score
    return found


def _averages(row: RowResult, cells: Mapping[str, Cell], columns: Sequence[Column]) -> dict[str, dict[str, Score]]:
    sampled = [column for column in columns if column.samples > 1] if row.counted else []
    scored = {column.name: (f"avg@{column.samples}", cells[column.name]) for column in sampled}
    return {
        benchmark: {name: Score(cell.percent, cell.ci95)}
        for benchmark, (name, cell) in scored.items()
        if cell.percent is not None and cell.ci95 is not None
    }


def _by_problem(row: RowResult, column: Column, k: int) -> Array:
    """(S, P) chances that one of k samples is right; the shares of right samples where k is 1 or beyond them."""
    counts = [each.counts[column.name] for each in row.counted.values()]
    if k == 1 or k > column.samples:
        return np.stack([each.correct / each.graded for each in counts])
    return np.stack([pass_at_k_by_problem(each.correct, each.graded, k) for each in counts])
