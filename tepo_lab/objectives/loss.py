"""The loss of an objective: one choice on each axis, put together.

loss = aggregate(surrogate(ratio, advantage) x token weights) + coefficient x aggregate(penalty x mask)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tepo_lab.errors import ObjectiveError
from tepo_lab.objectives.aggregation import AGGREGATIONS
from tepo_lab.objectives.batch import Batch, BatchTotals, make_batch
from tepo_lab.objectives.entropy import ENTROPY_CHANGES, SHAPINGS
from tepo_lab.objectives.masks import WHERE
from tepo_lab.objectives.metrics import Terms, gather
from tepo_lab.objectives.penalties import PENALTIES
from tepo_lab.objectives.ratios import RATIOS
from tepo_lab.objectives.surrogates import SURROGATES, dual_clip
from tepo_lab.objectives.weighting import SELECTIONS, WEIGHTS
from tepo_lab.schema.objective import Objective, resolve


@dataclass(frozen=True, slots=True)
class LossOutput:
    """What `PolicyLoss` and `policy_loss` return.

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


class PolicyLoss:
    """The loss of one objective, resolved once and called for every (micro-)batch.

    Attributes:
        objective: its settings.
        needs: what a call must be given besides log-probabilities, advantages and mask (`Objective.needs`).
        needs_whole_mini_batch: whether a mini-batch must come in one call, since some choice reads statistics over
            all of its tokens.
    """

    def __init__(self, objective: Objective | Mapping[str, Any]) -> None:
        """From one choice on each axis, by the YAML's keys; missing ones take the defaults of GRPO/DAPO.

        Raises ObjectiveError for an unknown, missing or contradictory choice.
        """
        self.objective = resolve(objective)
        self.needs = self.objective.needs
        self.needs_whole_mini_batch = self.objective.whole_mini_batch_choice is not None

    def __call__(
        self,
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
        """The loss on a batch of sampled responses, with its metrics.

        Args:
            log_probs: (B, T) nats, of the sampled tokens under the current policy, with gradient.
            old_log_probs: (B, T) nats, under the policy of the rollout, recomputed by the trainer.
            advantages: (B, T), or (B,) for one per response.
            response_mask: (B, T), nonzero on tokens of the response. Other places, NaN included, are never read.
            entropy, old_entropy: (B, T) nats, of the two policies' distributions. `needs` lists which are required;
                given without being required they add metrics.
            logits, old_logits: (B, T, V) over the rollout temperature, for the estimator `full`; or instead
            full_kl: (B, T) nats, KL(current || old) over the vocabulary.
            totals: normalisers of the mini-batch when this is one of its micro-batches, whose losses then add up to
                the mini-batch's. Default: this batch's own counts.
            generator: source of Clip-Cov's draw; default: torch's global one on the CPU.

        Raises:
            ObjectiveError: a shape that does not fit; an input that a choice needs and was not given; a micro-batch
                for a choice that reads the whole mini-batch.
        """
        settings = self.objective
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
        self._check_inputs(batch, totals)

        aggregate = AGGREGATIONS[settings.aggregation]
        ratio = RATIOS[settings.ratio](batch, settings)
        shaped = batch
        if settings.shaping is not None:
            shaped = replace(batch, advantages=SHAPINGS[settings.shaping.kind](batch, settings.shaping))
        values, clipped = SURROGATES[settings.surrogate](shaped, ratio, settings)
        clipped = clipped & batch.valid
        clipped_lower = dropped = weights = None
        if settings.dual_clip is not None:
            values, clipped_lower = dual_clip(shaped, values, settings.dual_clip)
        if settings.selection is not None:
            dropped = SELECTIONS[settings.selection.kind](batch, clipped, generator, settings.selection)
            values = values.masked_fill(dropped, 0.0)
        if settings.weights is not None:
            weights = WEIGHTS[settings.weights.kind](batch, settings.weights)
            values = values * weights
        loss = policy = aggregate(batch, values, settings)

        change = self._entropy_change(batch, is_whole=totals is None)
        moved = change
        if change is not None and settings.entropy_change_tolerance > 0:
            moved = change.masked_fill(change.abs() <= settings.entropy_change_tolerance, 0.0)
        penalty_loss = penalty = mask = on_mask = None
        is_kl = settings.penalty is not None and settings.penalty.kind == "kl"
        if settings.penalty is not None:
            mask = WHERE[settings.penalty.where](batch, moved, settings.penalty)
            on_mask = PENALTIES[settings.penalty.kind](batch, settings.penalty)
            if mask is not batch.valid:
                on_mask = on_mask * mask
            penalty = aggregate(batch, on_mask, settings)
            penalty_loss = settings.penalty.coef * penalty
            loss = policy + penalty_loss

        terms = Terms(
            policy=policy,
            ratio=ratio.detach(),
            clipped=clipped,
            clipped_lower=clipped_lower,
            dropped=dropped,
            weights=weights,
            change=change,
            moved=moved,
            mask=mask,
            kl=penalty if is_kl else None,
            kl_on_mask=on_mask if is_kl else None,
        )
        metrics, token_count = gather(batch, terms, settings)
        tokens = {"ratio": terms.ratio.masked_fill(batch.padding, 0.0)}
        if mask is not None:
            tokens["penalty_mask"] = mask.to(ratio.dtype)
        if change is not None:
            tokens["entropy_change"] = change
        if weights is not None:
            tokens["weights"] = weights.masked_fill(batch.padding, 0.0)
        return LossOutput(loss, policy, penalty_loss, metrics, token_count, tokens)

    def _check_inputs(self, batch: Batch, totals: BatchTotals | None) -> None:
        given = {"entropy": batch.entropy, "old_entropy": batch.old_entropy, "logits": batch.full_kl}
        for name, reader in sorted(self.needs.items()):
            if name in given and given[name] is None:
                wanted = "logits and old_logits, or full_kl" if name == "logits" else name
                raise ObjectiveError(f"policy_loss: {reader} needs {wanted}, and it was not given.")
        if totals is not None and self.needs_whole_mini_batch:
            own = int(batch.tokens), int(batch.lengths.count_nonzero())
            if own != (int(totals.tokens), int(totals.sequences)):
                raise ObjectiveError(
                    f"policy_loss: {self.objective.whole_mini_batch_choice} reads statistics of the whole mini-batch, "
                    f"but this call has {own[0]} of its {int(totals.tokens)} tokens; pass the mini-batch in one call."
                )

    def _entropy_change(self, batch: Batch, *, is_whole: bool) -> Tensor | None:
        """The entropy change where the mask reads it, and otherwise wherever it can be computed, for the metrics."""
        can_compute = {
            "measured": batch.entropy is not None and batch.old_entropy is not None,
            "steer": batch.old_entropy is not None,
            "covariance": is_whole,
        }
        choice = self.objective.entropy_change
        if self.objective.reads_entropy_change or can_compute[choice]:
            return ENTROPY_CHANGES[choice](batch)
        return None


def policy_loss(objective: Objective | Mapping[str, Any], **inputs: Any) -> LossOutput:
    """`PolicyLoss(objective)(**inputs)`, for a single call; a training loop keeps the `PolicyLoss`.

    Raises ObjectiveError as both do.
    """
    return PolicyLoss(objective)(**inputs)


def gradient_ratio(output: LossOutput, tensors: Iterable[Tensor]) -> float:
    """||grad penalty_loss|| / ||grad policy_loss|| with respect to log-probabilities or a model's parameters.

    Takes two more backward passes; leaves `.grad` and the graph of `output` as they are, so that
    `output.loss.backward()` may follow. 0 without a penalty or where its gradient vanishes, infinite where only that
    of the policy term does.
    """
    if output.penalty_loss is None or not output.penalty_loss.requires_grad:
        return 0.0
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    norms = []
    for term in (output.penalty_loss, output.policy_loss):
        gradients = torch.autograd.grad(term, wanted, retain_graph=True, allow_unused=True)
        squares = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
        norms.append(float(sum(squares)) ** 0.5)
    of_penalty, of_policy = norms
    if of_penalty == 0.0:
        return 0.0
    return of_penalty / of_policy if of_policy > 0.0 else float("inf")
