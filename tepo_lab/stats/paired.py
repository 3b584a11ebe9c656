"""An arm against its parent, paired over seeds and problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from tepo_lab.stats.bootstrap import DRAWS, Array, Estimate, Scores, estimate
from tepo_lab.stats.multiplicity import holm

#: Seeds below which no verdict is given: a difference between so few runs may be the seeds' alone.
MIN_SEEDS = 3

#: Chance with which a true difference of the smallest detectable size would be seen.
POWER = 0.8

Verdict = Literal["better", "worse", "not resolved", "not resolved (fewer than 3 seeds)"]


@dataclass(frozen=True)
class Difference:
    """A paired difference of two scores, in the scores' own units (shares, not percent).

    `p` is two-sided, from Student's t on the two-way standard error. Its degrees of freedom are those at which t has
    the critical value of Cochran and Cox at 95 % (`tepo_lab.stats.bootstrap`): a p far below 0.05 is smaller than
    their own, such as 0.008 for 0.01 and 0.0004 for 0.001 where half the variance has 2 degrees of freedom and half
    has 60. `p_holm` is corrected over the differences tested together. `smallest_detectable` is the true difference
    that a single two-sided test at 1 - level, before the correction, would see with a chance of 80 %. Both are None
    where nothing is tested.
    """

    difference: float
    low: float
    high: float
    p: float
    p_holm: float | None
    smallest_detectable: float | None
    seeds: int
    verdict: Verdict


def paired(arm: Scores, parent: Scores) -> Scores:
    """Differences by seed and problem: rows of both sides are the same seeds, columns the same problems."""
    return tuple(mine - theirs for mine, theirs in zip(arm, parent, strict=True))


def compare(
    differences: Sequence[Scores],
    weights: Array,
    *,
    asked: Sequence[bool] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    level: float = 0.95,
) -> list[Difference]:
    """Test paired differences together: intervals, p values with Holm's correction over all that have a verdict.

    Fewer than `MIN_SEEDS` seeds give none, and do not count among the differences tested: nobody can be misled by a
    verdict that is not given, and to count it would cost the others their power. Args: `asked`, for each difference
    whether a verdict is asked for; None: for all.
    """
    estimates = [
        row[0] for row in estimate(differences, [weights], draws=draws, seed=seed, level=level, bounds=(-1.0, 1.0))
    ]
    p_values = [p_value(difference) for difference in estimates]
    wanted = [True] * len(estimates) if asked is None else asked
    tested = [
        number
        for number, (difference, is_wanted) in enumerate(zip(estimates, wanted, strict=True))
        if is_wanted and difference.seeds >= MIN_SEEDS
    ]
    corrected = dict(zip(tested, holm([p_values[number] for number in tested]), strict=True))
    return [
        Difference(
            difference=estimated.value,
            low=estimated.low,
            high=estimated.high,
            p=p,
            p_holm=corrected.get(number),
            smallest_detectable=smallest_detectable(estimated, level=level) if number in corrected else None,
            seeds=estimated.seeds,
            verdict=_verdict(estimated, corrected.get(number), 1 - level),
        )
        for number, (estimated, p) in enumerate(zip(estimates, p_values, strict=True))
    ]


def p_value(difference: Estimate) -> float:
    """Two-sided p of "no difference". Without any variation: 1 when the difference is 0, else 0."""
    if difference.standard_error == 0:
        return 1.0 if difference.value == 0 else 0.0
    return float(2 * special.stdtr(difference.degrees_of_freedom, -abs(difference.value) / difference.standard_error))


def smallest_detectable(difference: Estimate, *, level: float = 0.95, power: float = POWER) -> float:
    """The true difference at which Student's t exceeds its critical value with the chance `power`.

    t is then noncentral; the usual sum of two central quantiles is too low where degrees of freedom are few.
    """
    freedom = difference.degrees_of_freedom
    if not np.isfinite(freedom):
        return 0.0
    errors = special.nctdtrinc(freedom, 1 - power, special.stdtrit(freedom, (1 + level) / 2))
    return float(errors * difference.standard_error)


def _verdict(difference: Estimate, p_holm: float | None, alpha: float) -> Verdict:
    if difference.seeds < MIN_SEEDS:
        return "not resolved (fewer than 3 seeds)"
    if p_holm is None or p_holm >= alpha:
        return "not resolved"
    return "better" if difference.value > 0 else "worse"
