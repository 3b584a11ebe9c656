"""Sampling with the trainer's own transformers model: any causal language model, no second copy of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tepo_lab.rollout.cache import preallocated_cache
from tepo_lab.rollout.engine import Response, Sampling

#: Finished rows leave the batch when at least this share of it has finished: each time costs a copy of the cache.
COMPACT_AT = 0.25


class TransformersEngine:
    """Decodes with `model` in place; `sync_weights` has nothing to do.

    Args: `model` a causal LM of transformers; `end_ids` the tokens that end a response; `pad_id` fills prompts on the
    left; `sequences_per_batch` how many rows are decoded at once.
    """

    def __init__(self, model: Any, *, end_ids: Sequence[int], pad_id: int, sequences_per_batch: int = 512) -> None:
        self.model = model
        self.end_ids = torch.tensor(sorted(set(end_ids)), device=model.device)
        self.pad_id = pad_id
        self.sequences_per_batch = sequences_per_batch

    def sync_weights(self) -> None:
        """The weights are the trainer's own."""

    def close(self) -> None:
        """Nothing is held besides the model."""

    @torch.no_grad()
    def generate(self, prompts: Sequence[Sequence[int]], *, samples: int, sampling: Sampling) -> list[list[Response]]:
        """`samples` responses to each prompt, in order. Prompts are prefilled once for all their samples."""
        was_training = self.model.training
        self.model.eval()
        noise = torch.Generator(device="cpu").manual_seed(sampling.seed)
        results: list[list[Response]] = [[] for _ in prompts]
        try:
            for first, rows in self._batches(len(prompts), samples):
                chunk = [prompts[index] for index in range(first, first + rows[0])]
                for index, responses in enumerate(self._decode(chunk, rows[1], sampling, noise)):
                    results[first + index] += responses
        finally:
            self.model.train(was_training)
        return results

    def _batches(self, count: int, samples: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """(first prompt, (prompts, samples of each)) so that a batch holds at most `sequences_per_batch` rows."""
        per_prompt = min(samples, self.sequences_per_batch)
        prompts_at_once = max(1, self.sequences_per_batch // per_prompt)
        for first in range(0, count, prompts_at_once):
            remaining = samples
            while remaining:
                taken = min(per_prompt, remaining)
                yield first, (min(prompts_at_once, count - first), taken)
                remaining -= taken

    def _decode(
        self, prompts: Sequence[Sequence[int]], samples: int, sampling: Sampling, noise: torch.Generator
    ) -> list[list[Response]]:
        device = self.model.device
        prompt_ids, prompt_mask = self._left_padded(prompts)
        width, rows = prompt_ids.shape[1], len(prompts) * samples
        limit = sampling.max_new_tokens
        cache = preallocated_cache(self.model.config, width + limit)
        positions = (prompt_mask.cumsum(-1) - 1).clamp(min=0)
        logits = self.model(
            input_ids=prompt_ids,
            attention_mask=prompt_mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        cache.batch_repeat_interleave(samples)
        logits = logits.repeat_interleave(samples, dim=0)
        mask = torch.ones(rows, width + limit, dtype=prompt_mask.dtype, device=device)
        mask[:, :width] = prompt_mask.repeat_interleave(samples, dim=0)
        next_position = prompt_mask.sum(-1, keepdim=True).repeat_interleave(samples, dim=0)

        tokens = torch.full((rows, limit), self.pad_id, dtype=torch.long, device=device)
        lengths = torch.full((rows,), limit, dtype=torch.long, device=device)
        ended = torch.zeros(rows, dtype=torch.bool, device=device)
        # Rows still in the batch, as indices of the original rows. Noise is drawn for every original row, so that
        # which rows have left cannot change what the others sample.
        alive = torch.arange(rows, device=device)
        for step in range(limit):
            chosen = _choose(logits, sampling, _noise(rows, noise, sampling, device)[alive])
            tokens[alive, step] = chosen
            finished = torch.isin(chosen, self.end_ids) & ~ended[alive]
            lengths[alive[finished]] = step + 1
            ended[alive[finished]] = True
            going = ~ended[alive]
            remaining = int(going.sum())
            if remaining == 0 or step == limit - 1:
                break
            if remaining <= (1 - COMPACT_AT) * len(alive):
                kept = going.nonzero().squeeze(-1)
                alive, chosen, mask, next_position = alive[kept], chosen[kept], mask[kept], next_position[kept]
                cache.batch_select_indices(kept)
            logits = self.model(
                input_ids=chosen.unsqueeze(-1),
                attention_mask=mask[:, : width + step + 1],
                position_ids=next_position + step,
                past_key_values=cache,
                use_cache=True,
            ).logits[:, -1]
        return _responses(tokens, lengths, ended, samples)

    def _left_padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        width = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), width), self.pad_id, dtype=torch.long)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
            mask[row, width - len(prompt) :] = 1
        return ids.to(self.model.device), mask.to(self.model.device)


def _noise(rows: int, noise: torch.Generator, sampling: Sampling, device: torch.device) -> Tensor:
    if sampling.temperature == 0:
        return torch.zeros(rows, 1, device=device)
    return torch.rand(rows, 1, generator=noise, dtype=torch.float64).to(device)


def _choose(logits: Tensor, sampling: Sampling, uniform: Tensor) -> Tensor:
    """One token a row from logits (B, V) and uniform draws (B, 1): the inverse of the cumulative distribution.

    Cumulative sums are in float64: in float32 the tail of a vocabulary of 150 thousand would be lost.
    """
    if sampling.temperature == 0:
        return logits.argmax(-1)
    probabilities = torch.softmax(logits.float() / sampling.temperature, dim=-1)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(dim=-1, descending=True)
        # A token stays while the mass before it is below top_p, so the first always stays.
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= sampling.top_p, 0.0)
        probabilities = torch.zeros_like(probabilities).scatter_(-1, order, ordered)
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    target = uniform * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def _responses(tokens: Tensor, lengths: Tensor, ended: Tensor, samples: int) -> list[list[Response]]:
    rows = [
        Response(tuple(ids[:length]), not has_ended)
        for ids, length, has_ended in zip(tokens.tolist(), lengths.tolist(), ended.tolist(), strict=True)
    ]
    return [rows[first : first + samples] for first in range(0, len(rows), samples)]
