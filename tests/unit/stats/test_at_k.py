"""avg@k and pass@k against enumeration of all subsets."""

from __future__ import annotations

from itertools import combinations

import pytest

from tepo_lab.stats.at_k import avg_at_k, pass_at_k


@pytest.mark.parametrize("correct", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(correct: int, k: int) -> None:
    samples = [1] * correct + [0] * (5 - correct)
    subsets = list(combinations(samples, k))
    assert pass_at_k([correct], 5, k) == pytest.approx(sum(any(each) for each in subsets) / len(subsets))


def test_means_over_problems() -> None:
    assert avg_at_k([1, 3], [4, 4]) == pytest.approx(0.5)
    assert pass_at_k([0, 4], 4, 2) == pytest.approx(0.5)
    assert pass_at_k([2, 1], [4, 2], 1) == pytest.approx(avg_at_k([2, 1], [4, 2]))
    assert pass_at_k([1], 1000, 1000) == 1.0


@pytest.mark.parametrize("k", [0, 5])
def test_k_within_the_samples(k: int) -> None:
    with pytest.raises(ValueError, match="between 1 and the 4"):
        pass_at_k([1], 4, k)


def test_counts_are_checked() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        avg_at_k([5], 4)
