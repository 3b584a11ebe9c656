"""Axes `selection` and `weights`: constant factors on the loss of each token, computed over the whole mini-batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tepo_lab.objectives.batch import Batch
from tepo_lab.objectives.entropy import covariance, steer_estimate
from tepo_lab.schema.objective import Selection, Weights


def clip_cov(batch: Batch, clipped: Tensor, generator: torch.Generator | None, settings: Selection) -> Tensor:
    """Clip-Cov (arXiv 2505.22617): drops max(1, int(N * fraction)) random tokens with lower < covariance < upper.

    Args: clipped (B, T) tokens that the surrogate clips already, which are not drawn; generator of the draw (default:
    torch's global one on the CPU). Returns the tokens dropped, (B, T) boolean. They still count in the normalisers.
    """
    scores = covariance(batch)
    is_candidate = (scores > settings.lower) & (scores < settings.upper) & batch.valid & ~clipped
    candidates = is_candidate.flatten().nonzero().squeeze(-1)
    count = max(1, int(settings.fraction * int(batch.tokens)))
    device = "cpu" if generator is None else generator.device
    drawn = torch.randperm(len(candidates), generator=generator, device=device)[:count]
    chosen = candidates[drawn.to(candidates.device)]
    return torch.zeros_like(batch.valid).flatten().index_fill(0, chosen, True).view_as(batch.valid)


SELECTIONS: dict[str, Callable[[Batch, Tensor, torch.Generator | None, Selection], Tensor]] = {"clip_cov": clip_cov}


def steer(batch: Batch, settings: Weights) -> Tensor:
    """STEER (arXiv 2510.10150): the larger a token's estimated entropy change, the smaller its weight.

    exp: low ** (size / max(largest, 0.02)); linear: from `high` at the smallest to `low` at the largest. Within
    [low, high]; extremes over the mini-batch's valid tokens. Returns (B, T); its value on padding means nothing.
    """
    size, low, high = steer_estimate(batch).abs(), settings.low, settings.high
    largest = size.amax()
    if settings.form == "exp":
        rate = -math.log(low) / largest.clamp(min=0.02)
        return (-rate * size).exp().clamp(low, high)
    smallest = size.masked_fill(batch.padding, torch.inf).amin()
    spread = largest - smallest
    weights = high - (size - smallest) * ((high - low) / spread)
    return torch.where(spread > 0, weights.clamp(low, high), torch.full_like(weights, (low + high) / 2))


WEIGHTS: dict[str, Callable[[Batch, Weights], Tensor]] = {"steer": steer}
