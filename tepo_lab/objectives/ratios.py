"""Axis `ratio`: how far the current policy has moved from the policy of the rollout, one weight per token.

Every function takes the batch and the objective's settings and returns (B, T). The settings' gradient forms share the
value and differ in what reaches the log-probabilities:

- `ratio_gradient: full`: autograd of the ratio itself.
- `ratio_gradient: token`: token t's weight moves log-prob t alone, as if it were its own ratio (the GSPO-token form,
  arXiv 2507.18071).
- `gradient: line21`: as `token`, over the number of tokens that the ratio averages (TEPO, Algorithm 1 line 21).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tepo_lab.objectives.batch import Batch
from tepo_lab.schema.objective import Objective

TOKEN_LOG_RATIO_LIMIT = 20.0
"""Token log-ratios are clamped to +-20 before exp, as verl 0.9.1 does."""
MEAN_LOG_RATIO_LIMIT = 10.0
"""Averaged log-ratios are clamped to at most 10 before exp, as verl 0.9.1 does for GSPO."""


def token(batch: Batch, settings: Objective) -> Tensor:
    """pi(y_t) / pi_old(y_t), each token for itself (PPO, GRPO, DAPO); the same under every gradient form."""
    return batch.log_ratio.clamp(-TOKEN_LOG_RATIO_LIMIT, TOKEN_LOG_RATIO_LIMIT).exp()


def sequence(batch: Batch, settings: Objective) -> Tensor:
    """Geometric mean of the token ratios, one per response, on all of its tokens (TEPO Sec. 3.3.1; GSPO)."""
    return _averaged(batch, batch.log_ratio.sum(-1, keepdim=True), batch.lengths.unsqueeze(-1), settings)


def prefix(batch: Batch, settings: Objective) -> Tensor:
    """Geometric mean of the token ratios up to and including each token (TEPO Table 5, sentence prefix)."""
    return _averaged(batch, batch.log_ratio.cumsum(-1), batch.valid.cumsum(-1), settings)


def none(batch: Batch, settings: Objective) -> Tensor:
    """No importance sampling: 1 everywhere."""
    return torch.ones_like(batch.log_ratio.detach())


RATIOS: dict[str, Callable[[Batch, Objective], Tensor]] = {
    "token": token,
    "sequence": sequence,
    "prefix": prefix,
    "none": none,
}


def _averaged(batch: Batch, log_ratio_sum: Tensor, tokens: Tensor, settings: Objective) -> Tensor:
    """exp(sum / tokens), (B, T), from sums of log-ratios and their numbers of tokens, (B, T) or (B, 1)."""
    tokens = tokens.clamp(min=1)
    log_weight = log_ratio_sum / tokens
    if settings.gradient == "line21" or settings.ratio_gradient == "token":
        own = batch.log_ratio - batch.log_ratio.detach()
        log_weight = log_weight.detach() + (own / tokens if settings.gradient == "line21" else own)
    return log_weight.clamp(max=MEAN_LOG_RATIO_LIMIT).exp().expand_as(batch.log_ratio)
