"""A batch of responses as every axis sees it: padding blanked, everything but the policy's own tensors detached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tepo_lab.errors import ObjectiveError


class BatchTotals(NamedTuple):
    """Normalisers of one mini-batch (one optimiser step), over all of its micro-batches and ranks.

    Attributes:
        tokens: number of valid tokens, N.
        sequences: number of responses with at least one valid token, S.
    """

    tokens: int | float | Tensor
    sequences: int | float | Tensor


def batch_totals(response_mask: Tensor) -> BatchTotals:
    """Counts of a mask (B, T), as scalar tensors on its device so that nothing waits for a GPU."""
    lengths = response_mask.bool().sum(-1)
    return BatchTotals(lengths.sum(), lengths.count_nonzero())


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors of one (micro-)batch, (B, T) unless said otherwise, zero wherever `valid` is False.

    `PolicyLoss` checks that the optional ones that its choices read are there.

    Attributes:
        log_probs: log-probabilities of the sampled tokens under the current policy, nats, with gradient.
        old_log_probs: the same under the policy of the rollout.
        log_ratio: `log_probs - old_log_probs`, with gradient.
        advantages: advantage of each token, before any shaping.
        valid, padding: boolean masks, each the other's complement.
        lengths: valid tokens of each response, (B,).
        tokens: valid tokens here, scalar tensor.
        totals: normalisers of the mini-batch, at least 1.
        entropy, old_entropy: entropies of the two policies, nats, or None where not given.
        full_kl: KL(current || old) over the vocabulary, nats, or None where not given.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    log_ratio: Tensor
    advantages: Tensor
    valid: Tensor
    padding: Tensor
    lengths: Tensor
    tokens: Tensor
    totals: BatchTotals
    entropy: Tensor | None
    old_entropy: Tensor | None
    full_kl: Tensor | None

    def mean(self, values: Tensor) -> Tensor:
        """Mean over the valid tokens of values (B, T) that are zero elsewhere."""
        return values.sum() / self.tokens.clamp(min=1)


def full_kl_from_logits(logits: Tensor, old_logits: Tensor) -> Tensor:
    """KL(pi || pi_old) = sum_v pi log(pi / pi_old) of every token, (B, T), from logits (B, T, V) over temperature."""
    log_pi = logits.log_softmax(-1)
    return (log_pi.exp() * (log_pi - old_logits.detach().log_softmax(-1))).sum(-1)


def _same_shape(shape: torch.Size, **tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape != shape:
            raise ObjectiveError(
                f"policy_loss: {name} has shape {tuple(tensor.shape)}, but log_probs has {tuple(shape)}; "
                f"give both one value per response token (B, T)."
            )


def _at_least_one(count: int | float | Tensor) -> int | float | Tensor:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def make_batch(
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
) -> Batch:
    """Checks shapes and blanks padding before any arithmetic, so that NaN there reaches no value and no gradient.

    Advantages may be (B, T) or one per response (B,). Half-precision log-probabilities are widened to float32.
    """
    if log_probs.dim() != 2:
        raise ObjectiveError(f"policy_loss: log_probs has shape {tuple(log_probs.shape)}; give it as (B, T).")
    if advantages.dim() == 1 and len(advantages) == len(log_probs):
        advantages = advantages.unsqueeze(-1).expand_as(log_probs)
    _same_shape(log_probs.shape, old_log_probs=old_log_probs, advantages=advantages, response_mask=response_mask)
    _same_shape(log_probs.shape, entropy=entropy, old_entropy=old_entropy, full_kl=full_kl)
    dtype = torch.float32 if log_probs.dtype in (torch.float16, torch.bfloat16) else log_probs.dtype
    valid = response_mask.bool()
    padding = ~valid

    def blank(tensor: Tensor) -> Tensor:
        return tensor.to(dtype).masked_fill(padding, 0.0)

    if full_kl is None and logits is not None and old_logits is not None:
        _same_shape(log_probs.shape, **{"logits[..., 0]": logits[..., 0], "old_logits[..., 0]": old_logits[..., 0]})
        hole = padding.unsqueeze(-1)
        full_kl = full_kl_from_logits(
            logits.to(dtype).masked_fill(hole, 0.0), old_logits.to(dtype).masked_fill(hole, 0.0)
        )
    log_probs, old_log_probs = blank(log_probs), blank(old_log_probs.detach())
    lengths = valid.sum(-1)
    tokens = lengths.sum()
    counts = totals if totals is not None else BatchTotals(tokens, lengths.count_nonzero())
    return Batch(
        log_probs=log_probs,
        old_log_probs=old_log_probs,
        log_ratio=log_probs - old_log_probs,
        advantages=blank(advantages.detach()),
        valid=valid,
        padding=padding,
        lengths=lengths,
        tokens=tokens,
        totals=BatchTotals(_at_least_one(counts.tokens), _at_least_one(counts.sequences)),
        entropy=None if entropy is None else blank(entropy),
        old_entropy=None if old_entropy is None else blank(old_entropy.detach()),
        full_kl=None if full_kl is None else blank(full_kl),
    )
