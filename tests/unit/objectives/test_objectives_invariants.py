"""Identities between objectives, and what no objective may depend on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import NO_KL, TEPO, loss_and_gradient, ragged

from tepo_lab.objectives import (
    batch_totals,
    combine_metrics,
    full_kl_from_logits,
    needs_whole_mini_batch,
    policy_loss,
)
from tepo_lab.objectives.batch import make_batch
from tepo_lab.objectives.entropy import entropy_term
from tepo_lab.objectives.penalties import k3_is

POSITIVE = "advantage_positive_entropy_falling"
NEGATIVE = "advantage_negative_entropy_rising"
GSPO = {"ratio": "sequence", "aggregation": "seq-mean-token-mean"}
KL_ON = {
    where: {**TEPO, "penalty": {**TEPO["penalty"], "where": where}} for where in ("all", POSITIVE, NEGATIVE, "union")
}
OBJECTIVES = {
    "grpo_dapo": {},
    "dual_clip": {"dual_clip": 3.0},
    "tepo": TEPO,
    "tepo_steer_change": {**TEPO, "entropy_change": "steer"},
    "tepo_covariance_change": {**TEPO, "entropy_change": "covariance"},
    "tepo_k1": {**TEPO, "penalty": {"kind": "kl", "coef": 1.0, "estimator": "k1"}},
    "tepo_union": KL_ON["union"],
    "tepo_line21": {**NO_KL, "gradient": "line21"},
    "tepo_printed": {**NO_KL, "surrogate": "printed_clip"},
    "tepo_k3_is": {**TEPO, "penalty": {"kind": "kl", "coef": 1.0, "estimator": "k3_is", "where": NEGATIVE}},
    "gspo": GSPO,
    "luspo": {**NO_KL, "aggregation": "seq-mean-token-sum"},
    "dr_grpo": {"aggregation": "seq-mean-token-sum-norm", "max_response_length": 50},
    "token_sum": {"aggregation": "token-sum"},
    "prefix": {"ratio": "prefix"},
    "prefix_token": {"ratio": "prefix", "ratio_gradient": "token"},
    "cispo": {"surrogate": "detached_clip"},
    "gpg": {"ratio": "none", "surrogate": "log_likelihood"},
    "max_entropy": {**NO_KL, "penalty": {"kind": "entropy", "coef": 0.01}},
    "min_entropy": {**NO_KL, "penalty": {"kind": "entropy", "coef": 0.01, "direction": "minimise"}},
    "shaped": {"shaping": {"kind": "entropy"}},
    "clip_cov": {"selection": {"kind": "clip_cov", "fraction": 1.0, "lower": 0.0}},
    "kl_cov": {
        "surrogate": "unclipped",
        "penalty": {"kind": "kl", "coef": 1.0, "estimator": "abs", "where": "top_covariance"},
    },
    "steer": {"weights": {"kind": "steer"}},
    "steer_linear": {"weights": {"kind": "steer", "form": "linear", "high": 1.2}},
}
BY_MICRO_BATCH = sorted(name for name, objective in OBJECTIVES.items() if not needs_whole_mini_batch(objective))
SEED = st.integers(0, 10_000)


def same(first: tuple[float, torch.Tensor], second: tuple[float, torch.Tensor], tolerance: float = 1e-12) -> bool:
    """Whether two (loss, gradient) pairs agree."""
    return abs(first[0] - second[0]) < tolerance and (first[1] - second[1]).abs().max().item() < tolerance


# Identities between objectives


@pytest.mark.parametrize("seed", range(3))
def test_at_the_rollout_policy_the_ratio_level_makes_no_difference(seed):
    batch = ragged(seed, spread=0.0)
    assert same(loss_and_gradient(TEPO, batch), loss_and_gradient({}, batch))
    assert same(loss_and_gradient(GSPO, batch), loss_and_gradient({"aggregation": "seq-mean-token-mean"}, batch))


def test_at_the_rollout_policy_the_prefix_ratio_weighs_early_tokens_more():
    batch = ragged(4, rows=1, columns=5, spread=0.0)
    batch["response_mask"] = torch.ones(1, 5)
    gradient = loss_and_gradient({"ratio": "prefix"}, batch)[1][0]
    # Token j is in the prefixes of every t >= j, with weight 1/t in each.
    weights = torch.tensor([sum(1 / t for t in range(j, 6)) for j in range(1, 6)], dtype=torch.float64)
    torch.testing.assert_close(gradient, -batch["advantages"][0] * weights / 5, rtol=0, atol=1e-14)
    assert not torch.allclose(gradient, loss_and_gradient({}, batch)[1][0])


def test_equal_lengths_make_tepo_without_kl_and_gspo_one():
    batch = ragged(5)
    batch["response_mask"] = torch.ones_like(batch["response_mask"])
    assert same(loss_and_gradient(NO_KL, batch), loss_and_gradient(GSPO, batch))
    assert not same(loss_and_gradient(NO_KL, ragged(5)), loss_and_gradient(GSPO, ragged(5)), 1e-3)


def test_responses_of_one_token_make_token_and_sequence_ratio_one():
    batch = ragged(6)
    batch["response_mask"] = torch.zeros_like(batch["response_mask"])
    batch["response_mask"][:, 0] = 1
    for objective in (NO_KL, {"ratio": "prefix"}, {**NO_KL, "gradient": "line21"}):
        assert same(loss_and_gradient(objective, batch), loss_and_gradient({}, batch))


def test_prefix_ratio_of_the_last_token_is_the_sequence_ratio():
    batch = ragged(7)
    last = (batch["response_mask"].sum(-1) - 1).unsqueeze(-1)
    ratios = [
        policy_loss({"ratio": ratio}, **batch).tokens["ratio"].gather(-1, last) for ratio in ("prefix", "sequence")
    ]
    torch.testing.assert_close(*ratios, rtol=0, atol=1e-14)


def test_no_coefficient_or_an_empty_mask_is_tepo_without_kl():
    batch = ragged(8)
    without = loss_and_gradient(NO_KL, batch)
    assert same(loss_and_gradient({**TEPO, "penalty": {**TEPO["penalty"], "coef": 0.0}}, batch), without, 1e-300)
    assert same(loss_and_gradient({**TEPO, "entropy_change_tolerance": 1e3}, batch), without, 1e-300)
    assert not same(loss_and_gradient(TEPO, batch), without, 1e-5)


@settings(max_examples=25, deadline=None)
@given(SEED)
def test_the_union_is_two_disjoint_masks(seed):
    batch = ragged(seed)
    masks = {where: policy_loss(objective, **batch).tokens["penalty_mask"] for where, objective in KL_ON.items()}
    assert (masks[POSITIVE] * masks[NEGATIVE]).sum() == 0
    assert torch.equal(masks[POSITIVE] + masks[NEGATIVE], masks["union"])
    assert torch.equal(masks["all"], batch["response_mask"].double())
    change = batch["entropy"] - batch["old_entropy"]
    expected = (batch["advantages"] > 0) & (change < 0) & batch["response_mask"].bool()
    assert torch.equal(masks[POSITIVE].bool(), expected)


def test_a_zero_advantage_is_in_no_cell():
    batch = ragged(9)
    batch["advantages"] = torch.zeros_like(batch["advantages"])
    out = policy_loss(KL_ON["union"], **batch)
    assert out.metrics["mask/share"] == 0.0
    assert sum(value for name, value in out.metrics.items() if name.startswith("cells/")) == 0.0


def test_a_change_within_the_tolerance_is_in_no_cell():
    still = policy_loss(KL_ON["union"], **ragged(9, spread=0.0))
    assert still.metrics["mask/share"] == 0.0
    batch = ragged(9)
    change = batch["entropy"] - batch["old_entropy"]
    out = policy_loss({**KL_ON["union"], "entropy_change_tolerance": 0.1}, **batch)
    beyond = (change * batch["advantages"] < 0) & (change.abs() > 0.1) & batch["response_mask"].bool()
    assert torch.equal(out.tokens["penalty_mask"].bool(), beyond)
    assert 0 < out.metrics["mask/share"] < policy_loss(KL_ON["union"], **batch).metrics["mask/share"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_reach_the_current_policy_alone(name):
    batch = {key: value.clone() for key, value in ragged(21).items()}
    for key in batch.keys() - {"response_mask"}:
        batch[key].requires_grad_()
    policy_loss(OBJECTIVES[name], **batch).loss.backward()
    assert batch["log_probs"].grad.abs().max() > 0
    reached = {key for key, value in batch.items() if value.grad is not None}
    assert reached == {"log_probs"} | ({"entropy"} if "max_entropy" in name or "min_entropy" in name else set())


def test_cispo_gradient_is_the_capped_ratio_times_the_advantage():
    batch = ragged(10)
    mask = batch["response_mask"]
    ratio = (batch["log_probs"] - batch["old_log_probs"]).exp().clamp(0.8, 1.28)
    gradient = loss_and_gradient({"surrogate": "detached_clip"}, batch)[1]
    torch.testing.assert_close(gradient, -ratio * batch["advantages"] * mask / mask.sum(), rtol=0, atol=1e-14)


@settings(max_examples=25, deadline=None)
@given(SEED, st.sampled_from(["exp", "linear"]), st.floats(0.1, 0.9), st.floats(1.0, 2.0))
def test_steer_weights_stay_within_their_bounds(seed, form, low, high):
    objective = {"weights": {"kind": "steer", "form": form, "low": low, "high": high}}
    batch = ragged(seed)
    out = policy_loss(objective, **batch)
    weights = out.tokens["weights"][batch["response_mask"].bool()]
    assert low - 1e-12 <= weights.min()
    assert weights.max() <= high + 1e-12
    assert out.metrics["weights/mean"] == pytest.approx(weights.mean().item())
    assert out.metrics["weights/min"] == pytest.approx(weights.min().item())
    assert out.metrics["weights/max"] == pytest.approx(weights.max().item())


def test_steer_weights_of_equal_entropy_changes_are_the_midpoint():
    batch = ragged(11)
    batch["advantages"] = torch.zeros_like(batch["advantages"])
    out = policy_loss({"weights": {"kind": "steer", "form": "linear", "low": 0.8, "high": 1.2}}, **batch)
    assert out.tokens["weights"][batch["response_mask"].bool()].tolist() == pytest.approx([1.0] * out.token_count)


@settings(max_examples=25, deadline=None)
@given(SEED, st.floats(0.0, 10.0), st.floats(1.001, 5.0))
def test_a_shaped_advantage_keeps_its_sign(seed, coef, kappa):
    batch = make_batch(**ragged(seed))
    shaped = entropy_term(batch, coef, kappa)
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


def test_at_the_rollout_policy_only_k1_has_a_gradient():
    batch = ragged(13, spread=0.0)
    for estimator, expected in {"k1": 1.0, "k2": 0.0, "k3": 0.0, "abs": 0.0, "k3_is": 0.0}.items():
        leaf = batch["log_probs"].clone().requires_grad_()
        objective = {"aggregation": "token-sum", "penalty": {"kind": "kl", "coef": 1.0, "estimator": estimator}}
        out = policy_loss(objective, **{**batch, "log_probs": leaf})
        (gradient,) = torch.autograd.grad(out.penalty_loss, leaf)
        assert torch.equal(gradient, expected * batch["response_mask"].double()), estimator


def test_full_kl_from_logits_is_differentiable_and_exact():
    draw = torch.Generator().manual_seed(14)
    logits, old_logits = torch.randn(2, 2, 3, 5, generator=draw, dtype=torch.float64)
    batch = ragged(14, rows=2, columns=3)
    logits[~batch["response_mask"].bool()] = torch.nan
    leaf = logits.clone().requires_grad_()
    objective = {"penalty": {"kind": "kl", "coef": 1.0, "estimator": "full"}}
    out = policy_loss(objective, **batch, logits=leaf, old_logits=old_logits)
    valid = batch["response_mask"].bool()
    p, q = logits.softmax(-1)[valid], old_logits.softmax(-1)[valid]
    assert out.metrics["actor/kl_loss"] == pytest.approx((p * (p / q).log()).sum(-1).mean().item(), abs=1e-14)
    (gradient,) = torch.autograd.grad(out.penalty_loss, leaf)
    kl = (p * (p / q).log()).sum(-1, keepdim=True)
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
    scale = len(lengths) / lengths.sum().double()
    torch.testing.assert_close(own[1], gspo * scale, rtol=0, atol=1e-14)


@pytest.mark.parametrize("ratio", ["sequence", "prefix"])
def test_the_token_gradient_keeps_the_value_and_moves_each_log_prob_by_its_own_weight(ratio):
    batch = ragged(16, spread=0.05)
    full, own = (loss_and_gradient({"ratio": ratio, "ratio_gradient": form}, batch) for form in ("full", "token"))
    assert own[0] == pytest.approx(full[0], abs=1e-14)
    weights = policy_loss({"ratio": ratio}, **batch).tokens["ratio"]
    expected = -weights * batch["advantages"] / batch["response_mask"].sum()
    torch.testing.assert_close(own[1], expected, rtol=0, atol=1e-14)
    assert torch.allclose(full[1], own[1]) == (ratio == "sequence")


def test_per_token_advantages_tell_the_two_sequence_gradients_apart():
    batch = ragged(17, columns=6)
    batch["advantages"] = torch.randn(batch["advantages"].shape, dtype=torch.float64)
    full, own = (loss_and_gradient({**NO_KL, "ratio_gradient": form}, batch)[1] for form in ("full", "token"))
    assert not torch.allclose(full, own, atol=1e-3)


def test_entropy_penalties_push_entropy_in_their_direction():
    batch = ragged(18)
    for direction, sign in {"maximise": -1.0, "minimise": 1.0}.items():
        leaf = batch["entropy"].clone().requires_grad_()
        objective = {**NO_KL, "penalty": {"kind": "entropy", "coef": 0.5, "direction": direction}}
        out = policy_loss(objective, **{**batch, "entropy": leaf})
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


@settings(max_examples=5, deadline=None)
@given(seed=SEED, extra=st.integers(1, 5), junk=st.sampled_from([float("nan"), float("inf"), -1e30]))
@pytest.mark.parametrize("name", OBJECTIVES)
def test_padding_changes_nothing(name, seed, extra, junk):
    batch = ragged(seed, rows=4, columns=6)
    padded = {key: torch.nn.functional.pad(value, (0, extra)) for key, value in batch.items()}
    hole = padded["response_mask"] == 0
    for key in padded.keys() - {"response_mask"}:
        padded[key] = padded[key].masked_fill(hole, junk)
    loss, gradient = loss_and_gradient(OBJECTIVES[name], batch)
    padded_loss, padded_gradient = loss_and_gradient(OBJECTIVES[name], padded)
    assert padded_loss == pytest.approx(loss, rel=1e-12, abs=1e-12)
    assert padded_gradient[hole].abs().sum() == 0
    torch.testing.assert_close(padded_gradient[:, :6], gradient, rtol=1e-12, atol=1e-12)
    plain, blown = (policy_loss(OBJECTIVES[name], **inputs) for inputs in (batch, padded))
    assert blown.metrics == pytest.approx(plain.metrics, rel=1e-9, abs=1e-12)
    for tensor in blown.tokens.values():
        assert tensor[hole].abs().sum() == 0


@settings(max_examples=5, deadline=None)
@given(seed=SEED, size=st.integers(1, 5))
@pytest.mark.parametrize("name", BY_MICRO_BATCH)
def test_micro_batches_add_up_to_the_mini_batch(name, seed, size):
    objective, batch = OBJECTIVES[name], ragged(seed, rows=7, columns=6)
    batch["response_mask"][seed % 7] = 0
    totals = batch_totals(batch["response_mask"])
    parts = [{key: value[start : start + size] for key, value in batch.items()} for start in range(0, 7, size)]
    loss, gradient = loss_and_gradient(objective, batch)
    split = [loss_and_gradient(objective, part, totals=totals) for part in parts]
    assert sum(part[0] for part in split) == pytest.approx(loss, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(torch.cat([part[1] for part in split]), gradient, rtol=1e-12, atol=1e-12)
    outs = [policy_loss(objective, **part, totals=totals) for part in parts]
    whole = policy_loss(objective, **batch, totals=totals)
    combined = combine_metrics([(out.metrics, out.token_count) for out in outs])
    assert combined == pytest.approx(whole.metrics, rel=1e-9, abs=1e-12)
    assert sum(out.token_count for out in outs) == whole.token_count


@settings(max_examples=5, deadline=None)
@given(seed=SEED)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_order_of_responses_makes_no_difference(name, seed):
    batch = ragged(seed, rows=5, columns=6)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    loss, gradient = loss_and_gradient(OBJECTIVES[name], batch)
    shuffled_loss, shuffled = loss_and_gradient(OBJECTIVES[name], {key: value[order] for key, value in batch.items()})
    assert shuffled_loss == pytest.approx(loss, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(shuffled, gradient[order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_float32_agrees_with_float64(name):
    batch = ragged(19)
    narrow = {key: value.float() if value.is_floating_point() else value for key, value in batch.items()}
    exact, rounded = loss_and_gradient(OBJECTIVES[name], batch), loss_and_gradient(OBJECTIVES[name], narrow)
    assert rounded[1].dtype == torch.float32
    assert same(exact, (rounded[0], rounded[1].double()), 2e-5)


def test_a_batch_without_tokens_has_no_loss_and_no_gradient():
    batch = ragged(20)
    batch["response_mask"] = torch.zeros_like(batch["response_mask"])
    for name, objective in OBJECTIVES.items():
        loss, gradient = loss_and_gradient(objective, batch)
        assert loss == 0.0, name
        assert gradient.abs().max() == 0.0, name
        metrics = policy_loss(objective, **batch).metrics
        assert all(value == value and abs(value) != float("inf") for value in metrics.values()), name
