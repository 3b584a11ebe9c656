"""Updates of one model, by one process or several: old log-probabilities, mini-batches, micro-batches, AdamW."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tepo_lab.objectives import (
    BatchTotals,
    LossOutput,
    PolicyLoss,
    average_metrics,
    combine_metrics,
)
from tepo_lab.rollout.engine import Response
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.step_metrics import SAMPLER_MISMATCH
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from tepo_lab.train.model import LoadedModel
from tepo_lab.train.seeds import derive
from tepo_lab.train.step.allocator import keep_freed_memory
from tepo_lab.train.step.collect import Group
from tepo_lab.train.step.optimizer import adamw, trained_weights
from tepo_lab.train.step.scoring import Scorer, Sequences, TokenScores

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

    `rows` are the responses' places in the mini-batch; none in a part that only keeps pace with other processes.
    `sampled` holds the sampler's own log-probabilities of each row, where it gave them.
    """

    sequences: Sequences
    advantages: Tensor
    rows: tuple[int, ...]
    old: TokenScores | None = None
    sampled: tuple[tuple[float, ...], ...] = ()

    @property
    def mask(self) -> Tensor:
        """(B, T) bool, on the advantages' device."""
        return self.sequences.response_mask.to(self.advantages.device)


@dataclass(frozen=True)
class MiniBatch:
    """The micro-batches of one update that this process sees to, and the normalisers of all processes' together."""

    parts: list[MicroBatch]
    totals: BatchTotals


class Learner:
    """Holds the optimizer and turns groups into updates of the model.

    Several processes, each given the same groups, divide the rows of every mini-batch and make the same update.
    """

    def __init__(self, spec: RunSpec, loaded: LoadedModel, process_group: ProcessGroup = SINGLE_PROCESS) -> None:
        self.spec = spec
        self.process_group = process_group
        self.model = loaded.model
        self.pad_id = loaded.pad_id
        if self.model.device.type == "cpu":
            keep_freed_memory()
        self.policy_loss = PolicyLoss(spec.objective)
        self.entropy_gradient = "entropy_gradient" in self.policy_loss.needs
        self.keep_logits = "logits" in self.policy_loss.needs
        #: What an objective draws (Clip-Cov's choice of tokens), anew from the seed at every step.
        self.draws = torch.Generator()
        # Before any pass through the model: a sharded one's parameters are then the shards.
        self.optimizer = adamw(loaded.model, spec.trainer)
        self.weights = trained_weights(self.optimizer)
        self.scorer = Scorer(loaded.model, temperature=spec.rollout.temperature)

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
            | self._sampler_mismatch(mini_batches)
            | {
                "actor/lr": rate,
                "actor/updates": float(len(updates)),
                "seconds/old_log_probs": scored - began,
                "seconds/update": time.perf_counter() - scored,
            }
        )

    def _mini_batches(self, groups: Sequence[Group]) -> list[MiniBatch]:
        """The groups in as many parts as a full step has, of sizes that differ by one at most."""
        trainer = self.spec.trainer
        count = min(trainer.prompts_per_step // trainer.mini_batch_prompts, len(groups))
        bounds = [part * len(groups) // count for part in range(count + 1)] if count else []
        return [self._mini_batch(groups[first:last]) for first, last in pairwise(bounds)]

    def _mini_batch(self, groups: Sequence[Group]) -> MiniBatch:
        rows = [
            (group.prompt_ids, response, advantage)
            for group in groups
            for response, advantage in zip(group.responses, group.advantages, strict=True)
        ]
        lengths = [len(response.token_ids) for _, response, _ in rows]
        parts = self._micro_batches(rows, self._own_rows(rows))
        # Gathering weights takes all processes: each makes as many passes as the one with most.
        parts += [self._pace()] * (max(self.process_group.all_gather(len(parts))) - len(parts))
        return MiniBatch(parts, BatchTotals(sum(lengths), sum(length > 0 for length in lengths)))

    def _own_rows(self, rows: Sequence[Row]) -> list[int]:
        """The places of this process's rows: neighbours, so that groups stay together, of like token counts."""
        if self.process_group.world_size == 1:
            return list(range(len(rows)))
        ends = list(accumulate(map(_tokens, rows)))
        # A row goes to the process in whose share of all tokens its middle lies.
        middles = [end - _tokens(row) / 2 for end, row in zip(ends, rows, strict=True)]
        return [
            place
            for place, at in enumerate(middles)
            if int(at * self.process_group.world_size / ends[-1]) == self.process_group.rank
        ]

    def _micro_batches(self, rows: Sequence[Row], own: Sequence[int]) -> list[MicroBatch]:
        """Own rows in parts of at most `micro_batch_tokens` tokens, padding counted and shared prompts once.

        Padded rows stand with others of like length; rows that share prompts stay in order, groups together.
        """
        budget = self.spec.trainer.micro_batch_tokens
        parts = [list(own)] if own else []
        if budget is not None and self.scorer.shares_prompts:
            parts = _in_order(rows, own, budget)
        elif budget is not None:
            parts = []
            for place in sorted(own, key=lambda place: _tokens(rows[place]), reverse=True):
                # Longest first: the first row of a part gives its width.
                width = _tokens(rows[parts[-1][0]]) if parts else 0
                if not parts or (len(parts[-1]) + 1) * width > budget:
                    parts.append([])
                parts[-1].append(place)
        return [self._micro_batch([rows[place] for place in sorted(part)], sorted(part)) for part in parts]

    def _micro_batch(self, rows: Sequence[Row], places: Sequence[int]) -> MicroBatch:
        prompts, responses, advantages = zip(*rows, strict=True)
        return MicroBatch(
            self.scorer.pack(prompts, [response.token_ids for response in responses], self.pad_id),
            torch.tensor(advantages, device=self.model.device).unsqueeze(-1),
            tuple(places),
            sampled=tuple(response.log_probs for response in responses if response.log_probs is not None),
        )

    def _pace(self) -> MicroBatch:
        """A part with a token that counts for nothing, run where another process has one more part."""
        return MicroBatch(self.scorer.pack([[self.pad_id]], [[self.pad_id]], self.pad_id), torch.zeros(1, 1), ())

    @torch.no_grad()
    def _with_old_scores(self, mini_batch: MiniBatch) -> MiniBatch:
        return replace(mini_batch, parts=[replace(part, old=self._score(part)) for part in mini_batch.parts])

    def _score(self, part: MicroBatch) -> TokenScores:
        return self.scorer(part.sequences, entropy_gradient=self.entropy_gradient, logits=self.keep_logits)

    def _update(self, mini_batch: MiniBatch, measures_ratio: bool) -> tuple[dict[str, float], int]:
        """One optimizer step on one mini-batch. Returns its metrics and its number of tokens."""
        penalty = self._penalty_gradients(mini_batch) if measures_ratio else None
        metrics = self._gradients(mini_batch)
        if penalty is not None:
            metrics["penalty/gradient_ratio"] = _ratio_to_rest(penalty, self.weights, self.process_group)
        norm = torch.nn.utils.clip_grad_norm_(self.weights, self.spec.trainer.max_grad_norm)
        self.optimizer.step()
        # Not kept through the sampling that follows.
        self.optimizer.zero_grad(set_to_none=True)
        whole_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return metrics | {"actor/grad_norm": float(whole_norm)}, int(mini_batch.totals.tokens)

    def _gradients(self, mini_batch: MiniBatch, term: Term = whole_loss) -> dict[str, float]:
        """Leave the gradient of a term of the loss on one mini-batch in the parameters; returns the loss's metrics."""
        self.optimizer.zero_grad(set_to_none=True)
        in_parts = len(mini_batch.parts) > 1 or self.process_group.world_size > 1
        if in_parts and self.policy_loss.needs_whole_mini_batch:
            return self._backward_through_scores(mini_batch.parts, term)
        return self._backward(mini_batch, term)

    def _penalty_gradients(self, mini_batch: MiniBatch) -> list[Tensor | None] | None:
        """The penalty's own gradient on one mini-batch, or None without one; its draws are made again afterwards."""
        if self.spec.objective.penalty is None:
            return None
        state = self.draws.get_state()
        self._gradients(mini_batch, lambda output: output.penalty_loss)
        self.draws.set_state(state)
        return [None if each.grad is None else each.grad.clone() for each in self.weights]

    def _backward(self, mini_batch: MiniBatch, term: Term) -> dict[str, float]:
        """Gradients of micro-batches whose losses, with the mini-batch's normalisers, add up to its loss."""
        measured = []
        for part in mini_batch.parts:
            scores = self._score(part)
            if not part.rows:
                _keep_pace(scores)
                continue
            output = self._loss(part, scores, mini_batch.totals)
            _carry_back(term(output), scores)
            measured.append((output.metrics, output.token_count))
        return combine_metrics([each for own in self.process_group.all_gather(measured) for each in own])

    def _backward_through_scores(self, parts: Sequence[MicroBatch], term: Term) -> dict[str, float]:
        """Gradients where the loss looks at the whole mini-batch at once (top-k over its tokens, its extremes).

        The loss is taken on scores as leaves, and its gradient carried into each micro-batch's own scores.
        """
        with torch.no_grad():
            scores = [self._score(part) for part in parts]
        whole, leaves = self._whole(parts, scores)
        output = self._loss(whole, leaves, None)
        loss = term(output)
        if loss is not None and loss.requires_grad:
            loss.backward()
        for part in parts:
            own = self._score(part)
            pairs = [(own.log_probs, leaves.log_probs.grad), (own.entropy, leaves.entropy.grad)]
            width = own.log_probs.shape[1]
            carried = [
                (value, grad[list(part.rows), :width])
                for value, grad in pairs
                if part.rows and grad is not None and value.requires_grad
            ]
            if carried:
                torch.autograd.backward([value for value, _ in carried], [grad for _, grad in carried])
            else:
                _keep_pace(own)
        return output.metrics

    def _whole(self, parts: Sequence[MicroBatch], scores: Sequence[TokenScores]) -> tuple[MicroBatch, TokenScores]:
        """All processes' micro-batches as one, its rows in the mini-batch's order, and its scores as leaves."""
        filled = [(part, score) for part, score in zip(parts, scores, strict=True) if part.rows]
        gathered = self.process_group.all_gather(
            [_moved(part, score, "cpu" if self.process_group.world_size > 1 else None) for part, score in filled]
        )
        pieces = [_moved(*piece, self.model.device) for own in gathered for piece in own]
        order = torch.tensor([row for part, _ in pieces for row in part.rows]).argsort().to(self.model.device)
        mask = _stacked([part.sequences.response_mask for part, _ in pieces])[order]
        whole = MicroBatch(
            replace(pieces[0][0].sequences, response_mask=mask),
            torch.cat([part.advantages for part, _ in pieces])[order],
            tuple(range(len(order))),
            _stacked_scores([part.old for part, _ in pieces if part.old is not None], order),
        )
        leaves = _stacked_scores([score for _, score in pieces], order)
        return whole, replace(
            leaves, log_probs=leaves.log_probs.requires_grad_(), entropy=leaves.entropy.requires_grad_()
        )

    def _loss(self, part: MicroBatch, scores: TokenScores, totals: Any) -> LossOutput:
        assert part.old is not None
        return self.policy_loss(
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

    def _sampler_mismatch(self, mini_batches: Sequence[MiniBatch]) -> dict[str, float]:
        """How far the sampler's log-probabilities lie from the trainer's, in nats; nothing when they are the same."""
        parts = [part for mini_batch in mini_batches for part in mini_batch.parts if part.sampled]
        differences = [
            (log_probs[: len(sampled)] - torch.tensor(sampled)).abs()
            for part in parts
            if part.old is not None
            for log_probs, sampled in zip(part.old.log_probs.cpu(), part.sampled, strict=True)
        ]
        joined = torch.cat([*differences, torch.empty(0)])
        sums, counts, largest = zip(
            *self.process_group.all_gather(
                (float(joined.sum()), len(joined), float(joined.max()) if len(joined) else 0.0)
            ),
            strict=True,
        )
        if not sum(counts):
            return {}
        return {
            SAMPLER_MISMATCH: sum(sums) / sum(counts),
            "rollout/sampler_mismatch_max": max(largest),
        }

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


def _in_order(rows: Sequence[Row], own: Sequence[int], budget: int) -> list[list[int]]:
    """Neighbours among own rows, at most `budget` tokens in each part (a row alone may have more)."""
    parts: list[list[int]] = []
    held = 0
    for place in own:
        prompt, response, _ = rows[place]
        is_shared = bool(parts) and rows[parts[-1][-1]][0] is prompt
        tokens = len(response.token_ids) + (0 if is_shared else len(prompt))
        if not parts or held + tokens > budget:
            parts.append([])
            held, tokens = 0, len(response.token_ids) + len(prompt)
        parts[-1].append(place)
        held += tokens
    return parts


def _carry_back(loss: Tensor | None, scores: TokenScores) -> None:
    # A penalty whose mask is empty has no gradient at all.
    if loss is not None and loss.requires_grad:
        loss.backward()
    else:
        _keep_pace(scores)


def _keep_pace(scores: TokenScores) -> None:
    """A backward pass of no effect: other processes may be making one, and sharded weights are gathered by all."""
    (0.0 * scores.log_probs.sum()).backward()


def _ratio_to_rest(part: Sequence[Tensor | None], parameters: Iterable[Tensor], process_group: ProcessGroup) -> float:
    """||part|| / ||whole - part||, where the parameters hold the whole gradient, or each process its shard of it."""
    pairs = [(own, each.grad) for own, each in zip(part, parameters, strict=True) if each.grad is not None]
    of_part, of_rest = process_group.sum(
        sum(_square(own) for own, _ in pairs if own is not None),
        sum(_square(whole if own is None else whole - own) for own, whole in pairs),
    )
    return math.sqrt(of_part / of_rest) if of_rest else math.nan


def _square(gradient: Tensor) -> float:
    return float((gradient.to_local() if hasattr(gradient, "to_local") else gradient).square().sum())


def _moved(part: MicroBatch, scores: TokenScores, device: Any) -> tuple[MicroBatch, TokenScores]:
    """A micro-batch with what its loss needs, and its scores, on a device (None: where they are)."""
    if device is None:
        return part, scores
    sequences = replace(part.sequences, response_mask=part.sequences.response_mask.to(device))
    old = None if part.old is None else part.old.to(device)
    return replace(part, sequences=sequences, advantages=part.advantages.to(device), old=old), scores.to(device)


def _stacked(values: Sequence[Tensor]) -> Tensor:
    """(B, T[, V]) tensors of several micro-batches as one, padded with zeros to the longest T."""
    longest = max(value.shape[1] for value in values)
    trailing = [0, 0] * (values[0].dim() - 2)
    return torch.cat([pad(value, [*trailing, 0, longest - value.shape[1]]) for value in values])


def _stacked_scores(scores: Sequence[TokenScores], order: Tensor) -> TokenScores:
    logits = [each.logits for each in scores if each.logits is not None]
    return TokenScores(
        _stacked([each.log_probs for each in scores])[order],
        _stacked([each.entropy for each in scores])[order],
        _stacked(logits)[order] if logits else None,
    )
