"""Axes `selection` and `weights`: constant factors on the loss of each token, computed over the whole mini-batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tepo_lab.objectives.batch import Batch
from tepo_lab.objectives.entropy import covariance, steer_estimate

Selection = Callable[[Batch, Tensor, float, float, float, torch.Generator | None], Tensor]


def clip_cov(
    batch: Batch, clipped: Tensor, fraction: float, lower: float, upper: float, generator: torch.Generator | None
) -> Tensor:
    """Clip-Cov (arXiv 2505.22617): drops max(1, int(N * fraction)) random tokens with lower < covariance < upper.

    Args: clipped (B, T) tokens that the surrogate clips already, which are not drawn. Returns the tokens dropped,
    (B, T) boolean. They still count in the normalisers.
    """
    scores = covariance(batch)
    candidates = ((scores > lower) & (scores < upper) & batch.valid & ~clipped).flatten().nonzero().squeeze(-1)
    count = max(1, int(fraction * int(batch.tokens)))
    device = "cpu" if generator is None else generator.device
    drawn = torch.randperm(len(candidates), generator=generator, device=device)[:count]
    chosen = candidates[drawn.to(candidates.device)]
    return torch.zeros_like(batch.valid).flatten().index_fill(0, chosen, True).view_as(batch.valid)


SELECTIONS: dict[str, Selection] = {"clip_cov": clip_cov}


def _exponential(size: Tensor, batch: Batch, low: float, high: float) -> Tensor:
    rate = -math.log(low) / size.amax().clamp(min=0.02)
    return (-rate * size).exp().clamp(low, high)


def _linear(size: Tensor, batch: Batch, low: float, high: float) -> Tensor:
    smallest, largest = size.masked_fill(batch.padding, torch.inf).amin(), size.amax()
    spread = largest - smallest
    weights = high - (size - smallest) * ((high - low) / spread)
    return torch.where(spread > 0, weights.clamp(low, high), torch.full_like(weights, (low + high) / 2))


STEER_FORMS: dict[str, Callable[[Tensor, Batch, float, float], Tensor]] = {"exp": _exponential, "linear": _linear}


def steer(batch: Batch, form: str, low: float, high: float) -> Tensor:
    """STEER (arXiv 2510.10150): the larger a token's estimated entropy change, the smaller its weight.

    exp: low ** (size / max(largest, 0.02)); linear: from `high` at the smallest to `low` at the largest. Within
    [low, high]; extremes over the mini-batch's valid tokens. Returns (B, T); its value on padding means nothing.
    """
    return STEER_FORMS[form](steer_estimate(batch).abs(), batch, low, high)


WEIGHTS: dict[str, Callable[[Batch, str, float, float], Tensor]] = {"steer": steer}
