"""Updates of one model in one process: old log-probabilities, mini-batches, micro-batches, AdamW."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tepo_lab.objectives import (
    LossOutput,
    average_metrics,
    batch_totals,
    combine_metrics,
    needs,
    needs_whole_mini_batch,
    policy_loss,
)
from tepo_lab.rollout.engine import Response
from tepo_lab.schema.run import RunSpec
from tepo_lab.train.experience import Group
from tepo_lab.train.model import LoadedModel
from tepo_lab.train.scoring import Scorer, Sequences, TokenScores, pack
from tepo_lab.train.seeds import derive

#: A response to learn from: its prompt's token ids, itself, its advantage.
Row = tuple[Sequence[int], Response, float]

#: Which term of a loss to take the gradient of.
Term = Callable[[LossOutput], Tensor | None]


def whole_loss(output: LossOutput) -> Tensor:
    """The loss that is minimised."""
    return output.loss


@dataclass(frozen=True)
class MicroBatch:
    """Responses of one forward pass: B rows, advantages (B, 1), and the rollout policy's scores once taken.

    `sampled` holds the sampler's own log-probabilities of each row, where it gave them.
    """

    sequences: Sequences
    advantages: Tensor
    old: TokenScores | None = None
    sampled: tuple[tuple[float, ...], ...] = ()

    @property
    def mask(self) -> Tensor:
        """(B, T) bool, on the advantages' device."""
        return self.sequences.response_mask.to(self.advantages.device)


class Learner:
    """Holds the optimizer and turns groups into updates of the model."""

    def __init__(self, spec: RunSpec, loaded: LoadedModel) -> None:
        self.spec = spec
        self.model = loaded.model
        self.pad_id = loaded.pad_id
        self.objective = spec.objective.model_dump()
        needed = needs(self.objective)
        self.entropy_gradient = "entropy_gradient" in needed
        self.keep_logits = "logits" in needed
        #: What an objective draws (Clip-Cov's choice of tokens), anew from the seed at every step.
        self.draws = torch.Generator()
        self.scorer = Scorer(loaded.model, temperature=spec.rollout.temperature)
        self.optimizer = torch.optim.AdamW(
            loaded.model.parameters(),
            lr=spec.trainer.learning_rate,
            betas=spec.trainer.betas,
            weight_decay=spec.trainer.weight_decay,
            fused=True,
        )

    def learn(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """All updates of training step `step` (1-based) on `groups`. Returns metrics, means over the updates.

        Old log-probabilities and entropies are scored by this same model before the first update, in the layout of
        the updates, so that on the first mini-batch every ratio is exactly 1 and no entropy has changed.
        """
        began = time.perf_counter()
        self.model.train()
        rate = self._set_learning_rate(step)
        self.draws.manual_seed(derive(self.spec.seed, "updates", step))
        mini_batches = [self._with_old_scores(part) for part in self._mini_batches(groups)]
        scored = time.perf_counter()
        every = self.spec.trainer.gradient_ratio_every
        measures = every > 0 and step % every == 0
        updates = [self._update(part, measures) for _ in range(self.spec.trainer.epochs) for part in mini_batches]
        return (
            (average_metrics(updates) if updates else {})
            | _sampler_mismatch(mini_batches)
            | {
                "actor/lr": rate,
                "actor/updates": float(len(updates)),
                "seconds/old_log_probs": scored - began,
                "seconds/update": time.perf_counter() - scored,
            }
        )

    def _mini_batches(self, groups: Sequence[Group]) -> list[list[MicroBatch]]:
        """The groups in as many parts as a full step has, of sizes that differ by one at most."""
        trainer = self.spec.trainer
        count = min(trainer.prompts_per_step // trainer.mini_batch_prompts, len(groups))
        bounds = [part * len(groups) // count for part in range(count + 1)] if count else []
        return [self._micro_batches(groups[first:last]) for first, last in pairwise(bounds)]

    def _micro_batches(self, groups: Sequence[Group]) -> list[MicroBatch]:
        """Rows of like length together, at most `micro_batch_tokens` tokens (padding counted) at once."""
        rows = [
            (group.prompt_ids, response, advantage)
            for group in groups
            for response, advantage in zip(group.responses, group.advantages, strict=True)
        ]
        budget = self.spec.trainer.micro_batch_tokens
        parts = [rows]
        if budget is not None:
            parts = []
            for row in sorted(rows, key=_tokens, reverse=True):
                # Longest first: the first row of a part gives its width.
                width = _tokens(parts[-1][0]) if parts else 0
                if not parts or (len(parts[-1]) + 1) * width > budget:
                    parts.append([])
                parts[-1].append(row)
        return [self._micro_batch(part) for part in parts]

    def _micro_batch(self, rows: Sequence[Row]) -> MicroBatch:
        prompts, responses, advantages = zip(*rows, strict=True)
        return MicroBatch(
            pack(prompts, [response.token_ids for response in responses], self.pad_id),
            torch.tensor(advantages, device=self.model.device).unsqueeze(-1),
            sampled=tuple(response.log_probs for response in responses if response.log_probs is not None),
        )

    @torch.no_grad()
    def _with_old_scores(self, parts: Sequence[MicroBatch]) -> list[MicroBatch]:
        return [replace(part, old=self._score(part)) for part in parts]

    def _score(self, part: MicroBatch) -> TokenScores:
        return self.scorer(part.sequences, entropy_gradient=self.entropy_gradient, logits=self.keep_logits)

    def _update(self, parts: Sequence[MicroBatch], measures_ratio: bool) -> tuple[dict[str, float], int]:
        """One optimizer step on one mini-batch. Returns its metrics and its number of tokens."""
        penalty = self._penalty_gradients(parts) if measures_ratio else None
        metrics = self._gradients(parts)
        if penalty is not None:
            metrics["penalty/gradient_ratio"] = _ratio_to_rest(penalty, self.model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.trainer.max_grad_norm)
        self.optimizer.step()
        return metrics | {"actor/grad_norm": float(norm)}, sum(int(part.mask.sum()) for part in parts)

    def _gradients(self, parts: Sequence[MicroBatch], term: Term = whole_loss) -> dict[str, float]:
        """Leave the gradient of a term of the loss on one mini-batch in the parameters; returns the loss's metrics."""
        self.optimizer.zero_grad(set_to_none=True)
        if len(parts) > 1 and needs_whole_mini_batch(self.objective):
            return self._backward_through_scores(parts, term)
        return self._backward(parts, term)

    def _penalty_gradients(self, parts: Sequence[MicroBatch]) -> list[Tensor | None] | None:
        """The penalty's own gradient on one mini-batch, or None without one; its draws are made again afterwards."""
        if self.spec.objective.penalty is None:
            return None
        state = self.draws.get_state()
        self._gradients(parts, lambda output: output.penalty_loss)
        self.draws.set_state(state)
        return [None if each.grad is None else each.grad.clone() for each in self.model.parameters()]

    def _backward(self, parts: Sequence[MicroBatch], term: Term) -> dict[str, float]:
        """Gradients of micro-batches whose losses, with the mini-batch's normalisers, add up to its loss."""
        totals = batch_totals(_stacked([part.mask for part in parts]))
        measured = []
        for part in parts:
            output = self._loss(part, self._score(part), totals)
            _carry_back(term(output))
            measured.append((output.metrics, output.token_count))
        return combine_metrics(measured)

    def _backward_through_scores(self, parts: Sequence[MicroBatch], term: Term) -> dict[str, float]:
        """Gradients where the loss looks at the whole mini-batch at once (top-k over its tokens, its extremes).

        The loss is taken on scores as leaves, and its gradient carried into each micro-batch's own scores.
        """
        with torch.no_grad():
            scores = _stacked_scores([self._score(part) for part in parts])
        leaves = replace(scores, log_probs=scores.log_probs.requires_grad_(), entropy=scores.entropy.requires_grad_())
        whole = MicroBatch(
            replace(parts[0].sequences, response_mask=_stacked([part.mask for part in parts])),
            torch.cat([part.advantages for part in parts]),
            _stacked_scores([part.old for part in parts if part.old is not None]),
        )
        output = self._loss(whole, leaves, None)
        _carry_back(term(output))
        first = 0
        for part in parts:
            rows, width = part.mask.shape
            place = (slice(first, first + rows), slice(0, width))
            first += rows
            own = self._score(part)
            pairs = [(own.log_probs, leaves.log_probs.grad), (own.entropy, leaves.entropy.grad)]
            carried = [(value, grad[place]) for value, grad in pairs if grad is not None and value.requires_grad]
            if carried:
                torch.autograd.backward([value for value, _ in carried], [grad for _, grad in carried])
        return output.metrics

    def _loss(self, part: MicroBatch, scores: TokenScores, totals: Any) -> LossOutput:
        assert part.old is not None
        return policy_loss(
            self.objective,
            log_probs=scores.log_probs,
            old_log_probs=part.old.log_probs,
            advantages=part.advantages.expand_as(scores.log_probs),
            response_mask=part.mask,
            entropy=scores.entropy,
            old_entropy=part.old.entropy,
            logits=scores.logits,
            old_logits=part.old.logits,
            totals=totals,
            generator=self.draws,
        )

    def _set_learning_rate(self, step: int) -> float:
        """Linear warm-up over `warmup_steps`, then constant."""
        warmup = self.spec.trainer.warmup_steps
        rate = self.spec.trainer.learning_rate * (min(1.0, step / warmup) if warmup else 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate


def _tokens(row: Row) -> int:
    prompt, response, _ = row
    return len(prompt) + len(response.token_ids)


def _sampler_mismatch(mini_batches: Sequence[Sequence[MicroBatch]]) -> dict[str, float]:
    """How far the sampler's log-probabilities lie from the trainer's own, in nats; nothing when they are the same."""
    differences = [
        (part.old.log_probs[row, : len(sampled)].cpu() - torch.tensor(sampled)).abs()
        for parts in mini_batches
        for part in parts
        for row, sampled in enumerate(part.sampled)
        if part.old is not None
    ]
    if not differences:
        return {}
    joined = torch.cat(differences)
    return {"rollout/sampler_mismatch_mean": float(joined.mean()), "rollout/sampler_mismatch_max": float(joined.max())}


def _carry_back(loss: Tensor | None) -> None:
    # A penalty whose mask is empty has no gradient at all.
    if loss is not None and loss.requires_grad:
        loss.backward()


def _ratio_to_rest(part: Sequence[Tensor | None], parameters: Iterable[Tensor]) -> float:
    """||part|| / ||whole - part||, where the parameters hold the whole gradient."""
    pairs = [(own, each.grad) for own, each in zip(part, parameters, strict=True) if each.grad is not None]
    of_part = sum(float(own.square().sum()) for own, _ in pairs if own is not None)
    of_rest = sum(float((whole if own is None else whole - own).square().sum()) for own, whole in pairs)
    return math.sqrt(of_part / of_rest) if of_rest else math.nan


def _stacked(values: Sequence[Tensor]) -> Tensor:
    """(B, T[, V]) tensors of several micro-batches as one, padded with zeros to the longest T."""
    longest = max(value.shape[1] for value in values)
    trailing = [0, 0] * (values[0].dim() - 2)
    return torch.cat([pad(value, [*trailing, 0, longest - value.shape[1]]) for value in values])


def _stacked_scores(scores: Sequence[TokenScores]) -> TokenScores:
    logits = [each.logits for each in scores if each.logits is not None]
    return TokenScores(
        _stacked([each.log_probs for each in scores]),
        _stacked([each.entropy for each in scores]),
        _stacked(logits) if logits else None,
    )
