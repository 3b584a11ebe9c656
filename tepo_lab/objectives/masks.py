"""Axis `where`: the tokens on which a penalty acts.

Every function takes the batch, the entropy change (B, T) and the penalty's settings, and returns a boolean mask (B, T),
False on padding. The change is 0 where it is within the objective's tolerance, and None for choices that do not read
it. Signs are strict: a token with A = 0, or whose entropy did not change, is in neither of the two cells.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tepo_lab.objectives.batch import Batch
from tepo_lab.objectives.entropy import covariance
from tepo_lab.schema.objective import Penalty


def everywhere(batch: Batch, change: Tensor | None, settings: Penalty) -> Tensor:
    """Every valid token."""
    return batch.valid


def advantage_positive_entropy_falling(batch: Batch, change: Tensor | None, settings: Penalty) -> Tensor:
    """A > 0 and dH < 0 (TEPO Eq. 4)."""
    assert change is not None
    return (batch.advantages > 0) & (change < 0)


def advantage_negative_entropy_rising(batch: Batch, change: Tensor | None, settings: Penalty) -> Tensor:
    """A < 0 and dH > 0 (TEPO Table 3, Panel E)."""
    assert change is not None
    return (batch.advantages < 0) & (change > 0)


def union(batch: Batch, change: Tensor | None, settings: Penalty) -> Tensor:
    """Either of the two cells (TEPO Table 3, Panel E)."""
    falling = advantage_positive_entropy_falling(batch, change, settings)
    return falling | advantage_negative_entropy_rising(batch, change, settings)


def top_covariance(batch: Batch, change: Tensor | None, settings: Penalty) -> Tensor:
    """The max(1, int(N * top_fraction)) valid tokens of highest covariance (KL-Cov, arXiv 2505.22617)."""
    tokens = int(batch.tokens)
    scores = covariance(batch).masked_fill(batch.padding, -torch.inf).flatten()
    chosen = scores.topk(min(tokens, max(1, int(tokens * settings.top_fraction)))).indices
    return torch.zeros_like(batch.valid).flatten().index_fill(0, chosen, True).view_as(batch.valid)


WHERE: dict[str, Callable[[Batch, Tensor | None, Penalty], Tensor]] = {
    "all": everywhere,
    "advantage_positive_entropy_falling": advantage_positive_entropy_falling,
    "advantage_negative_entropy_rising": advantage_negative_entropy_rising,
    "union": union,
    "top_covariance": top_covariance,
}
