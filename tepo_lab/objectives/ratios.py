"""Axis `ratio`: how far the current policy has moved from the policy of the rollout, one weight per token.

Every function takes the batch and a gradient form and returns (B, T). The forms share the value and differ in what
reaches the log-probabilities:

- `full`: autograd of the ratio itself.
- `token`: token t's weight moves log-prob t alone, as if it were its own ratio (the GSPO-token form, arXiv 2507.18071).
- `line21`: as `token`, over the number of tokens that the ratio averages (TEPO, Algorithm 1 line 21).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tepo_lab.objectives.batch import Batch

TOKEN_LOG_RATIO_LIMIT = 20.0
"""Token log-ratios are clamped to +-20 before exp, as verl 0.9.1 does."""
MEAN_LOG_RATIO_LIMIT = 10.0
"""Averaged log-ratios are clamped to at most 10 before exp, as verl 0.9.1 does for GSPO."""


def _own_token_only(log_weight: Tensor, averaged: Tensor, log_ratio: Tensor, gradient: str) -> Tensor:
    """The log-weight (B, T) whose gradient is redirected to its own token, for the forms other than `full`."""
    if gradient == "full":
        return log_weight
    own = log_ratio - log_ratio.detach()
    return log_weight.detach() + (own / averaged if gradient == "line21" else own)


def token(batch: Batch, gradient: str) -> Tensor:
    """pi(y_t) / pi_old(y_t), each token for itself (PPO, GRPO, DAPO); the same under every gradient form."""
    return batch.log_ratio.clamp(-TOKEN_LOG_RATIO_LIMIT, TOKEN_LOG_RATIO_LIMIT).exp()


def sequence(batch: Batch, gradient: str) -> Tensor:
    """Geometric mean of the token ratios, one per response, on all of its tokens (TEPO Sec. 3.3.1; GSPO)."""
    lengths = batch.lengths.clamp(min=1).unsqueeze(-1)
    log_weight = batch.log_ratio.sum(-1, keepdim=True) / lengths
    if gradient == "full":
        return log_weight.clamp(max=MEAN_LOG_RATIO_LIMIT).exp().expand_as(batch.log_ratio)
    return _own_token_only(log_weight, lengths, batch.log_ratio, gradient).clamp(max=MEAN_LOG_RATIO_LIMIT).exp()


def prefix(batch: Batch, gradient: str) -> Tensor:
    """Geometric mean of the token ratios up to and including each token (TEPO Table 5, sentence prefix)."""
    so_far = batch.valid.cumsum(-1).clamp(min=1)
    log_weight = batch.log_ratio.cumsum(-1) / so_far
    return _own_token_only(log_weight, so_far, batch.log_ratio, gradient).clamp(max=MEAN_LOG_RATIO_LIMIT).exp()


def none(batch: Batch, gradient: str) -> Tensor:
    """No importance sampling: 1 everywhere."""
    return torch.ones_like(batch.log_ratio.detach())


RATIOS: dict[str, Callable[[Batch, str], Tensor]] = {
    "token": token,
    "sequence": sequence,
    "prefix": prefix,
    "none": none,
}
