"""What an objective may say, what it needs, and what it reports."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest
import torch
from ragged import NO_KL, TEPO, loss_and_gradient, ragged
from tepo_lab.objectives.settings import CHOICES, PARTS, Settings

from tepo_lab.errors import ObjectiveError
from tepo_lab.objectives import (
    BatchTotals,
    average_metrics,
    batch_totals,
    combine_metrics,
    gradient_ratio,
    group_advantages,
    needs,
    needs_whole_mini_batch,
    parameter_gradient_ratio,
    policy_loss,
    resolve,
)
from tepo_lab.schema import objective as objective_schema
from tepo_lab.schema.objective import Objective

KL = {"kind": "kl", "coef": 1.0}
ENTROPY = {"kind": "entropy", "coef": 1.0}


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"ration": "token"}, r"objective\.ration: unknown key\. Did you mean 'ratio'\?"),
        ({"ratio": "sequences"}, r"objective\.ratio: unknown choice 'sequences'\. Did you mean 'sequence'\?"),
        ({"surrogate": "ppo"}, r"objective\.surrogate: unknown choice 'ppo'.*ppo_clip"),
        ({"aggregation": "token_mean"}, r"objective\.aggregation: .* Did you mean 'token-mean'\?"),
        ({"penalty": {"kind": "kl"}}, r"objective\.penalty\.coef: missing"),
        ({"penalty": {"coef": 1.0}}, r"objective\.penalty\.kind: missing"),
        ({"penalty": {**KL, "estimater": "k1"}}, r"objective\.penalty\.estimater: .*'estimator'"),
        ({"penalty": {**KL, "estimator": "k4"}}, r"objective\.penalty\.estimator: unknown choice 'k4'"),
        ({"penalty": {**KL, "where": "unions"}}, r"objective\.penalty\.where: .* Did you mean 'union'\?"),
        ({"penalty": {**ENTROPY, "direction": "maximize"}}, r"penalty\.direction: .* Did you mean 'maximise'\?"),
        ({"penalty": {**KL, "coef": "1e-3"}}, r"objective\.penalty\.coef: '1e-3' is not a number"),
        ({"penalty": {**KL, "coef": -1.0}}, r"objective\.penalty\.coef: -1\.0 is out of range; .* at least 0"),
        ({"penalty": {**KL, "straight_through": "yes"}}, r"straight_through: 'yes' is not true or false"),
        ({"penalty": "kl"}, r"objective\.penalty: 'kl' is not a mapping"),
        ({"clip_low": None}, r"objective\.clip_low: None is not a number"),
        ({"dual_clip": 1.0}, r"objective\.dual_clip: 1\.0 is out of range; it must be above 1"),
        ({"dual_clip": 3.0, "surrogate": "unclipped"}, r"objective\.dual_clip: surrogate unclipped has none"),
        ({"shaping": {"kind": "entropy", "kappa": 1.0}}, r"objective\.shaping\.kappa: 1\.0 is out of range"),
        ({"selection": {"kind": "clip_cov", "fraction": 2.0}}, r"fraction: 2\.0 .* at least 0 and at most 1"),
        ({"selection": {"kind": "clip_cov", "lower": 5.0}}, r"objective\.selection: lower \(5\.0\)"),
        ({"weights": {"kind": "steer", "low": 1.1}}, r"objective\.weights: low \(1\.1\) must not exceed high"),
        ({"aggregation": "seq-mean-token-sum-norm"}, r"objective\.max_response_length: missing"),
        ({"surrogate": "log_likelihood"}, r"log_likelihood and ratio none go together"),
        ({"gradient": "line21", "ratio_gradient": "token"}, r"objective\.gradient: line21"),
        ({"penalty": {**KL, "estimator": "full", "straight_through": True}}, r"straight_through: estimator full"),
    ],
)
def test_a_wrong_objective_is_named_with_its_mend(objective, message):
    with pytest.raises(ObjectiveError, match=message):
        policy_loss(objective, **ragged(0))


@pytest.mark.parametrize(
    ("objective", "missing", "message"),
    [
        (TEPO, "entropy", r"where advantage_positive_entropy_falling with entropy_change measured needs entropy,"),
        (TEPO, "old_entropy", r"entropy_change measured needs old_entropy, and it was not given"),
        ({**TEPO, "entropy_change": "steer"}, "old_entropy", r"entropy_change steer needs old_entropy"),
        ({"penalty": ENTROPY}, "entropy", r"penalty\.kind entropy needs entropy"),
        ({"shaping": {"kind": "entropy"}}, "entropy", r"shaping entropy needs entropy"),
        ({"weights": {"kind": "steer"}}, "old_entropy", r"weights steer needs old_entropy"),
        ({"penalty": {**KL, "estimator": "full"}}, "logits", r"estimator full needs logits and old_logits, or full_kl"),
    ],
)
def test_a_missing_input_is_named_with_the_choice_that_needs_it(objective, missing, message):
    batch = ragged(1)
    batch.pop(missing, None)
    assert missing in needs(objective)
    with pytest.raises(ObjectiveError, match=message):
        policy_loss(objective, **batch)


def test_needs_lists_what_each_choice_reads():
    assert needs({}) == frozenset()
    assert needs(NO_KL) == frozenset()
    assert needs(TEPO) == {"entropy", "old_entropy"}
    assert needs({**TEPO, "entropy_change": "covariance"}) == frozenset()
    assert needs({"penalty": ENTROPY}) == {"entropy", "entropy_gradient"}
    assert needs({"shaping": {"kind": "entropy"}}) == {"entropy"}
    assert needs({"weights": {"kind": "steer"}}) == {"old_entropy"}
    assert needs({"penalty": {**KL, "estimator": "full"}}) == {"logits"}


def test_what_is_not_needed_may_be_left_out():
    batch = ragged(2)
    full = policy_loss(NO_KL, **batch)
    del batch["entropy"], batch["old_entropy"]
    bare = policy_loss(NO_KL, **batch)
    assert bare.loss == full.loss
    assert "cells/positive_falling" in full.metrics
    assert "cells/positive_falling" not in bare.metrics


@pytest.mark.parametrize(
    ("objective", "reason"),
    [
        ({"selection": {"kind": "clip_cov"}}, "selection clip_cov"),
        ({"weights": {"kind": "steer"}}, "weights steer"),
        ({"penalty": {**KL, "where": "top_covariance"}}, "where top_covariance"),
        ({**TEPO, "entropy_change": "covariance"}, "entropy_change covariance"),
    ],
)
def test_whole_mini_batch_choices_refuse_a_micro_batch(objective, reason):
    batch = ragged(3)
    tokens, rows = int(batch["response_mask"].sum()), len(batch["response_mask"])
    assert needs_whole_mini_batch(objective)
    with pytest.raises(ObjectiveError, match=rf"{reason} reads .* {tokens} of its {tokens + 9} tokens"):
        policy_loss(objective, **batch, totals=BatchTotals(tokens + 9, rows + 1))
    whole = policy_loss(objective, **batch, totals=batch_totals(batch["response_mask"]))
    assert whole.loss.item() == pytest.approx(policy_loss(objective, **batch).loss.item(), abs=1e-15)


def test_choices_of_single_tokens_do_not_need_the_whole_mini_batch():
    assert not needs_whole_mini_batch(TEPO)
    assert not needs_whole_mini_batch({"entropy_change": "covariance"})


def test_a_covariance_over_a_micro_batch_is_not_reported():
    batch, objective = ragged(3), {"entropy_change": "covariance"}
    assert "entropy/change_mean" in policy_loss(objective, **batch).metrics
    assert "entropy/change_mean" not in policy_loss(objective, **batch, totals=BatchTotals(999, 99)).metrics


@pytest.mark.parametrize("name", ["old_log_probs", "advantages", "response_mask", "entropy"])
def test_a_shape_that_does_not_fit_is_named(name):
    batch = ragged(4)
    batch[name] = batch[name][:, :-1]
    with pytest.raises(ObjectiveError, match=rf"{name} has shape \(6, 8\), but log_probs has \(6, 9\)"):
        policy_loss({}, **batch)


def test_one_advantage_per_response_is_enough():
    batch = ragged(5)
    per_response = {**batch, "advantages": batch["advantages"][:, 0]}
    assert policy_loss(TEPO, **per_response).loss == policy_loss(TEPO, **batch).loss


def test_a_written_out_objective_is_the_same_as_its_short_form():
    written = {
        "advantage": "group_normalised",
        "ratio": "sequence",
        "dual_clip": None,
        "penalty": {**TEPO["penalty"], "estimator": "k3", "direction": "maximise", "straight_through": False},
        "selection": None,
        "gradient": "autograd",
    }
    assert resolve(written) == resolve(TEPO)


def test_clip_cov_drops_a_seeded_share_of_the_candidates():
    batch = ragged(6, rows=20)
    objective = {"selection": {"kind": "clip_cov", "fraction": 0.1, "lower": 0.0}}
    draws = [policy_loss(objective, **batch, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    tokens = draws[0].token_count
    assert draws[0].metrics["selection/dropped"] == pytest.approx(int(0.1 * tokens) / tokens)
    assert draws[0].loss == draws[1].loss
    assert draws[0].loss != draws[2].loss


def test_metrics_of_a_batch_worked_by_hand():
    ratio = torch.tensor([[1.5, 0.5, 1.0, 7.0], [1.5, 0.5, 7.0, 7.0]], dtype=torch.float64)
    inputs = {
        "log_probs": ratio.log(),
        "old_log_probs": torch.zeros(2, 4, dtype=torch.float64),
        "advantages": torch.tensor([1.0, -1.0], dtype=torch.float64),
        "response_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]),
        "entropy": torch.tensor([[1.0, 3.0, 2.0, 9.0], [1.0, 3.0, 9.0, 9.0]], dtype=torch.float64),
        "old_entropy": torch.full((2, 4), 2.0, dtype=torch.float64),
    }
    penalty = {"kind": "kl", "coef": 0.5, "estimator": "k1", "where": "advantage_positive_entropy_falling"}
    out = policy_loss({"penalty": penalty}, **inputs)
    losses = [-1.28, -0.5, -1.0, 1.5, 0.8]
    expected = {
        "actor/pg_loss": sum(losses) / 5,
        "actor/kl_loss": ratio[0, 0].log().item() / 5,
        "actor/kl_coef": 0.5,
        "actor/pg_clipfrac": 2 / 5,
        "actor/clip_fraction_positive": 1 / 5,
        "actor/clip_fraction_negative": 1 / 5,
        "actor/clip_fraction_high": 2 / 5,
        "actor/clip_fraction_low": 2 / 5,
        "actor/ppo_kl": -(2 * ratio[0, 0].log() + 2 * ratio[0, 1].log()).item() / 5,
        "actor/entropy": 10 / 5,
        "entropy/change_mean": 0.0,
        "ratio/mean": 1.0,
        "ratio/min": 0.5,
        "ratio/max": 1.5,
        "cells/positive_falling": 1 / 5,
        "cells/positive_rising": 1 / 5,
        "cells/negative_falling": 1 / 5,
        "cells/negative_rising": 1 / 5,
        "mask/share": 1 / 5,
        "penalty/kl_on_mask": ratio[0, 0].log().item(),
    }
    assert out.metrics == pytest.approx(expected, abs=1e-12)
    assert out.token_count == 5
    assert out.loss.item() == pytest.approx((sum(losses) + 0.5 * ratio[0, 0].log().item()) / 5)
    assert out.tokens["penalty_mask"].tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]
    assert out.tokens["entropy_change"].tolist() == [[-1, 1, 0, 0], [-1, 1, 0, 0]]
    assert out.tokens["ratio"].flatten().tolist() == pytest.approx([1.5, 0.5, 1.0, 0.0, 1.5, 0.5, 0.0, 0.0])
    assert not any(tensor.requires_grad for tensor in out.tokens.values())


def test_combined_metrics_sum_losses_keep_extremes_and_weigh_means_by_tokens():
    first = {"actor/pg_loss": 0.25, "ratio/min": 0.5, "ratio/max": 1.5, "ratio/mean": 1.0}
    second = {"actor/pg_loss": 0.5, "ratio/min": 0.75, "ratio/max": 2.0, "ratio/mean": 2.0}
    empty = {"actor/pg_loss": 0.0, "ratio/min": 1.0, "ratio/max": 1.0, "ratio/mean": 0.0}
    combined = combine_metrics([(first, 30), (second, 10), (empty, 0)])
    assert combined == {"actor/pg_loss": 0.75, "ratio/min": 0.5, "ratio/max": 2.0, "ratio/mean": 1.25}
    assert average_metrics([(first, 30), (second, 10), (empty, 0)]) == {**combined, "actor/pg_loss": 0.375}
    assert combine_metrics([(empty, 0)]) == empty
    assert combine_metrics([]) == {}


def test_combined_kl_on_mask_is_weighed_by_masked_tokens():
    parts = [({"penalty/kl_on_mask": 1.0, "mask/share": 0.5}, 8), ({"penalty/kl_on_mask": 3.0, "mask/share": 0.25}, 16)]
    assert combine_metrics(parts) == pytest.approx({"penalty/kl_on_mask": 2.0, "mask/share": 1 / 3})


def test_gradient_ratio_is_the_ratio_of_the_two_norms():
    batch = ragged(7)
    leaf = batch["log_probs"].clone().requires_grad_()
    out = policy_loss(TEPO, **{**batch, "log_probs": leaf})
    norms = [
        torch.autograd.grad(loss, leaf, retain_graph=True)[0].norm() for loss in (out.penalty_loss, out.policy_loss)
    ]
    expected = (norms[0] / norms[1]).item()
    assert expected > 1e-4
    with torch.no_grad():
        assert gradient_ratio(TEPO, **batch) == pytest.approx(expected, rel=1e-12)
    assert parameter_gradient_ratio(out, [leaf]) == pytest.approx(expected, rel=1e-12)
    out.loss.backward()
    assert torch.equal(leaf.grad, loss_and_gradient(TEPO, batch)[1])


def test_gradient_ratio_without_a_penalty_or_with_a_vanishing_one_is_zero():
    batch = ragged(8)
    assert gradient_ratio(NO_KL, **batch) == 0.0
    assert parameter_gradient_ratio(policy_loss(NO_KL, **batch), [batch["log_probs"]]) == 0.0
    assert gradient_ratio(TEPO, **ragged(8, spread=0.0)) == 0.0
    idle = {**batch, "advantages": torch.zeros_like(batch["advantages"])}
    assert gradient_ratio({**NO_KL, "penalty": KL}, **idle) == float("inf")


@pytest.mark.parametrize("penalty", [ENTROPY, {**KL, "estimator": "full"}])
def test_gradient_ratio_refuses_penalties_that_bypass_the_log_probabilities(penalty):
    with pytest.raises(ObjectiveError, match="use parameter_gradient_ratio"):
        gradient_ratio({"penalty": penalty}, **ragged(9))


# Advantages


@pytest.mark.parametrize(("ddof", "expected"), [(1, 2.475), (0, 2.646)])
def test_one_right_answer_in_eight(ddof, expected):
    rewards = torch.eye(8, dtype=torch.float64)[:1]
    advantages = group_advantages({"advantage_ddof": ddof}, rewards)
    assert advantages[0, 0].item() == pytest.approx(expected, abs=5e-4)
    assert advantages.sum().item() == pytest.approx(0.0, abs=1e-12)


def test_groups_by_id_are_the_groups_of_the_table():
    rewards = torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0]], dtype=torch.float64)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    ids = ["b" if i >= 3 else "a" for i in order.tolist()]
    for advantage in ("group_normalised", "mean_only", "gpg"):
        table = group_advantages({"advantage": advantage}, rewards)
        assert torch.equal(
            group_advantages({"advantage": advantage}, rewards.flatten()[order], ids), table.flatten()[order]
        )


def test_gpg_makes_up_for_responses_in_uniform_groups():
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    expected = [[1.0, -1.0], [0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]
    assert group_advantages({"advantage": "gpg"}, rewards).tolist() == expected
    assert group_advantages({"advantage": "gpg"}, torch.ones(2, 3)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("advantage", ["group_normalised", "mean_only", "gpg"])
def test_equal_rewards_have_advantages_of_exactly_zero(advantage):
    rewards = torch.full((4, 7), 0.1)
    assert group_advantages({"advantage": advantage}, rewards).abs().max() == 0.0


def test_a_group_of_one_keeps_its_reward():
    rewards = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
    advantages = group_advantages({}, rewards, torch.tensor([7, 3, 3]))
    assert advantages.tolist() == pytest.approx([2.0, 2**-0.5, -(2**-0.5)], abs=1e-5)
    assert group_advantages({"advantage": "mean_only"}, rewards, [7, 3, 3]).tolist() == [2.0, 0.5, -0.5]


def test_group_advantages_are_unmoved_by_shift_and_scale():
    rewards = torch.rand(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain, moved = (group_advantages({"advantage_eps": 0.0}, r) for r in (rewards, 3 * rewards - 1))
    torch.testing.assert_close(plain, moved, rtol=0, atol=1e-12)
    assert plain.std(-1).tolist() == pytest.approx([1.0] * 5)


def test_rewards_that_fit_no_shape_are_refused():
    with pytest.raises(ObjectiveError, match=r"rewards have shape \(4,\); give \(P, G\), or \(B,\) with group_ids"):
        group_advantages({}, torch.zeros(4))
    with pytest.raises(ObjectiveError, match="3 group ids for 4 rewards"):
        group_advantages({}, torch.zeros(4), [0, 0, 1])


def test_the_schema_and_the_loss_agree_on_keys_choices_and_defaults():
    for key, part in {"": Settings, **PARTS}.items():
        model = Objective if part is Settings else getattr(objective_schema, key.capitalize())
        fields = {field.name: field for field in dataclasses.fields(part)}
        assert fields.keys() == model.model_fields.keys()
        for name, field in fields.items():
            declared = model.model_fields[name]
            assert declared.is_required() == (field.default is dataclasses.MISSING), name
            if not declared.is_required():
                assert declared.default == field.default, name
            path = f"{key}.{name}" if key else name
            if path in CHOICES:
                assert set(get_args(declared.annotation)) == set(CHOICES[path]), path
