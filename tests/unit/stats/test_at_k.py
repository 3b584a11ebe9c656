"""pass@k against enumeration of all subsets."""

from __future__ import annotations

from itertools import combinations

import pytest

from tepo_lab.stats.at_k import pass_at_k_by_problem


@pytest.mark.parametrize("correct", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(correct: int, k: int) -> None:
    samples = [1] * correct + [0] * (5 - correct)
    subsets = list(combinations(samples, k))
    expected = sum(any(each) for each in subsets) / len(subsets)
    assert pass_at_k_by_problem([correct], 5, k) == pytest.approx([expected])


def test_each_problem_has_its_own_samples() -> None:
    assert pass_at_k_by_problem([2, 1, 0], [4, 2, 3], 1) == pytest.approx([2 / 4, 1 / 2, 0])
    assert pass_at_k_by_problem([2, 1, 4], [4, 2, 4], 2) == pytest.approx([5 / 6, 1, 1])
    assert pass_at_k_by_problem([1], 1000, 1000) == [1.0]


@pytest.mark.parametrize("k", [0, 5])
def test_k_within_the_samples(k: int) -> None:
    with pytest.raises(ValueError, match="between 1 and the 4"):
        pass_at_k_by_problem([1], 4, k)


def test_counts_are_checked() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        pass_at_k_by_problem([5], 4, 1)
