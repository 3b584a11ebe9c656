"""Paired differences against textbook tests, and the rate of false findings by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tepo_lab.stats.bootstrap import Estimate, estimate
from tepo_lab.stats.paired import compare, paired, smallest_detectable

ONE = np.ones(1)


def test_differences_pair_seeds_and_problems() -> None:
    (found,) = paired((np.array([[1.0, 0.0], [1.0, 1.0]]),), (np.array([[0.0, 0.0], [1.0, 0.5]]),))
    assert found.tolist() == [[1.0, 0.0], [0.0, 0.5]]


def test_p_is_the_t_test_over_seeds_when_only_seeds_vary() -> None:
    by_seed = np.array([0.02, 0.05, 0.01, 0.06])
    (found,) = compare([(np.repeat(by_seed[:, None], 10, axis=1),)], ONE, draws=500)
    assert found.p == pytest.approx(stats.ttest_1samp(by_seed, 0).pvalue)
    assert found.difference == pytest.approx(0.035)
    assert found.seeds == 4


def test_p_is_the_t_test_over_problems_for_one_seed() -> None:
    by_problem = np.array([0.1, 0.3, 0.0, 0.2, 0.25])
    (found,) = compare([(by_problem[None, :],)], ONE, draws=500)
    assert found.p == pytest.approx(stats.ttest_1samp(by_problem, 0).pvalue)
    assert found.verdict == "not resolved (fewer than 3 seeds)"


@pytest.mark.parametrize(("shift", "verdict"), [(0.3, "better"), (-0.3, "worse"), (0.0, "not resolved")])
def test_verdicts(shift: float, verdict: str) -> None:
    noise = np.random.default_rng(5).normal(0, 0.1, (4, 60))
    (found,) = compare([(noise - noise.mean() + shift,)], ONE, draws=500)
    assert found.verdict == verdict
    assert (found.low > 0 or found.high < 0) == (verdict != "not resolved")


def test_verdicts_use_the_corrected_p() -> None:
    random = np.random.default_rng(8)
    noise = random.normal(0, 0.1, (4, 50))
    small = (noise - noise.mean() + 0.035,)
    (alone,) = compare([small], ONE, draws=200)
    crowd = compare([small, *((random.normal(0, 0.1, (4, 50)),) for _ in range(30))], ONE, draws=200)
    assert alone.verdict == "better"
    assert crowd[0].p == pytest.approx(alone.p)
    assert crowd[0].p_holm > alone.p_holm
    assert crowd[0].verdict == "not resolved"


def test_fewer_than_three_seeds_are_not_among_those_corrected() -> None:
    random = np.random.default_rng(8)
    small, few = (random.normal(0.035, 0.1, (4, 50)),), (random.normal(0, 0.1, (2, 50)),)
    (alone,) = compare([small], ONE, draws=200)
    first, second = compare([small, few], ONE, draws=200)
    assert first.p_holm == first.p == alone.p
    assert 0 < second.p < 1
    assert (second.p_holm, second.smallest_detectable) == (None, None)


def test_differences_without_a_verdict_asked_for_are_not_among_those_corrected() -> None:
    random = np.random.default_rng(8)
    small, other = (random.normal(0.035, 0.1, (4, 50)),), (random.normal(0, 0.1, (4, 50)),)
    (alone,) = compare([small], ONE, draws=200)
    first, second = compare([small, other], ONE, asked=[True, False], draws=200)
    assert first.p_holm == first.p == pytest.approx(alone.p)
    assert second.p > first.p
    assert (second.p_holm, second.smallest_detectable, second.verdict) == (None, None, "not resolved")
    assert compare([small, other], ONE, draws=200)[0].p_holm == pytest.approx(2 * alone.p)


def test_no_variation() -> None:
    same, shifted = compare([(np.zeros((3, 4)),), (np.full((3, 4), 0.5),)], ONE, draws=50)
    assert (same.p, same.verdict, same.smallest_detectable) == (1.0, "not resolved", 0.0)
    assert (shifted.p, shifted.verdict) == (0.0, "better")


def test_smallest_detectable_difference_is_seen_with_the_power_it_names() -> None:
    """A true difference of that size, in a t test with known spread, is found in about 80 % of repetitions."""
    random = np.random.default_rng(9)
    ((planned,),) = estimate([(random.normal(0, 0.2, (1, 400)),)], [ONE], draws=50, bounds=(-9, 9))
    true = smallest_detectable(planned)
    assert true == pytest.approx((1.966 + 0.8426) * planned.standard_error, rel=0.01)
    repetitions = stats.ttest_1samp(random.normal(true, 0.2, (1000, 400)), 0, axis=1)
    assert np.mean(repetitions.pvalue < 0.05) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(("freedom", "errors"), [(1, 16.334), (2, 5.6535), (10, 3.1100), (4000, 2.8023)])
def test_smallest_detectable_difference_with_few_degrees_of_freedom(freedom: float, errors: float) -> None:
    """That many standard errors, by the noncentral t distribution."""
    found = smallest_detectable(Estimate(0.0, 0.0, 0.0, 0.5, freedom, 3))
    assert found == pytest.approx(0.5 * errors, rel=1e-4)
    critical = stats.t.ppf(0.975, freedom)
    assert stats.nct.sf(critical, freedom, 2 * found) == pytest.approx(0.8, abs=1e-4)


@pytest.mark.integration
def test_five_seeds_find_a_difference_where_there_is_none_at_most_as_often_as_they_say() -> None:
    random = np.random.default_rng(4)
    by_seed = random.normal(0, 0.02, (1000, 5, 1))
    differences = [
        (by_seed[each] + random.normal(0, 0.3, (1, 100)) + random.normal(0, 0.2, (5, 100)),) for each in range(1000)
    ]
    found = [each for (each,) in estimate(differences, [ONE], draws=400, bounds=(-1, 1))]
    outside = np.mean([each.low > 0 or each.high < 0 for each in found])
    assert 0.02 <= outside <= 0.08
