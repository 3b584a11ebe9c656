"""Supervised warm start of a causal language model on (prompt, response) pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tepo_lab.errors import DataError, ModelError

IGNORED = -100
"""Label of a token outside the loss (the default `ignore_index` of torch's cross entropy)."""


@dataclass(frozen=True)
class WarmStartSettings:
    """AdamW with linear warm-up and a cosine to zero.

    Attributes:
        batches: length of the schedule, and the most batches that are taken.
        learning_rate: its peak.
        warmup: batches until the peak.
        betas, weight_decay: of AdamW.
        clip: largest gradient norm.
        rows_per_forward: pairs that pass through the model at once; a batch is sorted by length and cut into such
            pieces, which saves padding and memory and leaves the gradient as it is.
    """

    batches: int
    learning_rate: float
    warmup: int = 50
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0
    rows_per_forward: int = 16

    def rate(self, batch: int) -> float:
        """Learning rate at a batch, counted from 0."""
        if batch < self.warmup:
            return self.learning_rate * (batch + 1) / self.warmup
        progress = (batch - self.warmup) / max(1, self.batches - self.warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class WarmStartProgress:
    """One finished batch: its number from 1, the loss (nats per response token) and the learning rate."""

    batch: int
    loss: float
    learning_rate: float


def warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batches: Iterable[Sequence[tuple[str, str]]],
    settings: WarmStartSettings,
    *,
    until: Callable[[WarmStartProgress], bool] | None = None,
    on_progress: Callable[[WarmStartProgress], None] | None = None,
) -> WarmStartProgress:
    """Train a model in place, on one thread, and return its last batch.

    Args:
        batches: sequences of (prompt, response); at most `settings.batches` of them are read.
        until: called after each batch, with the model in evaluation mode; training ends when it returns True.
        on_progress: called after each batch.

    Raises:
        ModelError: there was no batch, a response was empty, or the loss is no longer finite.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
    )
    progress = None
    with one_thread():
        for index, pairs in enumerate(islice(batches, settings.batches)):
            for group in optimizer.param_groups:
                group["lr"] = settings.rate(index)
            model.train()
            loss = accumulate_gradient(model, tokenizer, pairs, settings.rows_per_forward)
            if not math.isfinite(loss):
                raise ModelError(f"warm start: the loss is {loss} at batch {index + 1}; lower the learning rate")
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            model.eval()
            progress = WarmStartProgress(index + 1, loss, settings.rate(index))
            if on_progress is not None:
                on_progress(progress)
            if until is not None and until(progress):
                break
    if progress is None:
        raise DataError("warm start: there is no batch to train on")
    return progress


def accumulate_gradient(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    rows_per_forward: int,
) -> float:
    """Add the gradient of the batch's mean loss over its response tokens to the model; return that loss in nats."""
    rows = sorted(encode_pairs(tokenizer, pairs), key=lambda row: len(row[0]) + len(row[1]))
    tokens = sum(len(response_ids) for _, response_ids in rows)
    total = 0.0
    for start in range(0, len(rows), rows_per_forward):
        input_ids, labels = pad_right(rows[start : start + rows_per_forward], tokenizer)
        loss = response_loss(model, input_ids, labels) / tokens
        loss.backward()
        total += loss.item()
    return total


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, str]]
) -> list[tuple[list[int], list[int]]]:
    """Prompt and response ids of each pair; the response is closed by the end token.

    A prompt is encoded as it is for sampling, with whatever the tokenizer puts before a text.
    """
    prompts = tokenizer([prompt for prompt, _ in pairs])["input_ids"]
    responses = tokenizer([response for _, response in pairs], add_special_tokens=False)["input_ids"]
    for (prompt, _), response_ids in zip(pairs, responses, strict=True):
        if not response_ids:
            raise DataError(f"warm start: the response to {prompt!r} is empty; leave the pair out")
    return [(prompt_ids, [*ids, tokenizer.eos_token_id]) for prompt_ids, ids in zip(prompts, responses, strict=True)]


def pad_right(rows: Sequence[tuple[list[int], list[int]]], tokenizer: PreTrainedTokenizerBase) -> tuple[Tensor, Tensor]:
    """Token ids and labels, each (B, T); the labels of prompts and padding are `IGNORED`."""
    length = max(len(prompt_ids) + len(response_ids) for prompt_ids, response_ids in rows)
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    input_ids = torch.full((len(rows), length), padding)
    labels = torch.full((len(rows), length), IGNORED)
    for row, (prompt_ids, response_ids) in enumerate(rows):
        end = len(prompt_ids) + len(response_ids)
        input_ids[row, :end] = torch.tensor(prompt_ids + response_ids)
        labels[row, len(prompt_ids) : end] = torch.tensor(response_ids)
    return input_ids, labels


def response_loss(model: PreTrainedModel, input_ids: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of the labelled tokens, summed, in nats.

    Padding stands on the right, where a causal model cannot look back at it, so no attention mask is needed.
    """
    logits = model(input_ids=input_ids.to(model.device), use_cache=False).logits[:, :-1].float()
    targets = labels[:, 1:].flatten().to(model.device)
    return F.cross_entropy(logits.flatten(0, 1), targets, ignore_index=IGNORED, reduction="sum")


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread, where the order of additions, and so every bit, is the same each time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
