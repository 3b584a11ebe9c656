"""Axis `aggregation`: from the loss of each token to one number (the divisors of verl's `agg_loss`).

Every function takes values (B, T) that are zero outside the response, the length of each response (B,), the
mini-batch's totals and the longest response allowed (tokens), and returns a scalar. Since the totals are the
mini-batch's, the results of its micro-batches add up to the result of the whole.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tepo_lab.objectives.batch import BatchTotals

Aggregation = Callable[[Tensor, Tensor, BatchTotals, int | None], Tensor]


def token_mean(values: Tensor, lengths: Tensor, totals: BatchTotals, longest: int | None) -> Tensor:
    """Every token weighs 1/N (DAPO; TEPO Table 5, token-level aggregation)."""
    return values.sum() / totals.tokens


def seq_mean_token_mean(values: Tensor, lengths: Tensor, totals: BatchTotals, longest: int | None) -> Tensor:
    """Mean over responses of the mean over their tokens (GRPO, GSPO); responses without tokens do not count."""
    return (values.sum(-1) / lengths.clamp(min=1)).sum() / totals.sequences


def seq_mean_token_sum(values: Tensor, lengths: Tensor, totals: BatchTotals, longest: int | None) -> Tensor:
    """Mean over responses of the sum over their tokens."""
    return values.sum() / totals.sequences


def seq_mean_token_sum_norm(values: Tensor, lengths: Tensor, totals: BatchTotals, longest: int | None) -> Tensor:
    """`seq_mean_token_sum` over the longest response allowed, a constant (Dr. GRPO, arXiv 2503.20783)."""
    assert longest is not None, "resolve() requires max_response_length for this aggregation"
    return values.sum() / totals.sequences / longest


def token_sum(values: Tensor, lengths: Tensor, totals: BatchTotals, longest: int | None) -> Tensor:
    """Plain sum over tokens."""
    return values.sum()


AGGREGATIONS: dict[str, Aggregation] = {
    "token-mean": token_mean,
    "seq-mean-token-mean": seq_mean_token_mean,
    "seq-mean-token-sum": seq_mean_token_sum,
    "seq-mean-token-sum-norm": seq_mean_token_sum_norm,
    "token-sum": token_sum,
}
