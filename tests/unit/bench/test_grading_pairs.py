"""The answers on which grading is measured."""

from __future__ import annotations

import pytest

from tepo_lab.tasks.answers import plainly_equal
from tepo_lab.tasks.grading import grade_all
from tests.bench.grading import KINDS, exact_pairs, symbolic_pairs


@pytest.mark.integration
def test_half_of_each_kinds_pairs_are_the_same_in_another_form_and_mathematics_finds_out_which():
    pairs = symbolic_pairs(2 * len(KINDS))
    assert len({gold for gold, _, _ in pairs}) == len(pairs)
    grades = grade_all([f"\\boxed{{{given}}}" for _, given, _ in pairs], [gold for gold, _, _ in pairs])
    assert [grade.how for grade in grades] == ["symbolic"] * len(pairs)
    assert [grade.correct for grade in grades] == [1, 0] * len(KINDS) == [int(is_same) for _, _, is_same in pairs]


def test_pairs_are_the_same_each_time_and_none_stands_twice():
    pairs = symbolic_pairs(600)
    assert pairs == symbolic_pairs(600) != symbolic_pairs(600, seed=1)
    assert len(set(pairs)) == 600


def test_numbers_are_decided_without_mathematics():
    assert all(plainly_equal(given, gold) is is_same for gold, given, is_same in exact_pairs(80))
