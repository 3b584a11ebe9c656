"""Log-probabilities and entropies of response tokens, for any causal language model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.utils.checkpoint import checkpoint

from tepo_lab.rollout.attention import open_attention
from tepo_lab.train.step import shared_prompts
from tepo_lab.train.step.shared_prompts import AttentionLayout

#: Logits in memory at once, in elements: 2 GiB in float32. More tokens are scored in chunks, recomputed in backward.
MAX_LOGITS = 2**29


@dataclass(frozen=True)
class Sequences:
    """Prompts with their responses: B rows padded on the right, or all in one row where each prompt stands once.

    input_ids (B, L) or (1, L); response_mask (B, T) bool; `predicting` (N,) flat positions in the ids whose hidden
    states predict the N response tokens, row by row; targets (N,) those tokens; places (N,) theirs in (B, T), flat.
    A packed row also has position_ids (1, L) and the layout in which its tokens attend to each other.
    """

    input_ids: Tensor
    response_mask: Tensor
    predicting: Tensor
    targets: Tensor
    places: Tensor
    position_ids: Tensor | None = None
    layout: AttentionLayout | None = None

    def to(self, device: torch.device) -> Sequences:
        """The same on `device`."""
        return Sequences(
            self.input_ids.to(device),
            self.response_mask.to(device),
            self.predicting.to(device),
            self.targets.to(device),
            self.places.to(device),
            None if self.position_ids is None else self.position_ids.to(device),
            None if self.layout is None else self.layout.to(device),
        )

    def to_rows(self, values: Tensor) -> Tensor:
        """Per-token values (N,) or (N, V) laid out as (B, T) or (B, T, V), zero where there is no token."""
        rows = values.new_zeros(self.response_mask.numel(), *values.shape[1:])
        return rows.index_copy(0, self.places, values).view(*self.response_mask.shape, *values.shape[1:])


@dataclass(frozen=True)
class TokenScores:
    """log_probs and entropy (B, T) in nats; logits (B, T, V) only when asked for."""

    log_probs: Tensor
    entropy: Tensor
    logits: Tensor | None = None

    def to(self, device: Any) -> TokenScores:
        """The same on a device."""
        logits = None if self.logits is None else self.logits.to(device)
        return TokenScores(self.log_probs.to(device), self.entropy.to(device), logits)


def pack(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], pad_id: int) -> Sequences:
    """Lay out prompts and responses (lists of token ids, B of each) for scoring.

    With padding on the right a causal model needs no attention mask: no token attends to what comes after it.
    """
    rows = [[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)]
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = response_mask(responses)
    predicting: list[int] = []
    for index, (row, prompt, response) in enumerate(zip(rows, prompts, responses, strict=True)):
        ids[index, : len(row)] = torch.tensor(row)
        first = index * width + len(prompt) - 1
        predicting.extend(range(first, first + len(response)))
    places = torch.tensor(predicting)
    return Sequences(ids, mask, places, ids.flatten()[places + 1], mask.flatten().nonzero().squeeze(-1))


def response_mask(responses: Sequence[Sequence[int]]) -> Tensor:
    """(B, T) bool of B responses' tokens."""
    lengths = torch.tensor([len(response) for response in responses])
    return torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)


def pack_sharing(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Sequences:
    """Lay out prompts and responses as `pack` does, without padding and with each prompt once (`shared_prompts`)."""
    packed = shared_prompts.pack_sharing(prompts, responses)
    mask = response_mask(responses)
    return Sequences(
        torch.tensor([packed.ids]),
        mask,
        torch.tensor(packed.predicting),
        torch.tensor([token for response in responses for token in response]),
        mask.flatten().nonzero().squeeze(-1),
        torch.tensor([packed.positions]),
        packed.layout,
    )


class Scorer:
    """Scores response tokens with `model`, at the temperature they were sampled with.

    The head runs on response positions only, where the model's logits are its output embedding applied to the last
    hidden state (checked once on a probe); for a model that does more (scaled or capped logits) the model computes
    all logits. Neighbours with the same prompt share one pass over it where a second probe shows that the model's
    attention supports it (`shares_prompts`).
    """

    def __init__(self, model: Any, *, temperature: float) -> None:
        self.model = model
        self.temperature = temperature
        #: The model without its head. A sharded one has it as a method that gathers the weights it needs.
        self.trunk = getattr(model, "trunk", None) or model.base_model
        self.head = self._plain_head()
        self.shares_prompts = self._can_share_prompts()

    def pack(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], pad_id: int) -> Sequences:
        """Prompts and responses (lists of token ids, B of each) in the most efficient layout, on the model's device.

        Scores differ between layouts by rounding, so scores that are compared must have the same layout.
        """
        packed = pack_sharing(prompts, responses) if self.shares_prompts else pack(prompts, responses, pad_id)
        return packed.to(self.model.device)

    def __call__(self, sequences: Sequences, *, entropy_gradient: bool = False, logits: bool = False) -> TokenScores:
        """Scores of every response token. Entropy carries a gradient only if asked; so do log_probs under grad mode."""
        sequences = sequences.to(self.model.device)
        head: Any
        if self.head is None:
            states, head = self.model(**_inputs(sequences)).logits, torch.nn.Identity()
        else:
            states, head = self.trunk(**_inputs(sequences)).last_hidden_state, self.head
        # As an embedding: the gradient of indexing is slow on a CPU, and that of index_select not repeatable on a GPU.
        states, targets = embedding(sequences.predicting, states.flatten(0, 1)), sequences.targets
        vocabulary = self.model.config.get_text_config().vocab_size
        chunk = max(1, MAX_LOGITS // vocabulary)
        parts = []
        for first in range(0, len(targets), chunk):
            piece = (head, states[first : first + chunk], targets[first : first + chunk])
            if len(targets) <= chunk or not torch.is_grad_enabled():
                parts.append(self._token_scores(*piece, entropy_gradient, logits))
            else:
                parts.append(checkpoint(self._token_scores, *piece, entropy_gradient, logits, use_reentrant=False))
        log_probs, entropy, kept = (torch.cat(column) for column in zip(*parts, strict=True))
        rows = sequences.to_rows
        return TokenScores(rows(log_probs), rows(entropy), rows(kept) if logits else None)

    def _token_scores(
        self, head: Any, states: Tensor, targets: Tensor, entropy_gradient: bool, keep_logits: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits = head(states)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature
        log_softmax = torch.log_softmax(logits, dim=-1)
        log_probs = log_softmax.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        source = log_softmax if entropy_gradient else log_softmax.detach()
        entropy = -(source.exp() * source).sum(-1)
        return log_probs, entropy, log_softmax if keep_logits else logits.new_zeros(len(targets), 0)

    @torch.no_grad()
    def _plain_head(self) -> Any | None:
        head = self.model.get_output_embeddings()
        if head is None or self.model.base_model is self.model:
            return None
        was_training = self.model.training
        self.model.eval()
        probe = torch.arange(4, device=self.model.device).remainder(head.weight.shape[0]).unsqueeze(0)
        hidden = self.trunk(input_ids=probe, use_cache=False).last_hidden_state
        logits = self.model(input_ids=probe, use_cache=False).logits
        self.model.train(was_training)
        return head if torch.allclose(head(hidden).float(), logits.float(), rtol=1e-4, atol=1e-4) else None

    @torch.no_grad()
    def _can_share_prompts(self) -> bool:
        """Whether packed rows give the scores of padded ones."""
        if not open_attention(self.model):
            return False
        vocabulary = self.model.config.get_text_config().vocab_size
        tokens = [place % vocabulary for place in range(3, 40)]
        prompts = [tokens[:5], tokens[:5], tokens[:5], tokens[7:10], tokens[11:20], tokens[11:20]]
        responses = [tokens[20:23], tokens[22:30], tokens[25:26], tokens[28:32], tokens[12:18], tokens[30:34]]
        was_training = self.model.training
        self.model.eval()
        padded, shared = self(pack(prompts, responses, 0)), self(pack_sharing(prompts, responses))
        self.model.train(was_training)
        tolerance = max(1e-4, 10 * torch.finfo(self.model.dtype).eps)
        return torch.allclose(padded.log_probs, shared.log_probs, rtol=tolerance, atol=tolerance)


def _inputs(sequences: Sequences) -> dict[str, Any]:
    """The keyword arguments of a forward pass."""
    inputs = {"input_ids": sequences.input_ids, "use_cache": False}
    if sequences.layout is None:
        return inputs
    # A four-dimensional mask is passed through; without one transformers would allocate an unused one of L x L.
    unused = sequences.input_ids.new_ones(1, 1, 1, 1, dtype=torch.bool)
    return inputs | {
        "position_ids": sequences.position_ids,
        "attention_mask": unused,
        "attend": sequences.layout.attend,
    }
