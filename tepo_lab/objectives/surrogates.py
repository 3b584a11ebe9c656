"""Axis `surrogate`: the loss of each token from its ratio and its advantage, to be minimised.

Every function takes the batch (its advantages shaped, where the objective shapes them), the ratio (B, T) and the
objective's settings, and returns the loss (B, T) and where the clip takes hold, (B, T) boolean. The ratio is clipped
to [1 - clip_low, 1 + clip_high].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tepo_lab.objectives.batch import Batch
from tepo_lab.schema.objective import Objective


def ppo_clip(batch: Batch, ratio: Tensor, settings: Objective) -> tuple[Tensor, Tensor]:
    """max(-A r, -A clip(r)), the pessimistic bound of PPO (arXiv 1707.06347 Eq. 7)."""
    minus = -batch.advantages
    free, clipped = minus * ratio, minus * ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return torch.maximum(free, clipped), clipped.detach() > free.detach()


def printed_clip(batch: Batch, ratio: Tensor, settings: Objective) -> tuple[Tensor, Tensor]:
    """-A min(r, clip(r)) as TEPO Eq. 4 prints it: min(r, 1 + clip_high) whatever the sign of A, no lower bound."""
    upper = 1 + settings.clip_high
    return -batch.advantages * ratio.clamp(max=upper), ratio.detach() > upper


def unclipped(batch: Batch, ratio: Tensor, settings: Objective) -> tuple[Tensor, Tensor]:
    """-A r (KL-Cov; TEPO Algorithm 1 line 15)."""
    return -batch.advantages * ratio, torch.zeros_like(ratio, dtype=torch.bool)


def detached_clip(batch: Batch, ratio: Tensor, settings: Objective) -> tuple[Tensor, Tensor]:
    """-sg[clip(r)] A log pi: REINFORCE with a capped, constant weight (CISPO, arXiv 2506.13585)."""
    ratio = ratio.detach()
    weight = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return -(weight * batch.advantages) * batch.log_probs, weight != ratio


def log_likelihood(batch: Batch, ratio: Tensor, settings: Objective) -> tuple[Tensor, Tensor]:
    """-A log pi, without any ratio (GPG, arXiv 2504.02546)."""
    return -batch.advantages * batch.log_probs, torch.zeros_like(ratio, dtype=torch.bool)


SURROGATES: dict[str, Callable[[Batch, Tensor, Objective], tuple[Tensor, Tensor]]] = {
    "ppo_clip": ppo_clip,
    "printed_clip": printed_clip,
    "unclipped": unclipped,
    "detached_clip": detached_clip,
    "log_likelihood": log_likelihood,
}


def dual_clip(batch: Batch, loss: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Bounds the loss of tokens with A < 0 by -A * limit (arXiv 1912.09729); returns it and where the bound is used."""
    bound = -batch.advantages * limit
    is_bounded = (batch.advantages < 0) & (loss.detach() > bound)
    return torch.where(is_bounded, bound, loss), is_bounded
