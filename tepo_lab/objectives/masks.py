"""Axis `where`: the tokens on which a penalty acts.

Every function takes the batch, the entropy change (B, T; None for the choices that do not read it), a tolerance in
nats and a fraction of tokens, and returns a boolean mask (B, T), False on padding. Signs are strict: a token with
A = 0, or whose entropy moved by no more than the tolerance, is in neither of the two cells.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tepo_lab.objectives.batch import Batch
from tepo_lab.objectives.entropy import covariance

Where = Callable[[Batch, Tensor | None, float, float], Tensor]


def everywhere(batch: Batch, change: Tensor | None, tolerance: float, fraction: float) -> Tensor:
    """Every valid token."""
    return batch.valid


def advantage_positive_entropy_falling(
    batch: Batch, change: Tensor | None, tolerance: float, fraction: float
) -> Tensor:
    """A > 0 and dH < 0 (TEPO Eq. 4)."""
    assert change is not None
    return (batch.advantages > 0) & (change < -tolerance)


def advantage_negative_entropy_rising(batch: Batch, change: Tensor | None, tolerance: float, fraction: float) -> Tensor:
    """A < 0 and dH > 0 (TEPO Table 3, Panel E)."""
    assert change is not None
    return (batch.advantages < 0) & (change > tolerance)


def union(batch: Batch, change: Tensor | None, tolerance: float, fraction: float) -> Tensor:
    """Either of the two cells (TEPO Table 3, Panel E)."""
    falling = advantage_positive_entropy_falling(batch, change, tolerance, fraction)
    return falling | advantage_negative_entropy_rising(batch, change, tolerance, fraction)


def top_covariance(batch: Batch, change: Tensor | None, tolerance: float, fraction: float) -> Tensor:
    """The max(1, int(N * fraction)) valid tokens of highest covariance (KL-Cov, arXiv 2505.22617)."""
    tokens = int(batch.tokens)
    scores = covariance(batch).masked_fill(batch.padding, -torch.inf).flatten()
    chosen = scores.topk(min(tokens, max(1, int(tokens * fraction)))).indices
    return torch.zeros_like(batch.valid).flatten().index_fill(0, chosen, True).view_as(batch.valid)


WHERE: dict[str, Where] = {
    "all": everywhere,
    "advantage_positive_entropy_falling": advantage_positive_entropy_falling,
    "advantage_negative_entropy_rising": advantage_negative_entropy_rising,
    "union": union,
    "top_covariance": top_covariance,
}
READS_ENTROPY_CHANGE = frozenset({"advantage_positive_entropy_falling", "advantage_negative_entropy_rising", "union"})
