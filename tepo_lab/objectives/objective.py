"""The loss of an objective: one choice on each axis, put together.

loss = aggregate(surrogate(ratio, advantage) x token weights) + coefficient x aggregate(penalty x mask)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tepo_lab.errors import ObjectiveError
from tepo_lab.objectives.aggregation import AGGREGATIONS
from tepo_lab.objectives.batch import Batch, BatchTotals, batch_totals, make_batch
from tepo_lab.objectives.entropy import ENTROPY_CHANGES, SHAPINGS
from tepo_lab.objectives.masks import WHERE
from tepo_lab.objectives.metrics import Terms, gather
from tepo_lab.objectives.penalties import ENTROPY_DIRECTIONS, kl
from tepo_lab.objectives.ratios import RATIOS
from tepo_lab.objectives.settings import Settings, needed_by, resolve, whole_mini_batch_reason
from tepo_lab.objectives.surrogates import SURROGATES, dual_clip
from tepo_lab.objectives.weighting import SELECTIONS, WEIGHTS


@dataclass(frozen=True, slots=True)
class LossOutput:
    """What `policy_loss` returns.

    Attributes:
        loss: scalar to minimise, `policy_loss + penalty_loss`.
        policy_loss: its first term, scalar with gradient.
        penalty_loss: its second term with coefficient and sign, scalar with gradient, or None without a penalty.
        metrics: numbers by name. `actor/pg_loss` and `actor/kl_loss` (KL before its coefficient) are over the
            mini-batch's totals. All else is over the valid tokens given: `ratio/mean|min|max`, `actor/ppo_kl` (mean of
            log pi_old - log pi), `actor/entropy`, `actor/kl_coef`; `actor/pg_clipfrac`, where the clipped branch is
            the one taken (for a detached clip: where the weight was capped), and its shares with A > 0 and A < 0,
            `actor/clip_fraction_positive|negative`; `actor/clip_fraction_high|low`, tokens whose ratio lies above or
            below the clip's range, whichever branch is taken; `actor/pg_clipfrac_lower` (dual clip);
            `entropy/change_mean`; `cells/positive|negative_falling|rising`, shares by sign of A and of the entropy
            change; `mask/share`, where the penalty acts, and `penalty/kl_on_mask`, mean KL there;
            `selection/dropped`; `weights/mean|min|max`. Those whose inputs are missing are left out.
        tokens: detached (B, T) tensors, zero on padding: `ratio`, and where there is one `penalty_mask` (0 or 1),
            `entropy_change` (nats) and `weights`.
        token_count: valid tokens in this call, the weight of its metrics in `combine_metrics`.
    """

    loss: Tensor
    policy_loss: Tensor
    penalty_loss: Tensor | None
    metrics: dict[str, float]
    token_count: int
    tokens: dict[str, Tensor] = field(default_factory=dict)


def policy_loss(
    objective: Mapping[str, Any],
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    entropy: Tensor | None = None,
    old_entropy: Tensor | None = None,
    logits: Tensor | None = None,
    old_logits: Tensor | None = None,
    full_kl: Tensor | None = None,
    totals: BatchTotals | None = None,
    generator: torch.Generator | None = None,
) -> LossOutput:
    """The loss of an objective on a batch of sampled responses, with its metrics.

    Args:
        objective: one choice on each axis, by the YAML's keys; missing ones take the defaults of GRPO/DAPO.
        log_probs: (B, T) nats, of the sampled tokens under the current policy, with gradient.
        old_log_probs: (B, T) nats, under the policy of the rollout, recomputed by the trainer.
        advantages: (B, T), or (B,) for one per response.
        response_mask: (B, T), nonzero on tokens of the response. What stands elsewhere, NaN included, is never read.
        entropy, old_entropy: (B, T) nats, of the two policies' distributions. `needs` says which are required;
            given without being required they add metrics.
        logits, old_logits: (B, T, V) over the rollout temperature, for the estimator `full`; or instead
        full_kl: (B, T) nats, KL(current || old) over the vocabulary.
        totals: normalisers of the mini-batch when this is one of its micro-batches, whose losses then add up to the
            mini-batch's. Default: this batch's own counts.
        generator: source of Clip-Cov's draw; default: torch's global one on the CPU.

    Raises:
        ObjectiveError: an unknown, missing or contradictory choice; a shape that does not fit; an input that a choice
            needs and was not given; a micro-batch for a choice that reads the whole mini-batch.
    """
    settings = resolve(objective)
    batch = make_batch(
        log_probs=log_probs,
        old_log_probs=old_log_probs,
        advantages=advantages,
        response_mask=response_mask,
        entropy=entropy,
        old_entropy=old_entropy,
        logits=logits,
        old_logits=old_logits,
        full_kl=full_kl,
        totals=totals,
    )
    _check_inputs(settings, batch)
    if totals is not None:
        _check_whole(settings, totals, response_mask)
    terms = _evaluate(settings, batch, generator, estimate_change=totals is None)
    penalty = _penalty_loss(settings, terms)
    metrics, token_count = gather(batch, terms, settings)
    loss = terms.policy if penalty is None else terms.policy + penalty
    return LossOutput(loss, terms.policy, penalty, metrics, token_count, _per_token(batch, terms))


def _per_token(batch: Batch, terms: Terms) -> dict[str, Tensor]:
    """The tensors of `LossOutput.tokens`."""
    tokens = {"ratio": terms.ratio.masked_fill(batch.padding, 0.0)}
    if terms.penalty_mask is not None:
        tokens["penalty_mask"] = terms.penalty_mask.to(terms.ratio.dtype)
    if terms.change is not None:
        tokens["entropy_change"] = terms.change
    if terms.weights is not None:
        tokens["weights"] = terms.weights.masked_fill(batch.padding, 0.0)
    return tokens


def _check_inputs(settings: Settings, batch: Batch) -> None:
    """Raises ObjectiveError for what a choice needs and was not given."""
    given = {"entropy": batch.entropy, "old_entropy": batch.old_entropy, "logits": batch.full_kl}
    for name in sorted(needed_by(settings) & given.keys()):
        if given[name] is None:
            wanted = "logits and old_logits, or full_kl" if name == "logits" else name
            raise ObjectiveError(f"policy_loss: {_reader(settings, name)} needs {wanted}, and it was not given.")


def _reader(settings: Settings, name: str) -> str:
    """The choice that makes an input necessary, as the user wrote it."""
    penalty = settings.penalty
    if name == "logits":
        return "penalty.estimator full"
    if name == "entropy" and settings.shaping is not None:
        return f"shaping {settings.shaping.kind}"
    if name == "old_entropy" and settings.weights is not None:
        return f"weights {settings.weights.kind}"
    if penalty is not None and settings.mask_reads_entropy_change:
        return f"penalty.where {penalty.where} with entropy_change {settings.entropy_change}"
    return "penalty.kind entropy"


def _check_whole(settings: Settings, totals: BatchTotals, response_mask: Tensor) -> None:
    """Raises ObjectiveError when totals show a micro-batch and a choice reads the whole mini-batch."""
    reason = whole_mini_batch_reason(settings)
    if reason is None:
        return
    own = [int(count) for count in batch_totals(response_mask)]
    if own != [int(count) for count in totals]:
        raise ObjectiveError(
            f"policy_loss: {reason} reads statistics of the whole mini-batch, but this call has {own[0]} of its "
            f"{int(totals.tokens)} tokens; pass the mini-batch in one call."
        )


def _entropy_change(settings: Settings, batch: Batch, estimate: bool) -> Tensor | None:
    """The entropy change where the mask reads it, and otherwise wherever it can be had, for the metrics."""
    inputs = {
        "measured": batch.entropy is not None and batch.old_entropy is not None,
        "steer": batch.old_entropy is not None,
        "covariance": estimate,
    }
    if settings.mask_reads_entropy_change or inputs[settings.entropy_change]:
        return ENTROPY_CHANGES[settings.entropy_change](batch)
    return None


def _evaluate(settings: Settings, batch: Batch, generator: torch.Generator | None, estimate_change: bool) -> Terms:
    """Every axis's choice, applied in order."""
    aggregate, longest = AGGREGATIONS[settings.aggregation], settings.max_response_length
    ratio = RATIOS[settings.ratio](batch, "line21" if settings.gradient == "line21" else settings.ratio_gradient)
    advantages = batch.advantages
    if settings.shaping is not None:
        advantages = SHAPINGS[settings.shaping.kind](batch, settings.shaping.coef, settings.shaping.kappa)
    lower, upper = 1 - settings.clip_low, 1 + settings.clip_high
    loss, clipped = SURROGATES[settings.surrogate](ratio, advantages, batch.log_probs, lower, upper)
    clipped = clipped & batch.valid
    clipped_lower = dropped = weights = None
    if settings.dual_clip is not None:
        loss, clipped_lower = dual_clip(loss, advantages, settings.dual_clip)
    if settings.selection is not None:
        chosen = settings.selection
        select = SELECTIONS[chosen.kind]
        dropped = select(batch, clipped, chosen.fraction, chosen.lower, chosen.upper, generator)
        loss = loss.masked_fill(dropped, 0.0)
    if settings.weights is not None:
        weights = WEIGHTS[settings.weights.kind](
            batch, settings.weights.form, settings.weights.low, settings.weights.high
        )
        loss = loss * weights
    change = _entropy_change(settings, batch, estimate_change)
    penalty = mask = on_mask = None
    if settings.penalty is not None:
        mask, on_mask = _penalty(settings, batch, change)
        penalty = aggregate(on_mask, batch.lengths, batch.totals, longest)
        on_mask = on_mask.detach()
    policy = aggregate(loss, batch.lengths, batch.totals, longest)
    return Terms(policy, ratio.detach(), clipped, clipped_lower, dropped, weights, change, penalty, mask, on_mask)


def _penalty(settings: Settings, batch: Batch, change: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where the penalty acts, (B, T) boolean, and its value there, 0 elsewhere, with gradient."""
    chosen = settings.penalty
    assert chosen is not None
    mask = WHERE[chosen.where](batch, change, settings.entropy_change_tolerance, chosen.top_fraction)
    if chosen.kind == "entropy":
        assert batch.entropy is not None, "_check_inputs requires it"
        values = batch.entropy
    else:
        values = kl(batch, chosen.estimator, chosen.straight_through)
    return mask, values if mask is batch.valid else values * mask


def _penalty_loss(settings: Settings, terms: Terms) -> Tensor | None:
    """The aggregated penalty with its coefficient and sign."""
    if settings.penalty is None or terms.penalty is None:
        return None
    sign = ENTROPY_DIRECTIONS[settings.penalty.direction] if settings.penalty.kind == "entropy" else 1.0
    return sign * settings.penalty.coef * terms.penalty


def _norm_ratio(penalty: Iterable[Tensor | None], policy: Iterable[Tensor | None]) -> float:
    """||penalty|| / ||policy|| of two gradients: 0 when the first vanishes, infinite when only the second does."""
    squares = [
        sum(
            (g.detach().double().square().sum() for g in gradient if g is not None),
            torch.zeros((), dtype=torch.float64),
        )
        for gradient in (penalty, policy)
    ]
    top, bottom = (float(square) ** 0.5 for square in squares)
    if top == 0.0:
        return 0.0
    return top / bottom if bottom > 0.0 else float("inf")


def gradient_ratio(objective: Mapping[str, Any], **inputs: Any) -> float:
    """||grad penalty|| / ||grad policy|| with respect to the log-probabilities; needs no model.

    Takes the inputs of `policy_loss`; leaves their gradients alone. 0 without a penalty. Raises ObjectiveError for
    penalties that do not act through the log-probabilities (entropy, estimator full): see `parameter_gradient_ratio`.
    """
    settings = resolve(objective)
    penalty = settings.penalty
    if penalty is None:
        return 0.0
    if penalty.kind == "entropy" or penalty.estimator == "full":
        raise ObjectiveError(
            "gradient_ratio: entropy and estimator full do not act through the log-probabilities; "
            "use parameter_gradient_ratio on the output of policy_loss."
        )
    with torch.enable_grad():
        leaf = inputs["log_probs"].detach().requires_grad_()
        out = policy_loss(objective, **{**inputs, "log_probs": leaf})
        assert out.penalty_loss is not None
        (of_policy,) = torch.autograd.grad(out.policy_loss, leaf, retain_graph=True)
        (of_penalty,) = torch.autograd.grad(out.penalty_loss, leaf)
    return _norm_ratio([of_penalty], [of_policy])


def parameter_gradient_ratio(out: LossOutput, parameters: Iterable[Tensor]) -> float:
    """||grad penalty|| / ||grad policy|| with respect to a model's parameters: two more backward passes through it.

    Leaves `.grad` and the graph of `out` as they are, so that `out.loss.backward()` may follow. 0 without a penalty.
    """
    if out.penalty_loss is None or not out.penalty_loss.requires_grad:
        return 0.0
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    of_policy = torch.autograd.grad(out.policy_loss, wanted, retain_graph=True, allow_unused=True)
    of_penalty = torch.autograd.grad(out.penalty_loss, wanted, retain_graph=True, allow_unused=True)
    return _norm_ratio(of_penalty, of_policy)
