"""Axis `surrogate`: the loss of each token from its ratio and its advantage, to be minimised.

Every function takes the ratio (B, T), the advantages (B, T), the log-probabilities (B, T) and the two bounds of the
ratio, 1 - clip_low and 1 + clip_high, and returns the loss (B, T) and where the clip takes hold, (B, T) boolean.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Surrogate = Callable[[Tensor, Tensor, Tensor, float, float], tuple[Tensor, Tensor]]


def ppo_clip(ratio: Tensor, advantages: Tensor, log_probs: Tensor, lower: float, upper: float) -> tuple[Tensor, Tensor]:
    """max(-A r, -A clip(r)), the pessimistic bound of PPO (arXiv 1707.06347 Eq. 7)."""
    minus = -advantages
    free, clipped = minus * ratio, minus * ratio.clamp(lower, upper)
    return torch.maximum(free, clipped), clipped.detach() > free.detach()


def printed_clip(
    ratio: Tensor, advantages: Tensor, log_probs: Tensor, lower: float, upper: float
) -> tuple[Tensor, Tensor]:
    """-A min(r, clip(r)) as TEPO Eq. 4 prints it: min(r, 1 + clip_high) whatever the sign of A, no lower bound."""
    return -advantages * ratio.clamp(max=upper), ratio.detach() > upper


def unclipped(
    ratio: Tensor, advantages: Tensor, log_probs: Tensor, lower: float, upper: float
) -> tuple[Tensor, Tensor]:
    """-A r (KL-Cov; TEPO Algorithm 1 line 15)."""
    return -advantages * ratio, torch.zeros_like(ratio, dtype=torch.bool)


def detached_clip(
    ratio: Tensor, advantages: Tensor, log_probs: Tensor, lower: float, upper: float
) -> tuple[Tensor, Tensor]:
    """-sg[clip(r)] A log pi: REINFORCE with a capped, constant weight (CISPO, arXiv 2506.13585)."""
    ratio = ratio.detach()
    weight = ratio.clamp(lower, upper)
    return -(weight * advantages) * log_probs, weight != ratio


def log_likelihood(
    ratio: Tensor, advantages: Tensor, log_probs: Tensor, lower: float, upper: float
) -> tuple[Tensor, Tensor]:
    """-A log pi, without any ratio (GPG, arXiv 2504.02546)."""
    return -advantages * log_probs, torch.zeros_like(ratio, dtype=torch.bool)


SURROGATES: dict[str, Surrogate] = {
    "ppo_clip": ppo_clip,
    "printed_clip": printed_clip,
    "unclipped": unclipped,
    "detached_clip": detached_clip,
    "log_likelihood": log_likelihood,
}


def dual_clip(loss: Tensor, advantages: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Bounds the loss of tokens with A < 0 by -A * limit (arXiv 1912.09729); returns it and where the bound holds."""
    bound = -advantages * limit
    held = (advantages < 0) & (loss.detach() > bound)
    return torch.where(held, bound, loss), held
