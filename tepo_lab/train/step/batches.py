"""From groups to mini-batches (one optimizer step each) and micro-batches (one forward and backward pass each)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tepo_lab.objectives import BatchTotals
from tepo_lab.rollout.engine import Response
from tepo_lab.schema.profile import Trainer
from tepo_lab.train.distributed.process_group import ProcessGroup
from tepo_lab.train.step.collect import Group
from tepo_lab.train.step.scoring import Scorer, Sequences, TokenScores

#: One response to learn from: the token ids of its prompt, the response, its advantage.
Row = tuple[Sequence[int], Response, float]


@dataclass(frozen=True)
class MicroBatch:
    """B responses of one forward pass: advantages (B, 1) and, once computed, the rollout policy's scores `old`.

    `rows`: the indices of the responses in their mini-batch; none in a dummy micro-batch.
    `sampler_log_probs`: the sampler's own log-probs of each response, where the sampler returns them.
    """

    sequences: Sequences
    advantages: Tensor
    rows: tuple[int, ...]
    old: TokenScores | None = None
    sampler_log_probs: tuple[tuple[float, ...], ...] = ()

    @property
    def mask(self) -> Tensor:
        """The response mask (B, T) bool, on the advantages' device."""
        return self.sequences.response_mask.to(self.advantages.device)


@dataclass(frozen=True)
class MiniBatch:
    """This rank's micro-batches of one update, and the normalisers over the micro-batches of all ranks."""

    micro_batches: list[MicroBatch]
    totals: BatchTotals

    def with_old_scores(self, score: Callable[[MicroBatch], TokenScores]) -> MiniBatch:
        """The same with `old` set to `score` of each micro-batch."""
        return replace(self, micro_batches=[replace(each, old=score(each)) for each in self.micro_batches])


def make_mini_batches(
    groups: Sequence[Group], trainer: Trainer, scorer: Scorer, pad_id: int, process_group: ProcessGroup
) -> list[MiniBatch]:
    """The groups as the mini-batches of a full step (fewer if there are fewer groups), sizes differing by one at most.

    A micro-batch has at most `trainer.micro_batch_tokens` tokens (padding counted, shared prompts counted once), or
    one longer response. Every rank gets as many micro-batches as the rank with most.
    """
    count = min(trainer.prompts_per_step // trainer.mini_batch_prompts, len(groups))
    bounds = [index * len(groups) // count for index in range(count + 1)] if count else []
    budget = trainer.micro_batch_tokens
    return [_mini_batch(groups[first:last], budget, scorer, pad_id, process_group) for first, last in pairwise(bounds)]


def _mini_batch(
    groups: Sequence[Group], budget: int | None, scorer: Scorer, pad_id: int, process_group: ProcessGroup
) -> MiniBatch:
    rows: list[Row] = [
        (group.prompt_ids, response, advantage)
        for group in groups
        for response, advantage in zip(group.responses, group.advantages, strict=True)
    ]
    own = _rows_of_rank(rows, process_group)
    if budget is None:
        parts = [own] if own else []
    elif scorer.shares_prompts:
        parts = _split_in_order(rows, own, budget)
    else:
        parts = _split_by_length(rows, own, budget)
    micro_batches = [_micro_batch(rows, part, scorer, pad_id) for part in parts]
    # Sharded weights are gathered by all ranks together, so all must make the same number of forward passes.
    most = max(process_group.all_gather(len(micro_batches)))
    micro_batches += [_dummy_micro_batch(scorer, pad_id)] * (most - len(micro_batches))
    lengths = [len(response.token_ids) for _, response, _ in rows]
    return MiniBatch(micro_batches, BatchTotals(sum(lengths), sum(length > 0 for length in lengths)))


def _rows_of_rank(rows: Sequence[Row], process_group: ProcessGroup) -> list[int]:
    """This rank's rows: consecutive, so that groups stay together, with about the same tokens on each rank."""
    size, rank = process_group.world_size, process_group.rank
    if size == 1:
        return list(range(len(rows)))
    ends = list(accumulate(map(_tokens, rows)))
    # A row belongs to the rank in whose share of all tokens the row's middle is.
    middles = [end - _tokens(row) / 2 for end, row in zip(ends, rows, strict=True)]
    return [index for index, middle in enumerate(middles) if int(middle * size / ends[-1]) == rank]


def _split_in_order(rows: Sequence[Row], own: Sequence[int], budget: int) -> list[list[int]]:
    """Consecutive rows, at most `budget` tokens in each part, the prompt of neighbours counted once."""
    parts: list[list[int]] = []
    used = 0
    for index in own:
        prompt, response, _ = rows[index]
        is_shared = bool(parts) and rows[parts[-1][-1]][0] is prompt
        tokens = len(response.token_ids) + (0 if is_shared else len(prompt))
        if not parts or used + tokens > budget:
            parts.append([])
            used, tokens = 0, len(response.token_ids) + len(prompt)
        parts[-1].append(index)
        used += tokens
    return parts


def _split_by_length(rows: Sequence[Row], own: Sequence[int], budget: int) -> list[list[int]]:
    """Rows of similar length, at most `budget` tokens in each part when padded to the longest."""
    parts: list[list[int]] = []
    for index in sorted(own, key=lambda index: _tokens(rows[index]), reverse=True):
        # Longest first: the first row of a part determines its width.
        width = _tokens(rows[parts[-1][0]]) if parts else 0
        if not parts or (len(parts[-1]) + 1) * width > budget:
            parts.append([])
        parts[-1].append(index)
    return [sorted(part) for part in parts]


def _tokens(row: Row) -> int:
    prompt, response, _ = row
    return len(prompt) + len(response.token_ids)


def _micro_batch(rows: Sequence[Row], indices: Sequence[int], scorer: Scorer, pad_id: int) -> MicroBatch:
    prompts, responses, advantages = zip(*(rows[index] for index in indices), strict=True)
    return MicroBatch(
        scorer.pack(prompts, [response.token_ids for response in responses], pad_id),
        torch.tensor(advantages, device=scorer.model.device).unsqueeze(-1),
        tuple(indices),
        sampler_log_probs=tuple(response.log_probs for response in responses if response.log_probs is not None),
    )


def _dummy_micro_batch(scorer: Scorer, pad_id: int) -> MicroBatch:
    """One token that contributes to no loss."""
    return MicroBatch(scorer.pack([[pad_id]], [[pad_id]], pad_id), torch.zeros(1, 1), ())


def merge_micro_batches(
    micro_batches: Sequence[MicroBatch], scores: Sequence[TokenScores], process_group: ProcessGroup, device: Any
) -> tuple[MicroBatch, TokenScores]:
    """The micro-batches of all ranks and their scores as one on `device`, rows in the mini-batch's order.

    Of the sequences only the response mask is merged: a loss reads nothing else.
    """
    own = [(micro_batch, score) for micro_batch, score in zip(micro_batches, scores, strict=True) if micro_batch.rows]
    if process_group.world_size > 1:
        own = [_moved(*pair, "cpu") for pair in own]
    pairs = [_moved(*pair, device) for of_rank in process_group.all_gather(own) for pair in of_rank]
    order = torch.tensor([row for micro_batch, _ in pairs for row in micro_batch.rows]).argsort().to(device)
    mask = _padded([micro_batch.sequences.response_mask for micro_batch, _ in pairs])[order]
    merged = MicroBatch(
        replace(pairs[0][0].sequences, response_mask=mask),
        torch.cat([micro_batch.advantages for micro_batch, _ in pairs])[order],
        tuple(range(len(order))),
        _merged_scores([micro_batch.old for micro_batch, _ in pairs if micro_batch.old is not None], order),
    )
    return merged, _merged_scores([score for _, score in pairs], order)


def _moved(micro_batch: MicroBatch, scores: TokenScores, device: Any) -> tuple[MicroBatch, TokenScores]:
    """What a loss reads of a micro-batch, and its scores, on `device`."""
    sequences = replace(micro_batch.sequences, response_mask=micro_batch.sequences.response_mask.to(device))
    old = None if micro_batch.old is None else micro_batch.old.to(device)
    moved = replace(micro_batch, sequences=sequences, advantages=micro_batch.advantages.to(device), old=old)
    return moved, scores.to(device)


def _merged_scores(scores: Sequence[TokenScores], order: Tensor) -> TokenScores:
    logits = [each.logits for each in scores if each.logits is not None]
    return TokenScores(
        _padded([each.log_probs for each in scores])[order],
        _padded([each.entropy for each in scores])[order],
        _padded(logits)[order] if logits else None,
    )


def _padded(values: Sequence[Tensor]) -> Tensor:
    """(B, T) or (B, T, V) tensors of several micro-batches concatenated, padded with zeros to the longest T."""
    longest = max(value.shape[1] for value in values)
    trailing = [0, 0] * (values[0].dim() - 2)
    return torch.cat([pad(value, [*trailing, 0, longest - value.shape[1]]) for value in values])
