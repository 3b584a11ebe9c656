"""Holm's correction against a calculation by hand."""

from __future__ import annotations

import pytest

from tepo_lab.stats.multiplicity import holm


def test_by_hand() -> None:
    # Sorted: 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1; never below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_never_above_one_and_a_single_p_stays() -> None:
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


@pytest.mark.parametrize("wrong", [[1.2], [-0.1], [float("nan")]])
def test_refuses_what_is_no_probability(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm(wrong)
