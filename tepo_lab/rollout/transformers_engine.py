"""Sampling with the trainer's own transformers model: any causal language model, no second copy of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tepo_lab.rollout.attention import attends_to_all
from tepo_lab.rollout.cache import preallocated_cache
from tepo_lab.rollout.engine import Finished, Prompts, Response, Sampling, ignore_response
from tepo_lab.rollout.noise import uniform

#: Finished rows leave the batch when at least this share of it has finished: each time costs a copy of the cache.
COMPACT_AT = 0.25


#: Tokens of a block of a vocabulary that is searched in two stages.
BLOCK = 1024

#: Positions for which noise is drawn at once.
DRAWN_AT_ONCE = 64


class Draws:
    """The uniform draws of a batch's rows (`samples` of each of `prompts` prompts), position by position.

    `first_prompt` and `first_sample` say which prompts and samples of the whole call these are.
    """

    def __init__(
        self, sampling: Sampling, first_prompt: int, first_sample: int, prompts: int, samples: int, device: torch.device
    ) -> None:
        self.seed = sampling.seed
        self.prompts = torch.arange(first_prompt, first_prompt + prompts, device=device).view(-1, 1, 1)
        self.samples = torch.arange(first_sample, first_sample + samples, device=device).view(-1, 1)
        self._drawn = torch.empty(0)

    def at(self, position: int) -> Tensor:
        """(rows, 1) draws for the token at `position`, which rises by one from call to call."""
        place = position % DRAWN_AT_ONCE
        if place == 0:
            positions = torch.arange(position, position + DRAWN_AT_ONCE, device=self.prompts.device)
            self._drawn = uniform(self.seed, self.prompts, self.samples, positions).flatten(0, 1)
        return self._drawn[:, place : place + 1]


class TransformersEngine:
    """Decodes with `model` in place; `sync_weights` has nothing to do.

    Args: `model` a causal LM of transformers; `end_ids` the tokens that end a response; `pad_id` fills prompts on the
    left; `sequences_per_batch` how many rows are decoded at once.
    """

    #: Whether responses have log-probabilities. The trainer's own model has no need of them.
    gives_log_probs = False

    def __init__(self, model: Any, *, end_ids: Sequence[int], pad_id: int, sequences_per_batch: int = 512) -> None:
        self.model = model
        self.end_ids = torch.tensor(sorted(set(end_ids)), device=model.device)
        self.pad_id = pad_id
        self.sequences_per_batch = sequences_per_batch
        #: Tokens between two counts of the rows that have ended: a GPU is waited for at each.
        self.counts_every = 16 if model.device.type == "cuda" else 1
        #: Whether one mask of what is added to the scores serves all layers.
        self.takes_whole_masks = model.config._attn_implementation.endswith("sdpa") and attends_to_all(model)

    def rest(self) -> None:
        """Each `generate` gives back what it took."""

    def sync_weights(self) -> None:
        """The weights are the trainer's own."""

    def close(self) -> None:
        """There is nothing besides the model."""

    @torch.no_grad()
    def generate(
        self, prompts: Prompts, *, samples: int, sampling: Sampling, finished: Finished = ignore_response
    ) -> list[list[Response]]:
        """`samples` responses to each prompt, in order. Prompts are prefilled once for all their samples.

        Responses are finished when their rows leave the batch.
        """
        was_training = self.model.training
        self.model.eval()
        responses: dict[tuple[int, int], Response] = {}
        try:
            for prompt, sample, rows in self._batches(len(prompts), samples):
                draws = Draws(sampling, sampling.first_prompt + prompt, sample, *rows, device=self.model.device)
                for row, response in self._decode(prompts[prompt : prompt + rows[0]], rows[1], sampling, draws):
                    place = prompt + row // rows[1], sample + row % rows[1]
                    responses[place] = response
                    finished(*place, response)
        finally:
            self.model.train(was_training)
        return [[responses[prompt, sample] for sample in range(samples)] for prompt in range(len(prompts))]

    def _batches(self, count: int, samples: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """(first prompt, first sample, (prompts, samples of each)), so that at most `sequences_per_batch` rows each."""
        per_prompt = min(samples, self.sequences_per_batch)
        prompts_at_once = max(1, self.sequences_per_batch // per_prompt)
        for first in range(0, count, prompts_at_once):
            for sample in range(0, samples, per_prompt):
                yield first, sample, (min(prompts_at_once, count - first), min(per_prompt, samples - sample))

    def _decode(
        self, prompts: Prompts, samples: int, sampling: Sampling, draws: Draws
    ) -> Iterator[tuple[int, Response]]:
        """Rows (`samples` of each prompt) with their responses, some of them while others go on."""
        device = self.model.device
        prompt_ids, prompt_mask = self._left_padded(prompts)
        width, rows = prompt_ids.shape[1], len(prompts) * samples
        limit = sampling.max_new_tokens
        cache = preallocated_cache(self.model.config, width + limit)
        logits = self.model(
            input_ids=prompt_ids,
            attention_mask=prompt_mask,
            position_ids=(prompt_mask.cumsum(-1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        cache.batch_repeat_interleave(samples)
        logits = logits.repeat_interleave(samples, dim=0)
        mask = self._decoding_mask(prompt_mask.repeat_interleave(samples, dim=0), limit)
        next_position = prompt_mask.sum(-1, keepdim=True).repeat_interleave(samples, dim=0)

        tokens = torch.full((rows, limit), self.pad_id, dtype=torch.long, device=device)
        log_probs = torch.zeros(rows, limit, device=device) if self.gives_log_probs else None
        # Rows still in the batch, as indices of the original rows, and which of those have ended.
        alive = torch.arange(rows, device=device)
        ended = torch.zeros(rows, dtype=torch.bool, device=device)
        for step in range(limit):
            chosen = _choose(logits, sampling, draws.at(step)[alive])
            tokens[alive, step] = chosen
            if log_probs is not None:
                log_probs[alive, step] = _log_probs(logits, chosen, sampling)
            ended |= torch.isin(chosen, self.end_ids)
            if step == limit - 1:
                break
            if (step + 1) % self.counts_every == 0:
                remaining = len(ended) - int(ended.sum())
                if remaining == 0:
                    break
                if remaining <= (1 - COMPACT_AT) * len(ended):
                    yield from self._responses(tokens, log_probs, alive[ended], step)
                    rest = (~ended).nonzero().squeeze(-1)
                    alive, chosen, ended = alive[rest], chosen[rest], ended[rest]
                    mask, next_position = mask[rest], next_position[rest]
                    cache.batch_select_indices(rest)
            logits = self.model(
                input_ids=chosen.unsqueeze(-1),
                attention_mask=mask[..., : width + step + 1],
                position_ids=next_position + step,
                past_key_values=cache,
                use_cache=True,
            ).logits[:, -1]
        yield from self._responses(tokens, log_probs, alive, step)

    def _responses(
        self, tokens: Tensor, log_probs: Tensor | None, rows: Tensor, step: int
    ) -> Iterator[tuple[int, Response]]:
        """`rows` with their tokens up to the first that ends a response, and all of a row that has none."""
        written = tokens[rows, : step + 1]
        ends = torch.isin(written, self.end_ids)
        has_ended = ends.any(-1)
        lengths = torch.where(has_ended, ends.int().argmax(-1) + 1, written.shape[1])
        scores = [None] * len(rows) if log_probs is None else log_probs[rows, : step + 1].tolist()
        columns = (rows.tolist(), written.tolist(), lengths.tolist(), has_ended.tolist(), scores)
        for row, ids, length, ended, own in zip(*columns, strict=True):
            yield row, Response(tuple(ids[:length]), not ended, None if own is None else tuple(own[:length]))

    def _decoding_mask(self, prompt_mask: Tensor, limit: int) -> Tensor:
        """The mask of prompts (B, width) and `limit` more tokens, in the form that costs the model least.

        transformers makes a mask of four dimensions out of one of two at every token, unless it is given that.
        """
        rows, width = prompt_mask.shape
        mask = prompt_mask.new_ones(rows, width + limit)
        mask[:, :width] = prompt_mask
        if not self.takes_whole_masks:
            return mask
        added = torch.zeros(rows, 1, 1, width + limit, dtype=self.model.dtype, device=mask.device)
        return added.masked_fill_(mask[:, None, None] == 0, -torch.inf)

    def _left_padded(self, prompts: Prompts) -> tuple[Tensor, Tensor]:
        width = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), width), self.pad_id, dtype=torch.long)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.long)
            mask[row, width - len(prompt) :] = 1
        return ids.to(self.model.device), mask.to(self.model.device)


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
    if logits.shape[-1] <= 2 * BLOCK:
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        return _first_above(cumulative, uniform * cumulative[:, -1:]).squeeze(-1)
    # A large vocabulary is searched in two stages, so that no float64 of its size is ever in memory.
    blocks = pad(probabilities, (0, -logits.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    cumulative = pad(blocks.sum(-1, dtype=torch.float64).cumsum(-1), (1, 0))
    target = uniform * cumulative[:, -1:]
    block = _first_above(cumulative[:, 1:], target)
    inside = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, BLOCK)).squeeze(1).cumsum(-1, dtype=torch.float64)
    place = _first_above(inside, target - cumulative.gather(1, block))
    return (block * BLOCK + place).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def _log_probs(logits: Tensor, chosen: Tensor, sampling: Sampling) -> Tensor:
    """(B,) of the tokens chosen, in nats, in the whole distribution at the temperature; of greedy ones at 1."""
    scaled = logits.float() / (sampling.temperature or 1.0)
    return scaled.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(-1)


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """(B, 1) the first place whose cumulative sum (B, N) exceeds the target (B, 1)."""
    return torch.searchsorted(cumulative.contiguous(), target, right=True).clamp(max=cumulative.shape[-1] - 1)
