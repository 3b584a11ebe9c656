"""Two-level bootstrap intervals for scores over benchmarks, problems and seeds.

What an interval is about: the score that new training seeds would have on new problems of the same kinds. Two things
vary, then, and each is resampled at its own level: the seeds (all benchmarks together) and the problems (within each
benchmark; the same problems for every seed and arm). The samples of a problem stay with it: they are no independent
evidence about other problems, and resampling them too would count their noise twice.

Every score here is linear in the problems' scores, so a draw is a vector of multinomial weights, and all rows of a
table share one matrix product per benchmark.

Three corrections keep the coverage near its nominal value when seeds are few (measured in the tests):

1. Deviations are scaled by sqrt(n / (n - 1)) at each level: a resample of n varies too little by that factor.
2. Both levels contain the noise of single (seed, problem) cells; it is taken out once, by scaling the deviations to
   the two-way variance A + B - C (Cameron, Gelbach and Miller, 2011, "Robust inference with multiway clustering").
3. The scale is widened from the normal to Student's t, following the expanded percentile interval of Hesterberg (2015,
   "What teachers should know about the bootstrap", Sec. 4.4). Its critical value is that of Cochran and Cox (1950,
   "Experimental Designs"): the mean of the two levels' own critical values, weighed by their variances. Satterthwaite's
   degrees of freedom, from the same estimates, are too many where the seeds are few and happen to lie close together.

With one seed there is nothing to resample at that level: the interval is over problems only, and `Estimate.seeds` is 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

#: One row's scores: for each benchmark an array (S, P), the share of a problem's samples that is right, for each of
#: S seeds and P problems. Rows may differ in S; the problems, and their order, are the same in every row.
Scores = tuple[Array, ...]

DRAWS = 10_000

LEVEL = 0.95

#: Resampling weights in memory at once (8 bytes per weight).
CHUNK = 4_000_000


@dataclass(frozen=True)
class Variance:
    """Sampling variance of a score by its sources, and the degrees of freedom of the total (`_blended`)."""

    seeds: float
    problems: float
    cells: float
    total: float
    degrees_of_freedom: float


@dataclass(frozen=True)
class Estimate:
    """A score with its interval. `seeds` is how many the interval is over (1: over problems only)."""

    value: float
    low: float
    high: float
    standard_error: float
    degrees_of_freedom: float
    seeds: int


def value(scores: Scores, weights: Array) -> float:
    """The score itself: benchmarks' means over seeds and problems, weighted. `weights` (benchmarks,) sum to 1."""
    return float(sum(weight * shares.mean() for weight, shares in zip(weights, scores, strict=True)))


def variance(scores: Scores, weights: Array) -> Variance:
    """Two-way variance A + B - C of a weighted score over seeds (A) and problems (B), cell noise C counted once.

    With one seed, A and C are zero. The total is at least max(A, B), each of which already holds the cell noise.
    """
    seeds = len(scores[0])
    problems, problem_spread, cells = 0.0, 0.0, 0.0
    for weight, shares in zip(weights, scores, strict=True):
        count = shares.shape[1]
        if count < 2 or weight == 0:
            continue
        part = weight**2 * shares.mean(0).var(ddof=1) / count
        problems += part
        problem_spread += part**2 / (count - 1)
        if seeds > 1:
            residual = shares - shares.mean(0) - shares.mean(1, keepdims=True) + shares.mean()
            cells += weight**2 * (residual**2).sum() / ((seeds - 1) * (count - 1)) / (seeds * count)
    by_seed = float((_seed_means(scores) @ weights).var(ddof=1)) / seeds if seeds > 1 else 0.0
    total = float(max(by_seed + problems - cells, by_seed, problems))
    # Satterthwaite's, over the benchmarks alone: each has problems enough for it.
    problem_freedom = float(problems**2 / problem_spread) if problem_spread > 0 else np.inf
    freedom = _blended(by_seed / total, seeds - 1, problem_freedom) if total > 0 else np.inf
    return Variance(by_seed, float(problems), float(cells), total, freedom)


def _blended(share: float, freedom: float, other: float) -> float:
    """Degrees of freedom at which Student's t has the critical value of Cochran and Cox, at 95 %.

    Args: `share` of the variance has `freedom`, the rest `other`.
    """
    if share in (0.0, 1.0):
        return freedom if share else other
    tail = (1 + LEVEL) / 2
    critical = float(share * special.stdtrit(freedom, tail) + (1 - share) * special.stdtrit(other, tail))
    return float(special.stdtridf(tail, critical))


def estimate(
    rows: Sequence[Scores],
    weightings: Sequence[Array],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    level: float = LEVEL,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> list[list[Estimate]]:
    """Every row's score under every weighting of the benchmarks, with intervals at `level` cut to `bounds`.

    Args: `weightings` are vectors (benchmarks,) that sum to 1. Returns estimates [row][weighting]. The same `seed`
    gives a row the same interval whichever other rows stand beside it.
    """
    if not rows:
        return []
    counts = [shares.shape[1] for shares in rows[0]]
    by_problem = np.stack(
        [
            problem_deviations(np.stack([row[index].mean(0) for row in rows], axis=1), draws, seed=[seed, index])
            * _correction(count)
            for index, count in enumerate(counts)
        ]
    )
    estimates = []
    for number, row in enumerate(rows):
        problems = by_problem[:, :, number].T
        seeds = seed_deviations(_seed_means(row), draws, seed=[seed, len(counts)]) * _correction(len(row[0]))
        estimates.append([_one(row, weights, seeds + problems, level, bounds) for weights in weightings])
    return estimates


def seed_deviations(means: Array, draws: int, *, seed: Sequence[int]) -> Array:
    """Resample seeds: (S, benchmarks) means by seed -> (draws, benchmarks) deviations from the mean over seeds."""
    seeds = len(means)
    centred = means - means.mean(0)
    return np.concatenate([counts @ centred for counts in _resamples(seeds, draws, seed)]) / seeds


def problem_deviations(means: Array, draws: int, *, seed: Sequence[int]) -> Array:
    """Resample a benchmark's problems: (P, rows) means by problem -> (draws, rows) deviations from the mean."""
    problems = len(means)
    centred = means - means.mean(0)
    return np.concatenate([counts @ centred for counts in _resamples(problems, draws, seed)]) / problems


def _resamples(items: int, draws: int, seed: Sequence[int]) -> Iterator[Array]:
    """How often each item is drawn in each of `draws` resamples of all items, in chunks of draws."""
    random = np.random.default_rng(seed)
    chunk = max(1, CHUNK // items)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        drawn = random.integers(0, items, (size, items), dtype=np.int64)
        drawn += np.arange(size)[:, None] * items
        yield np.bincount(drawn.ravel(), minlength=size * items).reshape(size, items).astype(np.float64)


def _one(row: Scores, weights: Array, deviations: Array, level: float, bounds: tuple[float, float]) -> Estimate:
    centre, variances = value(row, weights), variance(row, weights)
    drawn = variances.seeds + variances.problems
    tail = (1 - level) / 2
    if drawn > 0:
        freedom = variances.degrees_of_freedom
        widening = special.stdtrit(freedom, 1 - tail) / special.ndtri(1 - tail) if np.isfinite(freedom) else 1.0
        scale = float(np.sqrt(variances.total / drawn) * widening)
    else:
        scale = 0.0
    low, high = centre + scale * np.quantile(deviations @ weights, [tail, 1 - tail])
    return Estimate(
        value=centre,
        low=float(np.clip(low, *bounds)),
        high=float(np.clip(high, *bounds)),
        standard_error=float(np.sqrt(variances.total)),
        degrees_of_freedom=variances.degrees_of_freedom,
        seeds=len(row[0]),
    )


def _seed_means(scores: Scores) -> Array:
    return np.stack([shares.mean(1) for shares in scores], axis=1)


def _correction(count: int) -> float:
    return float(np.sqrt(count / (count - 1))) if count > 1 else 0.0
