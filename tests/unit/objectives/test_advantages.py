from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ragged import property_test

from tepo_lab.errors import ObjectiveError
from tepo_lab.objectives import Objective, group_advantages

CHOICES = get_args(Objective.model_fields["advantage"].annotation)


@pytest.mark.parametrize(("ddof", "expected"), [(1, 2.475), (0, 2.646)])
def test_one_right_answer_in_eight(ddof, expected):
    advantages = group_advantages({"advantage_ddof": ddof}, torch.eye(8, dtype=torch.float64)[:1])
    assert advantages[0, 0].item() == pytest.approx(expected, abs=5e-4)
    assert advantages.sum().item() == pytest.approx(0.0, abs=1e-12)


def test_groups_by_id_are_the_groups_of_the_table():
    rewards = torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0]], dtype=torch.float64)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    ids = ["b" if i >= 3 else "a" for i in order.tolist()]
    for choice in CHOICES:
        table, by_id = ({"advantage": choice}, rewards), ({"advantage": choice}, rewards.flatten()[order], ids)
        assert torch.equal(group_advantages(*by_id), group_advantages(*table).flatten()[order])


def test_gpg_makes_up_for_responses_in_uniform_groups():
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    expected = [[1.0, -1.0], [0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]
    assert group_advantages({"advantage": "gpg"}, rewards).tolist() == expected


def test_a_group_of_one_keeps_its_reward():
    rewards = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
    advantages = group_advantages({}, rewards, torch.tensor([7, 3, 3]))
    assert advantages.tolist() == pytest.approx([2.0, 2**-0.5, -(2**-0.5)], abs=1e-5)
    assert group_advantages({"advantage": "mean_only"}, rewards, [7, 3, 3]).tolist() == [2.0, 0.5, -0.5]


@property_test
@given(st.sampled_from(CHOICES), st.floats(-5, 5, width=32), st.integers(2, 9))
def test_equal_rewards_have_advantages_of_exactly_zero(choice, reward, size):
    assert group_advantages({"advantage": choice}, torch.full((3, size), reward)).abs().max() == 0.0


def test_group_advantages_do_not_depend_on_shift_and_scale():
    rewards = torch.rand(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain, moved = (group_advantages({"advantage_eps": 0.0}, r) for r in (rewards, 3 * rewards - 1))
    torch.testing.assert_close(plain, moved, rtol=0, atol=1e-12)
    assert plain.std(-1).tolist() == pytest.approx([1.0] * 5)


def test_rewards_that_fit_no_shape_are_refused():
    with pytest.raises(ObjectiveError, match=r"\(4,\)"):
        group_advantages({}, torch.zeros(4))
    with pytest.raises(ObjectiveError, match="3 group ids for 4 rewards"):
        group_advantages({}, torch.zeros(4), [0, 0, 1])
