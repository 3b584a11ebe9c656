"""Axes `entropy_change` and `shaping`, and the two statistics that other axes share with them.

No gradient flows through anything here but `entropy_from_logits`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tepo_lab.objectives.batch import Batch
from tepo_lab.schema.objective import Shaping


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Entropy in nats, (...), of softmax(logits (..., V)); divide the logits by the rollout temperature first."""
    return logits.logsumexp(-1) - (logits.softmax(-1) * logits).sum(-1)


def covariance(batch: Batch) -> Tensor:
    """(A - mean A)(log pi - mean log pi), means over the batch's tokens (Cui et al., arXiv 2505.22617)."""
    advantages, log_probs = batch.advantages, batch.log_probs.detach()
    product = (advantages - batch.mean(advantages)) * (log_probs - batch.mean(log_probs))
    return product.masked_fill(batch.padding, 0.0)


def measured(batch: Batch) -> Tensor:
    """H(pi) - H(pi_old) of each token's distribution, as both were computed (TEPO Sec. 3.3.2)."""
    assert batch.entropy is not None
    assert batch.old_entropy is not None
    return batch.entropy.detach() - batch.old_entropy


def covariance_estimate(batch: Batch) -> Tensor:
    """-covariance, the first-order change under a natural policy gradient step (TEPO Eq. 18, 19); of no scale."""
    return -covariance(batch)


def steer_estimate(batch: Batch) -> Tensor:
    """-A / pi_old * pi (1 - pi) (log pi + H_old) (STEER, arXiv 2510.10150); 0 where that is not finite."""
    assert batch.old_entropy is not None
    log_probs = batch.log_probs.detach()
    pi, pi_old = log_probs.exp().clamp(1e-8, 1 - 1e-8), batch.old_log_probs.exp().clamp(1e-8, 1.0)
    change = -batch.advantages / pi_old * pi * (1 - pi) * (log_probs + batch.old_entropy)
    return change.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


ENTROPY_CHANGES: dict[str, Callable[[Batch], Tensor]] = {
    "measured": measured,
    "covariance": covariance_estimate,
    "steer": steer_estimate,
}


def entropy_term(batch: Batch, settings: Shaping) -> Tensor:
    """A + min(coef * H, |A| / kappa), H of the current policy as a constant (Cheng et al., arXiv 2506.14758 Eq. 4-6).

    kappa > 1 keeps the sign of A; a token with A = 0 stays 0.
    """
    assert batch.entropy is not None
    bonus = torch.minimum(settings.coef * batch.entropy.detach(), batch.advantages.abs() / settings.kappa)
    return batch.advantages + bonus


SHAPINGS: dict[str, Callable[[Batch, Shaping], Tensor]] = {"entropy": entropy_term}
