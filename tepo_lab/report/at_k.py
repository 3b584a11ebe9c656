"""avg@n and pass@k of the benchmarks that were sampled more than once, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tepo_lab.errors import ConfigError
from tepo_lab.report.frame import Column, Score
from tepo_lab.report.rows import RowResult
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
    rows: Sequence[RowResult], columns: Sequence[Column], pass_at: Sequence[int], draws: int, seed: int
) -> list[dict[str, dict[str, Score]]]:
    """For each row: benchmark -> "avg@n" and "pass@k" -> percent with its interval, where it has the samples.

    pass@k is estimated without bias for each problem and seed; its interval is over seeds and problems as a score's is.
    """
    found: list[dict[str, dict[str, Score]]] = [{} for _ in rows]
    counted = [number for number, row in enumerate(rows) if row.counted]
    for column in columns:
        if column.samples == 1 or not counted:
            continue
        for name, k in _names(column, pass_at):
            scores = [(_by_problem(rows[number], column, k),) for number in counted]
            for number, (each,) in zip(counted, estimate(scores, [np.ones(1)], draws=draws, seed=seed), strict=True):
                score = Score(100 * each.value, (100 * each.low, 100 * each.high))
                found[number].setdefault(column.name, {})[name] = score
    return found


def _names(column: Column, pass_at: Sequence[int]) -> Iterator[tuple[str, int | None]]:
    yield f"avg@{column.samples}", None
    for k in sorted(set(pass_at)):
        if k <= column.samples:
            yield f"pass@{k}", k


def _by_problem(row: RowResult, column: Column, k: int | None) -> Array:
    """(S, P) shares of right samples, or chances that one of k is right."""
    counts = [each.counts[column.name] for each in row.counted.values()]
    if k is None:
        return np.stack([each.correct / each.graded for each in counts])
    return np.stack([pass_at_k_by_problem(each.correct, each.graded, k) for each in counts])
