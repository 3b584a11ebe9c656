"""A few of a step's responses with the values of each of their tokens, recorded for inspection."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tepo_lab.records.files import write_atomically
from tepo_lab.train.step.collect import Group
from tepo_lab.train.step.learner import Learner
from tepo_lab.train.step.scoring import Sequences, TokenScores, pack

#: Groups of a step that are recorded, and right and wrong responses of each.
GROUPS = 4
RESPONSES = 2

#: Tokens of a response that are written; its values are over all of them.
TOKENS = 1024


@dataclass(frozen=True)
class _Chosen:
    """A group's chosen responses (by number), packed, with their scores before the step's updates."""

    group: Group
    responses: list[int]
    sequences: Sequences
    before: TokenScores


class TokenSample:
    """Responses scored when made, before a step's updates, and again by `values`, after them.

    Neither scoring affects the training: evaluation mode, no gradient, no random draw.
    """

    def __init__(self, learner: Learner, groups: Sequence[Group]) -> None:
        self.learner = learner
        # Only a mixed group has both right and wrong responses.
        ordered = sorted(groups, key=lambda group: not group.is_mixed)
        self._chosen = [self._choose(group) for group in ordered[:GROUPS]]

    def values(self, tokenizer: Any) -> list[dict[str, Any]]:
        """The groups as plain values, in the form of tokens/step-*.json (`tepo_lab.records.files`)."""
        return [self._group(each, tokenizer) for each in self._chosen]

    def _choose(self, group: Group) -> _Chosen:
        right = [number for number, reward in enumerate(group.rewards) if reward > 0]
        wrong = [number for number, reward in enumerate(group.rewards) if reward <= 0]
        chosen = sorted([*right[:RESPONSES], *wrong[:RESPONSES]])
        ids = [group.responses[number].token_ids for number in chosen]
        sequences = pack([group.prompt_ids] * len(chosen), ids, self.learner.pad_id)
        return _Chosen(group, chosen, sequences, self._score(sequences))

    @torch.no_grad()
    def _score(self, sequences: Sequences) -> TokenScores:
        model = self.learner.model
        was_training = model.training
        model.eval()
        try:
            return self.learner.scorer(sequences, logits=self.learner.keep_logits)
        finally:
            model.train(was_training)

    def _group(self, chosen: _Chosen, tokenizer: Any) -> dict[str, Any]:
        group, before, after = chosen.group, chosen.before, self._score(chosen.sequences)
        columns = {
            "log_prob": after.log_probs,
            "old_log_prob": before.log_probs,
            "ratio": (after.log_probs - before.log_probs).exp(),
            "entropy": after.entropy,
            "entropy_change": after.entropy - before.entropy,
            **self._objective_values(chosen, after),
        }
        rows = {name: values.tolist() for name, values in columns.items()}
        responses = []
        for row, number in enumerate(chosen.responses):
            response = group.responses[number]
            ids = response.token_ids[:TOKENS]
            responses.append(
                {
                    "reward": group.rewards[number],
                    "advantage": _plain(group.advantages[number]),
                    "truncated": response.truncated,
                    "length": len(response.token_ids),
                    "tokens": token_texts(tokenizer, ids),
                    **{name: [_plain(value) for value in values[row][: len(ids)]] for name, values in rows.items()},
                }
            )
        problem = group.problem
        prompt = tokenizer.decode(group.prompt_ids, skip_special_tokens=False)
        return {"problem": problem.id, "prompt": prompt, "answer": problem.answer, "responses": responses}

    def _objective_values(self, chosen: _Chosen, after: TokenScores) -> dict[str, Tensor]:
        """The objective's importance weight, and where it has one its penalty's mask, of the chosen responses."""
        mask = chosen.sequences.response_mask.to(after.log_probs.device)
        advantages = torch.tensor([chosen.group.advantages[number] for number in chosen.responses], device=mask.device)
        tokens = self.learner.policy_loss(
            log_probs=after.log_probs,
            old_log_probs=chosen.before.log_probs,
            advantages=advantages,
            response_mask=mask,
            entropy=after.entropy,
            old_entropy=chosen.before.entropy,
            logits=after.logits,
            old_logits=chosen.before.logits,
            # A separate generator: an objective that draws must not advance the training's.
            generator=torch.Generator().manual_seed(0),
        ).tokens
        mask_values = {"mask": tokens["penalty_mask"].int()} if "penalty_mask" in tokens else {}
        return {"weight": tokens["ratio"]} | mask_values


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds. A character of several tokens is given with the last of them."""
    texts: list[str] = []
    begin = shown = 0
    for end in range(1, len(ids) + 1):
        before = _decoded(tokenizer, ids[begin:shown])
        text = _decoded(tokenizer, ids[begin:end])
        if text.endswith("\ufffd") and end < len(ids):
            texts.append("")
            continue
        texts.append(text[len(before) :])
        begin, shown = shown, end
    return texts


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _plain(value: float | int) -> float | int | None:
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None


def write_tokens(path: Path, step: int, groups: Iterable[dict[str, Any]]) -> None:
    """Write the groups of training step `step`, atomically."""
    values = {"step": step, "groups": list(groups)}
    write_atomically(
        path, (json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n").encode()
    )
