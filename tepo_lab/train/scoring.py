"""Log-probabilities and entropies of response tokens, for any causal language model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

#: Logits held at once, in elements: 2 GiB in float32. More tokens are scored in chunks and, for the gradient, again.
MAX_LOGITS = 2**29


@dataclass(frozen=True)
class Sequences:
    """Prompts with their responses, padded on the right.

    input_ids (B, L); response_mask (B, T) bool; `predicting` (N,) flat positions in (B, L) whose hidden states predict
    the N response tokens, row by row; targets (N,) those tokens.
    """

    input_ids: Tensor
    response_mask: Tensor
    predicting: Tensor
    targets: Tensor

    def to_rows(self, values: Tensor) -> Tensor:
        """Per-token values (N,) or (N, V) laid out as (B, T) or (B, T, V), zero where there is no token."""
        rows = values.new_zeros(self.response_mask.numel(), *values.shape[1:])
        places = self.response_mask.flatten().nonzero().squeeze(-1)
        return rows.index_copy(0, places, values).view(*self.response_mask.shape, *values.shape[1:])


@dataclass(frozen=True)
class TokenScores:
    """log_probs and entropy (B, T) in nats; logits (B, T, V) only when asked for."""

    log_probs: Tensor
    entropy: Tensor
    logits: Tensor | None = None


def pack(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], pad_id: int) -> Sequences:
    """Lay out prompts and responses (lists of token ids, B of each) for scoring.

    With padding on the right a causal model needs no attention mask: no token attends to what comes after it.
    """
    rows = [[*prompt, *response] for prompt, response in zip(prompts, responses, strict=True)]
    width = max(map(len, rows))
    longest = max(map(len, responses))
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    predicting: list[int] = []
    for index, (row, prompt, response) in enumerate(zip(rows, prompts, responses, strict=True)):
        ids[index, : len(row)] = torch.tensor(row)
        mask[index, : len(response)] = True
        first = index * width + len(prompt) - 1
        predicting.extend(range(first, first + len(response)))
    places = torch.tensor(predicting)
    return Sequences(ids, mask, places, ids.flatten()[places + 1])


class Scorer:
    """Scores response tokens with `model`, at the temperature they were sampled with.

    The head runs on response positions only, where the model's logits are its output embedding applied to the last
    hidden state (checked once on a probe); for a model that does more (scaled or capped logits) all logits are taken.
    """

    def __init__(self, model: Any, *, temperature: float) -> None:
        self.model = model
        self.temperature = temperature
        self.head = self._plain_head()

    def __call__(self, sequences: Sequences, *, entropy_gradient: bool = False, logits: bool = False) -> TokenScores:
        """Scores of every response token. Entropy carries a gradient only if asked; so do log_probs under grad mode."""
        device = self.model.device
        ids = sequences.input_ids.to(device)
        predicting, targets = sequences.predicting.to(device), sequences.targets.to(device)
        head: Any
        if self.head is None:
            states, head = self.model(input_ids=ids, use_cache=False).logits, torch.nn.Identity()
        else:
            states, head = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state, self.head
        states = states.flatten(0, 1)[predicting]
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
        rows = Sequences(ids, sequences.response_mask.to(device), predicting, targets).to_rows
        return TokenScores(rows(log_probs), rows(entropy), rows(kept) if logits else None)

    def _token_scores(
        self, head: Any, states: Tensor, targets: Tensor, entropy_gradient: bool, keep_logits: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits = head(states).float() / self.temperature
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
        hidden = self.model.base_model(input_ids=probe, use_cache=False).last_hidden_state
        logits = self.model(input_ids=probe, use_cache=False).logits
        self.model.train(was_training)
        return head if torch.allclose(head(hidden).float(), logits.float(), rtol=1e-4, atol=1e-4) else None
