"""Resampling against full enumeration, exact small cases, and coverage by simulation."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from scipy import special, stats

from tepo_lab.stats import bootstrap
from tepo_lab.stats.bootstrap import estimate, problem_deviations, seed_deviations, value, variance

ONE = np.ones(1)


def frequencies(values: np.ndarray) -> dict[float, float]:
    counted = Counter(np.round(values, 9).tolist())
    return {each: count / len(values) for each, count in counted.items()}


def enumerated(items: np.ndarray) -> dict[float, float]:
    """The exact bootstrap distribution of a mean's deviation: every resample, each as likely as the others."""
    means = np.array([items[list(drawn)].mean() for drawn in product(range(len(items)), repeat=len(items))])
    return frequencies(means - items.mean())


@pytest.mark.parametrize("items", [[0.0, 1.0], [0.0, 0.25, 1.0], [0.1, 0.2, 0.4, 0.9]])
def test_resampled_problems_and_seeds_follow_the_enumerated_distribution(items: list[float]) -> None:
    values = np.array(items)
    exact = enumerated(values)
    for drawn in (
        problem_deviations(values[:, None], 40_000, seed=[7])[:, 0],
        seed_deviations(values[:, None], 40_000, seed=[7])[:, 0],
    ):
        shares = frequencies(drawn)
        assert shares.keys() == exact.keys()
        assert all(abs(shares[value] - exact[value]) < 0.01 for value in exact)


def test_interval_of_one_seed_is_the_enumerated_quantile_with_its_corrections() -> None:
    problems = np.array([0.0, 0.25, 0.5, 0.5, 1.0])
    deviations = sorted(problems[list(drawn)].mean() - problems.mean() for drawn in product(range(5), repeat=5))
    low, high = np.quantile(deviations, [0.025, 0.975])
    widening = np.sqrt(5 / 4) * stats.t.ppf(0.975, df=4) / stats.norm.ppf(0.975)
    ((found,),) = estimate([(problems[None, :],)], [ONE], draws=100_000, bounds=(-9, 9))
    assert found.seeds == 1
    assert found.value == pytest.approx(0.45)
    assert found.low == pytest.approx(0.45 + widening * low, abs=0.02)
    assert found.high == pytest.approx(0.45 + widening * high, abs=0.02)
    assert found.standard_error == pytest.approx(problems.std(ddof=1) / np.sqrt(5))
    assert found.degrees_of_freedom == pytest.approx(4)


def test_two_way_variance_by_hand() -> None:
    scores = np.array([[0.0, 1.0], [1.0, 1.0]])
    found = variance((scores,), ONE)
    # Row means 1/2 and 1; column means 1/2 and 1; every residual is 1/4 in size.
    assert found.seeds == pytest.approx(0.125 / 2)
    assert found.problems == pytest.approx(0.125 / 2)
    assert found.cells == pytest.approx(4 * 0.0625 / 1 / 4)
    assert found.total == pytest.approx(0.0625)
    # All of the variance is the two seeds' own.
    assert found.degrees_of_freedom == 1


def test_critical_value_of_both_levels_is_weighed_by_their_variances() -> None:
    random = np.random.default_rng(6)
    scores = random.normal(0, 0.2, (3, 1)) + random.normal(0, 1, (1, 40)) + random.normal(0, 0.1, (3, 40))
    found = variance((scores,), ONE)
    share = found.seeds / found.total
    assert 0.1 < share < 0.9
    critical = share * stats.t.ppf(0.975, df=2) + (1 - share) * stats.t.ppf(0.975, df=39)
    assert stats.t.ppf(0.975, df=found.degrees_of_freedom) == pytest.approx(critical)
    assert 2 < found.degrees_of_freedom < 39


def test_two_way_variance_is_unbiased() -> None:
    random = np.random.default_rng(3)
    by_seed, by_problem, by_cell = 0.3, 0.2, 0.5
    totals, means = [], []
    for _ in range(3000):
        scores = random.normal(0, by_seed, (4, 1)) + random.normal(0, by_problem, (1, 6))
        scores = scores + random.normal(0, by_cell, (4, 6))
        found = variance((scores,), ONE)
        totals.append(found.seeds + found.problems - found.cells)
        means.append(scores.mean())
    expected = by_seed**2 / 4 + by_problem**2 / 6 + by_cell**2 / 24
    assert np.mean(totals) == pytest.approx(expected, rel=0.05)
    assert np.var(means) == pytest.approx(expected, rel=0.1)


def test_benchmarks_are_weighted() -> None:
    scores = (np.array([[1.0, 0.0, 1.0]]), np.array([[0.5, 0.5]]))
    weights = np.array([0.75, 0.25])
    assert value(scores, weights) == pytest.approx(0.75 * 2 / 3 + 0.25 * 0.5)
    ((weighted, second),) = estimate([scores], [weights, np.array([0.0, 1.0])], draws=200)
    assert weighted.value == pytest.approx(0.625)
    assert (second.low, second.high) == (0.5, 0.5)


def test_scores_without_variation_have_an_interval_of_one_point() -> None:
    ((found,),) = estimate([(np.zeros((3, 4)),)], [ONE], draws=50)
    assert (found.value, found.low, found.high, found.standard_error) == (0, 0, 0, 0)


def test_a_row_keeps_its_interval_whatever_stands_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    rows = [(random.random((seeds, 8)), random.random((seeds, 5))) for seeds in (1, 3, 5)]
    weights = np.array([0.6, 0.4])
    together = estimate(rows, [weights], draws=300, seed=4)
    alone = [estimate([row], [weights], draws=300, seed=4)[0] for row in rows]
    monkeypatch.setattr(bootstrap, "CHUNK", 64)
    chunked = estimate(rows, [weights], draws=300, seed=4)
    for (first,), (second,), (third,) in zip(together, alone, chunked, strict=True):
        assert first.low == pytest.approx(second.low, abs=1e-12)
        assert first.high == pytest.approx(third.high, abs=1e-12)
    other = estimate(rows, [weights], draws=300, seed=5)
    assert other[0][0].low != together[0][0].low


def test_more_seeds_narrow_the_interval() -> None:
    random = np.random.default_rng(1)
    seeds = np.linspace(-0.2, 0.2, 6)[:, None]
    scores = np.clip(0.5 + seeds + random.normal(0, 0.05, (6, 40)), 0, 1)
    few, many = (estimate([(scores[chosen],)], [ONE], draws=2000)[0][0] for chosen in ([0, 5], [0, 1, 2, 3, 4, 5]))
    assert many.high - many.low < few.high - few.low
    assert few.seeds == 2


# Log-odds spread of seeds, problems and (seed, problem) cells; problems and samples as in a small suite.
SCENARIOS = {
    "both levels": (0.2, 1.0, 0.5),
    "seeds differ most": (0.5, 0.3, 0.3),
    "problems differ most": (0.02, 2.0, 0.2),
}


def simulated(count: int, seeds: int, spread: tuple[float, float, float], random: np.random.Generator):  # type: ignore[no-untyped-def]
    """Tables of `count` rows, each with its own seeds and problems, and the score they estimate."""
    by_seed, by_problem, by_cell = spread
    total = np.sqrt(by_seed**2 + by_problem**2 + by_cell**2)
    nodes, mass = special.roots_hermitenorm(60)
    truth = (special.expit(0.5 + total * nodes) * mass).sum() / mass.sum()
    rows = []
    for _ in range(count):
        seed_effects = random.normal(0, by_seed, (seeds, 1))
        row = []
        for problems, samples in ((30, 16), (60, 1)):
            logits = 0.5 + seed_effects + random.normal(0, by_problem, (1, problems))
            chance = special.expit(logits + random.normal(0, by_cell, (seeds, problems)))
            row.append(random.binomial(samples, chance) / samples)
        rows.append(tuple(row))
    return rows, truth


@pytest.mark.integration
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_intervals_cover_the_truth_as_often_as_they_say(scenario: str, seeds: int) -> None:
    rows, truth = simulated(800, seeds, SCENARIOS[scenario], np.random.default_rng(11))
    weights = np.array([480, 60]) / 540
    found = estimate(rows, [weights, np.array([0.5, 0.5])], draws=300, seed=2)
    for which in range(2):
        covered = np.mean([row[which].low <= truth <= row[which].high for row in found])
        assert 0.92 <= covered <= (0.98 if seeds == 5 else 0.99)
