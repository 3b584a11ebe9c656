"""Identities between objectives, and what no objective may depend on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from ragged import GSPO, NEGATIVE, NO_KL, POSITIVE, TEPO, batches, loss_and_gradient, objectives, property_test, ragged

from tepo_lab.objectives import batch_totals, combine_metrics, full_kl_from_logits, policy_loss
from tepo_lab.objectives.batch import make_batch
from tepo_lab.objectives.entropy import entropy_term
from tepo_lab.objectives.penalties import k3_is
from tepo_lab.schema.objective import Shaping

KL_ON = {
    where: {**TEPO, "penalty": {**TEPO["penalty"], "where": where}} for where in ("all", POSITIVE, NEGATIVE, "union")
}


def same(first: tuple[float, torch.Tensor], second: tuple[float, torch.Tensor], tolerance: float = 1e-12) -> bool:
    """Whether two (loss, gradient) pairs agree."""
    return abs(first[0] - second[0]) < tolerance and (first[1] - second[1]).abs().max().item() < tolerance


# Identities between objectives


@property_test
@given(st.integers(0, 10_000))
def test_at_the_rollout_policy_the_ratio_level_makes_no_difference(seed):
    batch = ragged(seed, spread=0.0)
    assert same(loss_and_gradient(TEPO, batch), loss_and_gradient({}, batch))
    assert same(loss_and_gradient(GSPO, batch), loss_and_gradient({"aggregation": "seq-mean-token-mean"}, batch))


def test_at_the_rollout_policy_the_prefix_ratio_weighs_early_tokens_more():
    batch = ragged(4, rows=1, columns=5, spread=0.0, shortest=5)
    gradient = loss_and_gradient({"ratio": "prefix"}, batch)[1][0]
    # Token j is in the prefixes of every t >= j, with weight 1/t in each.
    weights = torch.tensor([sum(1 / t for t in range(j, 6)) for j in range(1, 6)], dtype=torch.float64)
    torch.testing.assert_close(gradient, -batch["advantages"][0] * weights / 5, rtol=0, atol=1e-14)
    assert not torch.allclose(gradient, loss_and_gradient({}, batch)[1][0])


def test_equal_lengths_make_tepo_without_kl_and_gspo_one():
    equal = ragged(5, shortest=9)
    assert same(loss_and_gradient(NO_KL, equal), loss_and_gradient(GSPO, equal))
    assert not same(loss_and_gradient(NO_KL, ragged(5)), loss_and_gradient(GSPO, ragged(5)), 1e-3)


@pytest.mark.parametrize("objective", [NO_KL, {"ratio": "prefix"}, {**NO_KL, "gradient": "line21"}])
def test_responses_of_one_token_make_token_and_averaged_ratio_one(objective):
    batch = ragged(6, columns=1)
    assert same(loss_and_gradient(objective, batch), loss_and_gradient({}, batch))


def test_prefix_ratio_of_the_last_token_is_the_sequence_ratio():
    batch = ragged(7)
    last = (batch["response_mask"].sum(-1) - 1).unsqueeze(-1)
    ratios = [policy_loss({"ratio": name}, **batch).tokens["ratio"].gather(-1, last) for name in ("prefix", "sequence")]
    torch.testing.assert_close(*ratios, rtol=0, atol=1e-14)


def test_no_coefficient_or_an_empty_mask_is_tepo_without_kl():
    batch = ragged(8)
    without = loss_and_gradient(NO_KL, batch)
    assert same(loss_and_gradient({**TEPO, "penalty": {**TEPO["penalty"], "coef": 0.0}}, batch), without, 1e-300)
    assert same(loss_and_gradient({**TEPO, "entropy_change_tolerance": 1e3}, batch), without, 1e-300)
    assert not same(loss_and_gradient(TEPO, batch), without, 1e-5)


@property_test
@given(batches(), st.sampled_from([0.0, 0.1]), st.booleans())
def test_the_union_is_two_disjoint_masks(batch, tolerance, is_zero):
    if is_zero:
        batch["advantages"] = torch.zeros_like(batch["advantages"])
    masks = {
        where: policy_loss({**objective, "entropy_change_tolerance": tolerance}, **batch).tokens["penalty_mask"].bool()
        for where, objective in KL_ON.items()
    }
    change, valid = batch["entropy"] - batch["old_entropy"], batch["response_mask"].bool()
    assert torch.equal(masks[POSITIVE], (batch["advantages"] > 0) & (change < -tolerance) & valid)
    assert torch.equal(masks[NEGATIVE], (batch["advantages"] < 0) & (change > tolerance) & valid)
    assert torch.equal(masks[POSITIVE] ^ masks[NEGATIVE], masks["union"])
    assert torch.equal(masks["all"], valid)


def test_cispo_gradient_is_the_capped_ratio_times_the_advantage():
    batch = ragged(10)
    mask = batch["response_mask"]
    ratio = (batch["log_probs"] - batch["old_log_probs"]).exp().clamp(0.8, 1.28)
    gradient = loss_and_gradient({"surrogate": "detached_clip"}, batch)[1]
    torch.testing.assert_close(gradient, -ratio * batch["advantages"] * mask / mask.sum(), rtol=0, atol=1e-14)


@property_test
@given(batches(), st.sampled_from(["exp", "linear"]), st.floats(0.1, 0.9), st.floats(1.0, 2.0))
def test_steer_weights_stay_within_their_bounds(batch, form, low, high):
    assume(batch["response_mask"].any())
    out = policy_loss({"weights": {"kind": "steer", "form": form, "low": low, "high": high}}, **batch)
    weights = out.tokens["weights"][batch["response_mask"].bool()]
    assert low - 1e-12 <= weights.min()
    assert weights.max() <= high + 1e-12
    reported = [out.metrics[f"weights/{name}"] for name in ("mean", "min", "max")]
    assert reported == pytest.approx([weights.mean().item(), weights.min().item(), weights.max().item()])


def test_steer_weights_of_equal_entropy_changes_are_the_midpoint():
    batch = ragged(11)
    batch["advantages"] = torch.zeros_like(batch["advantages"])
    out = policy_loss({"weights": {"kind": "steer", "form": "linear", "low": 0.8, "high": 1.2}}, **batch)
    assert out.tokens["weights"][batch["response_mask"].bool()].tolist() == pytest.approx([1.0] * out.token_count)


@property_test
@given(batches(), st.floats(0.0, 10.0), st.floats(1.001, 5.0))
def test_a_shaped_advantage_keeps_its_sign(inputs, coef, kappa):
    batch = make_batch(**inputs)
    shaped = entropy_term(batch, Shaping(kind="entropy", coef=coef, kappa=kappa))
    assert torch.equal(shaped.sign(), batch.advantages.sign())
    assert bool((shaped >= batch.advantages).all())
    assert bool(((shaped - batch.advantages) <= batch.advantages.abs() / kappa + 1e-12).all())


def test_k3_is_averages_to_the_full_kl_over_the_old_policy():
    logits, old_logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(12), dtype=torch.float64)
    leaf = logits.requires_grad_()
    log_pi, log_old = leaf.log_softmax(-1), old_logits.log_softmax(-1)
    # Each column is one of the tokens that the old policy could have sampled in the row's state.
    ones = torch.ones_like(log_pi)
    per_token = k3_is(make_batch(log_probs=log_pi, old_log_probs=log_old, advantages=ones, response_mask=ones))
    mean, full = (log_old.exp() * per_token).sum(), full_kl_from_logits(leaf, old_logits).sum()
    assert mean.item() == pytest.approx(full.item(), abs=1e-14)
    gradients = [torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in (mean, full)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-14)
    assert full.item() > 0.1


@pytest.mark.parametrize(
    ("estimator", "expected"), [("k1", 1.0), ("k2", 0.0), ("k3", 0.0), ("abs", 0.0), ("k3_is", 0.0)]
)
def test_at_the_rollout_policy_only_k1_has_a_gradient(estimator, expected):
    batch = ragged(13, spread=0.0)
    leaf = batch["log_probs"].requires_grad_()
    objective = {"aggregation": "token-sum", "penalty": {"kind": "kl", "coef": 1.0, "estimator": estimator}}
    (gradient,) = torch.autograd.grad(policy_loss(objective, **batch).penalty_loss, leaf)
    assert torch.equal(gradient, float(estimator == "k1") * batch["response_mask"].double())


def test_full_kl_from_logits_is_differentiable_and_exact():
    draw = torch.Generator().manual_seed(14)
    logits, old_logits = torch.randn(2, 2, 3, 5, generator=draw, dtype=torch.float64)
    batch = ragged(14, rows=2, columns=3)
    del batch["full_kl"]
    valid = batch["response_mask"].bool()
    logits[~valid] = torch.nan
    leaf = logits.clone().requires_grad_()
    objective = {"penalty": {"kind": "kl", "coef": 1.0, "estimator": "full"}}
    out = policy_loss(objective, **batch, logits=leaf, old_logits=old_logits)
    p, q = logits.softmax(-1)[valid], old_logits.softmax(-1)[valid]
    kl = (p * (p / q).log()).sum(-1, keepdim=True)
    assert out.metrics["actor/kl_loss"] == pytest.approx(kl.mean().item(), abs=1e-14)
    (gradient,) = torch.autograd.grad(out.penalty_loss, leaf)
    torch.testing.assert_close(gradient[valid], p * ((p / q).log() - kl) / valid.sum(), rtol=0, atol=1e-14)
    assert gradient[~valid].abs().max() == 0


def test_line21_divides_a_sequence_gradient_by_its_length_which_makes_it_gspo():
    batch = ragged(15)
    lengths = batch["response_mask"].sum(-1, keepdim=True)
    full, own = (loss_and_gradient({**NO_KL, "gradient": form}, batch) for form in ("autograd", "line21"))
    assert own[0] == pytest.approx(full[0], abs=1e-14)
    # With one advantage per response the full gradient gives each of n tokens n times its own term over n.
    torch.testing.assert_close(own[1], full[1] / lengths, rtol=0, atol=1e-14)
    gspo = loss_and_gradient(GSPO, batch)[1]
    torch.testing.assert_close(own[1], gspo * (len(lengths) / lengths.sum().double()), rtol=0, atol=1e-14)


@pytest.mark.parametrize("ratio", ["sequence", "prefix"])
def test_the_token_gradient_keeps_the_value_and_moves_each_log_prob_by_its_own_weight(ratio):
    batch = ragged(16, spread=0.05)
    full, own = (loss_and_gradient({"ratio": ratio, "ratio_gradient": form}, batch) for form in ("full", "token"))
    assert own[0] == pytest.approx(full[0], abs=1e-14)
    weights = policy_loss({"ratio": ratio}, **batch).tokens["ratio"]
    expected = -weights * batch["advantages"] / batch["response_mask"].sum()
    torch.testing.assert_close(own[1], expected, rtol=0, atol=1e-14)
    # With one advantage per response the two gradients of the sequence ratio are the same.
    assert torch.allclose(full[1], own[1]) == (ratio == "sequence")
    batch["advantages"] = batch["log_probs"] + 1
    full, own = (loss_and_gradient({"ratio": ratio, "ratio_gradient": form}, batch) for form in ("full", "token"))
    assert not torch.allclose(full[1], own[1], atol=1e-3)


@pytest.mark.parametrize(("direction", "sign"), [("maximise", -1.0), ("minimise", 1.0)])
def test_entropy_penalties_push_entropy_in_their_direction(direction, sign):
    batch = ragged(18)
    leaf = batch["entropy"].requires_grad_()
    objective = {**NO_KL, "penalty": {"kind": "entropy", "coef": 0.5, "direction": direction}}
    out = policy_loss(objective, **batch)
    mask = batch["response_mask"].double()
    assert out.penalty_loss.item() == pytest.approx(sign * 0.5 * out.metrics["actor/entropy"], abs=1e-14)
    (gradient,) = torch.autograd.grad(out.loss, leaf)
    torch.testing.assert_close(gradient, sign * 0.5 * mask / mask.sum(), rtol=0, atol=1e-14)


def test_dual_clip_bounds_tokens_of_negative_advantage_only():
    ones = torch.ones(1, 2, dtype=torch.float64)
    inputs = {"old_log_probs": -5 * ones, "log_probs": -1 * ones, "response_mask": ones}
    inputs["advantages"] = torch.tensor([[-1.0, 1.0]])
    out = policy_loss({"dual_clip": 3.0, "aggregation": "token-sum"}, **inputs)
    assert out.loss.item() == pytest.approx(3.0 - 1.28)
    assert out.metrics["actor/pg_clipfrac_lower"] == 0.5
    assert policy_loss({"aggregation": "token-sum"}, **inputs).loss.item() == pytest.approx(torch.e**4 - 1.28)


@pytest.mark.parametrize(("ratio", "limit"), [("token", 20.0), ("sequence", 10.0), ("prefix", 10.0)])
def test_extreme_log_ratios_stay_finite(ratio, limit):
    objective = {"ratio": ratio, "surrogate": "unclipped", "penalty": {"kind": "kl", "coef": 1.0}}
    for d, expected in ((-500.0, 0.0), (500.0, torch.e**limit)):
        inputs = {"log_probs": torch.full((2, 3), d), "old_log_probs": torch.zeros(2, 3)}
        inputs |= {"advantages": torch.ones(2), "response_mask": torch.ones(2, 3)}
        loss, gradient = loss_and_gradient(objective, inputs)
        assert loss == pytest.approx(10.0 - expected, rel=1e-5)
        assert torch.isfinite(gradient).all()


# What no objective depends on


@property_test
@given(objectives(), batches(), st.integers(1, 5), st.sampled_from([float("nan"), float("inf"), -1e30]), st.randoms())
def test_padding_and_the_order_of_responses_change_nothing(objective, batch, extra, junk, random):
    # The covariances of two tokens are equal, and the order decides which of them is the top one.
    order = list(range(len(batch["log_probs"])))
    if batch["response_mask"].any(-1).sum() > 2:
        random.shuffle(order)
    moved = {key: torch.nn.functional.pad(value[order], (0, extra)) for key, value in batch.items()}
    is_padding = moved["response_mask"] == 0
    for key in moved.keys() - {"response_mask"}:
        moved[key] = moved[key].masked_fill(is_padding, junk)
    (loss, gradient), (moved_loss, moved_gradient) = (loss_and_gradient(objective, each) for each in (batch, moved))
    assert moved_loss == pytest.approx(loss, rel=1e-12, abs=1e-12)
    assert moved_gradient[is_padding].abs().sum() == 0
    torch.testing.assert_close(moved_gradient[:, :-extra], gradient[order], rtol=1e-12, atol=1e-12)
    out, moved_out = (policy_loss(objective, **inputs) for inputs in (batch, moved))
    assert moved_out.metrics == pytest.approx(out.metrics, rel=1e-9, abs=1e-12)
    assert all(math.isfinite(value) for value in out.metrics.values())
    for tensor in moved_out.tokens.values():
        assert tensor[is_padding].abs().sum() == 0


@property_test
@given(objectives(by_micro_batch=True), batches(), st.integers(1, 5))
def test_micro_batches_add_up_to_the_mini_batch(objective, batch, size):
    totals = batch_totals(batch["response_mask"])
    rows = len(batch["log_probs"])
    parts = [{key: value[start : start + size] for key, value in batch.items()} for start in range(0, rows, size)]
    loss, gradient = loss_and_gradient(objective, batch)
    split = [loss_and_gradient(objective, part, totals=totals) for part in parts]
    assert sum(part[0] for part in split) == pytest.approx(loss, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(torch.cat([part[1] for part in split]), gradient, rtol=1e-12, atol=1e-12)
    outs = [policy_loss(objective, **part, totals=totals) for part in parts]
    whole = policy_loss(objective, **batch, totals=totals)
    combined = combine_metrics([(out.metrics, out.token_count) for out in outs])
    assert combined == pytest.approx(whole.metrics, rel=1e-9, abs=1e-12)
    assert sum(out.token_count for out in outs) == whole.token_count


@property_test
@given(objectives(), batches())
def test_float32_agrees_with_float64(objective, batch):
    # Of one or two responses the covariances are all equal but for rounding.
    assume(batch["response_mask"].any(-1).sum() > 2)
    narrow = {key: value.float() if value.is_floating_point() else value for key, value in batch.items()}
    (exact_loss, exact), (loss, gradient) = (loss_and_gradient(objective, inputs) for inputs in (batch, narrow))
    assert gradient.dtype == torch.float32
    assert loss == pytest.approx(exact_loss, rel=1e-4, abs=2e-5)
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-4, atol=2e-5)


@property_test
@given(objectives(), batches())
def test_gradients_reach_the_current_policy_alone(objective, batch):
    for key in batch.keys() - {"response_mask"}:
        batch[key].requires_grad_()
    policy_loss(objective, **batch).loss.backward()
    reached = {key for key, value in batch.items() if value.grad is not None and value.grad.abs().max() > 0}
    own = {"entropy"} if "entropy_gradient" in objective.needs else set()
    assert reached <= {"log_probs", *own, *({"full_kl"} if "logits" in objective.needs else ())}


@property_test
@given(objectives())
def test_a_batch_without_tokens_has_no_loss_and_no_gradient(objective):
    batch = ragged(20)
    batch["response_mask"] = torch.zeros_like(batch["response_mask"])
    loss, gradient = loss_and_gradient(objective, batch)
    assert loss == gradient.abs().max() == 0.0
    assert all(math.isfinite(value) for value in policy_loss(objective, **batch).metrics.values())
