"""What `PolicyLoss` takes, refuses and reports."""

from __future__ import annotations

import pytest
import torch
from ragged import NO_KL, TEPO, loss_and_gradient, ragged

from tepo_lab.errors import ObjectiveError
from tepo_lab.objectives import (
    BatchTotals,
    PolicyLoss,
    average_metrics,
    batch_totals,
    combine_metrics,
    gradient_ratio,
    policy_loss,
)

KL = {"kind": "kl", "coef": 1.0}
STEER = {"weights": {"kind": "steer"}}


@pytest.mark.parametrize(
    ("objective", "missing", "reader"),
    [
        (TEPO, "entropy", "where advantage_positive_entropy_falling with entropy_change measured"),
        (TEPO, "old_entropy", "entropy_change measured"),
        ({**TEPO, "entropy_change": "steer"}, "old_entropy", "entropy_change steer"),
        ({"penalty": {"kind": "entropy", "coef": 1.0}}, "entropy", "penalty.kind entropy"),
        ({"shaping": {"kind": "entropy"}}, "entropy", "shaping entropy"),
        (STEER, "old_entropy", "weights steer"),
        ({"penalty": {**KL, "estimator": "full"}}, "full_kl", "estimator full"),
    ],
)
def test_a_missing_input_is_named_with_the_choice_that_needs_it(objective, missing, reader):
    batch = ragged(1)
    del batch[missing]
    with pytest.raises(ObjectiveError, match=f"{reader} needs .*{missing}"):
        policy_loss(objective, **batch)


def test_what_is_not_needed_may_be_left_out():
    batch = ragged(2)
    full = policy_loss(NO_KL, **batch)
    bare = policy_loss(NO_KL, **{key: batch[key] for key in batch.keys() - {"entropy", "old_entropy", "full_kl"}})
    assert bare.loss == full.loss
    assert "cells/positive_falling" in full.metrics
    assert "cells/positive_falling" not in bare.metrics


@pytest.mark.parametrize(
    ("objective", "reader"),
    [
        ({"selection": {"kind": "clip_cov"}}, "selection clip_cov"),
        (STEER, "weights steer"),
        ({"penalty": {**KL, "where": "top_covariance"}}, "where top_covariance"),
        ({**TEPO, "entropy_change": "covariance"}, "entropy_change covariance"),
    ],
)
def test_whole_mini_batch_choices_refuse_a_micro_batch(objective, reader):
    batch, loss = ragged(3), PolicyLoss(objective)
    tokens, rows = int(batch["response_mask"].sum()), len(batch["response_mask"])
    assert loss.needs_whole_mini_batch
    with pytest.raises(ObjectiveError, match=rf"{reader} .* {tokens} of its {tokens + 9} tokens"):
        loss(**batch, totals=BatchTotals(tokens + 9, rows + 1))
    whole = loss(**batch, totals=batch_totals(batch["response_mask"]))
    assert whole.loss.item() == pytest.approx(loss(**batch).loss.item(), abs=1e-15)


def test_a_covariance_over_a_micro_batch_is_not_reported():
    batch, loss = ragged(3), PolicyLoss({"entropy_change": "covariance"})
    assert "entropy/change_mean" in loss(**batch).metrics
    assert "entropy/change_mean" not in loss(**batch, totals=BatchTotals(999, 99)).metrics


@pytest.mark.parametrize("name", ["old_log_probs", "advantages", "response_mask", "entropy"])
def test_a_shape_that_does_not_fit_is_named(name):
    batch = ragged(4)
    batch[name] = batch[name][:, :-1]
    with pytest.raises(ObjectiveError, match=rf"{name} has shape \(6, 8\).*\(6, 9\)"):
        policy_loss({}, **batch)


def test_one_advantage_per_response_is_enough():
    batch = ragged(5)
    per_response = {**batch, "advantages": batch["advantages"][:, 0]}
    assert policy_loss(TEPO, **per_response).loss == policy_loss(TEPO, **batch).loss


def test_a_resolved_loss_remembers_nothing_between_calls():
    loss, first, second = PolicyLoss(TEPO), ragged(5), ragged(6)
    losses = [loss(**batch).loss.item() for batch in (first, second, first)]
    assert losses == [policy_loss(TEPO, **batch).loss.item() for batch in (first, second, first)]


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
    cells = [f"cells/{sign}_{way}" for sign in ("positive", "negative") for way in ("falling", "rising")]
    clipped = [f"actor/clip_fraction_{sign}" for sign in ("positive", "negative")]
    outside = ["actor/pg_clipfrac", "actor/clip_fraction_high", "actor/clip_fraction_low"]
    expected = dict.fromkeys([*cells, *clipped, "mask/share"], 1 / 5) | dict.fromkeys(outside, 2 / 5)
    expected |= {
        "ratio/mean": 1.0,
        "ratio/min": 0.5,
        "ratio/max": 1.5,
        "actor/entropy": 2.0,
        "entropy/change_mean": 0.0,
    }
    expected |= {
        "actor/pg_loss": sum(losses) / 5,
        "actor/kl_loss": ratio[0, 0].log().item() / 5,
        "actor/kl_coef": 0.5,
        "actor/ppo_kl": -(2 * ratio[0, 0].log() + 2 * ratio[0, 1].log()).item() / 5,
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
    on_mask = [
        ({"penalty/kl_on_mask": kl, "mask/share": share}, n) for kl, share, n in ((1.0, 0.5, 8), (3.0, 0.25, 16))
    ]
    assert combine_metrics(on_mask) == pytest.approx({"penalty/kl_on_mask": 2.0, "mask/share": 1 / 3})


def test_gradient_ratio_is_the_ratio_of_the_two_norms():
    batch = ragged(7)
    leaf = batch["log_probs"].clone().requires_grad_()
    out = policy_loss(TEPO, **{**batch, "log_probs": leaf})
    of_penalty, of_policy = (
        torch.autograd.grad(loss, leaf, retain_graph=True)[0].norm().item()
        for loss in (out.penalty_loss, out.policy_loss)
    )
    assert of_penalty > 1e-4 * of_policy
    assert gradient_ratio(out, [leaf]) == pytest.approx(of_penalty / of_policy, rel=1e-12)
    out.loss.backward()
    assert torch.equal(leaf.grad, loss_and_gradient(TEPO, batch)[1])


@pytest.mark.parametrize(
    ("objective", "spread", "advantage", "expected"),
    [(NO_KL, 0.3, 1.0, 0.0), (TEPO, 0.0, 1.0, 0.0), ({**NO_KL, "penalty": KL}, 0.3, 0.0, float("inf"))],
)
def test_gradient_ratio_without_a_penalty_or_where_one_gradient_vanishes(objective, spread, advantage, expected):
    batch = ragged(8, spread=spread)
    leaf = batch["log_probs"].requires_grad_()
    out = policy_loss(objective, **{**batch, "advantages": advantage * batch["advantages"]})
    assert gradient_ratio(out, [leaf]) == expected
