"""Axis `aggregation`: from the loss of each token to one number (the divisors of verl's `agg_loss`).

Every function takes the batch, values (B, T) that are zero outside the responses, and the objective's settings, and
returns a scalar. Since `batch.totals` are the mini-batch's, the results of its micro-batches add up to its own.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tepo_lab.objectives.batch import Batch
from tepo_lab.schema.objective import Objective


def token_mean(batch: Batch, values: Tensor, settings: Objective) -> Tensor:
    """Every token weighs 1/N (DAPO; TEPO Table 5, token-level aggregation)."""
    return values.sum() / batch.totals.tokens


def seq_mean_token_mean(batch: Batch, values: Tensor, settings: Objective) -> Tensor:
    """Mean over responses of the mean over their tokens (GRPO, GSPO); responses without tokens do not count."""
    return (values.sum(-1) / batch.lengths.clamp(min=1)).sum() / batch.totals.sequences


def seq_mean_token_sum(batch: Batch, values: Tensor, settings: Objective) -> Tensor:
    """Mean over responses of the sum over their tokens."""
    return values.sum() / batch.totals.sequences


def seq_mean_token_sum_norm(batch: Batch, values: Tensor, settings: Objective) -> Tensor:
    """`seq_mean_token_sum` over `max_response_length` (tokens), a constant (Dr. GRPO, arXiv 2503.20783)."""
    assert settings.max_response_length is not None
    return values.sum() / batch.totals.sequences / settings.max_response_length


def token_sum(batch: Batch, values: Tensor, settings: Objective) -> Tensor:
    """Plain sum over tokens."""
    return values.sum()


AGGREGATIONS: dict[str, Callable[[Batch, Tensor, Objective], Tensor]] = {
    "token-mean": token_mean,
    "seq-mean-token-mean": seq_mean_token_mean,
    "seq-mean-token-sum": seq_mean_token_sum,
    "seq-mean-token-sum-norm": seq_mean_token_sum_norm,
    "token-sum": token_sum,
}
