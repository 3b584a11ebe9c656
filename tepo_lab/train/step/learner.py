"""The update half of a training step: old log-probs, then an optimizer step for each mini-batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tepo_lab.objectives import (
    BatchTotals,
    LossOutput,
    PolicyLoss,
    average_metrics,
    combine_metrics,
)
from tepo_lab.schema.run import RunSpec
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from tepo_lab.train.model import LoadedModel
from tepo_lab.train.seeds import derive
from tepo_lab.train.step.allocator import keep_freed_memory
from tepo_lab.train.step.batches import MicroBatch, MiniBatch, make_mini_batches, merge_micro_batches
from tepo_lab.train.step.collect import Group
from tepo_lab.train.step.optimizer import adamw, trained_weights
from tepo_lab.train.step.sampler_check import rollout_mismatch
from tepo_lab.train.step.scoring import Scorer, TokenScores

#: Selects what to differentiate from the result of a loss.
Term = Callable[[LossOutput], Tensor | None]


def whole_loss(output: LossOutput) -> Tensor:
    """The loss that is minimised."""
    return output.loss


class Learner:
    """Updates a model on groups, holding its optimizer.

    Every rank is given the same groups; the ranks divide the rows of each mini-batch and make the same update.
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
        #: For objectives that draw (Clip-Cov's choice of tokens); seeded at every step.
        self.generator = torch.Generator()
        # Before any forward pass: until then the parameters of a sharded model are its shards.
        self.optimizer = adamw(loaded.model, spec.trainer)
        self.weights = trained_weights(self.optimizer)
        self.scorer = Scorer(loaded.model, temperature=spec.rollout.temperature)

    def learn(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Make all updates of training step `step` (1-based) on `groups`. Returns metrics, means over the updates.

        Old log-probs and entropies are scored by this same model before the first update, in the layout of the
        updates, so that on the first mini-batch every ratio is exactly 1 and no entropy has changed.
        """
        began = time.perf_counter()
        trainer = self.spec.trainer
        self.model.train()
        learning_rate = self._set_learning_rate(step)
        self.generator.manual_seed(derive(self.spec.seed, "updates", step))

        mini_batches = make_mini_batches(groups, trainer, self.scorer, self.pad_id, self.process_group)
        with torch.no_grad():
            mini_batches = [mini_batch.with_old_scores(self._score) for mini_batch in mini_batches]
        scored = time.perf_counter()

        every = trainer.gradient_ratio_every
        measure_ratio = every > 0 and step % every == 0
        updates = []
        for _ in range(trainer.epochs):
            for mini_batch in mini_batches:
                updates.append(self._update(mini_batch, measure_ratio))

        metrics = average_metrics(updates) if updates else {}
        metrics |= rollout_mismatch(mini_batches, self.process_group)
        return metrics | {
            "actor/lr": learning_rate,
            "actor/updates": float(len(updates)),
            "seconds/old_log_probs": scored - began,
            "seconds/update": time.perf_counter() - scored,
        }

    def _update(self, mini_batch: MiniBatch, measure_ratio: bool) -> tuple[dict[str, float], int]:
        """One optimizer step on one mini-batch. Returns its metrics and its number of response tokens."""
        penalty = None
        if measure_ratio and self.spec.objective.penalty is not None:
            penalty = self._penalty_gradients(mini_batch)
        metrics = self._backward(mini_batch)
        if penalty is not None:
            metrics["penalty/gradient_ratio"] = self._ratio_to_rest(penalty)
        norm = torch.nn.utils.clip_grad_norm_(self.weights, self.spec.trainer.max_grad_norm)
        self.optimizer.step()
        # Gradients take no memory during the next rollout.
        self.optimizer.zero_grad(set_to_none=True)
        full_norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return metrics | {"actor/grad_norm": float(full_norm)}, int(mini_batch.totals.tokens)

    def _backward(self, mini_batch: MiniBatch, term: Term = whole_loss) -> dict[str, float]:
        """Set the parameters' gradients to those of `term` on one mini-batch. Returns the loss's metrics."""
        self.optimizer.zero_grad(set_to_none=True)
        is_split = len(mini_batch.micro_batches) > 1 or self.process_group.world_size > 1
        if is_split and self.policy_loss.needs_whole_mini_batch:
            return self._backward_through_scores(mini_batch.micro_batches, term)
        measured = []
        for micro_batch in mini_batch.micro_batches:
            scores = self._score(micro_batch)
            if not micro_batch.rows:
                _zero_backward(scores)
                continue
            # With the mini-batch's totals the losses of its micro-batches add up to its loss.
            output = self._loss(micro_batch, scores, mini_batch.totals)
            loss = term(output)
            # A penalty whose mask is empty has no gradient at all.
            if loss is not None and loss.requires_grad:
                loss.backward()
            else:
                _zero_backward(scores)
            measured.append((output.metrics, output.token_count))
        return combine_metrics([pair for of_rank in self.process_group.all_gather(measured) for pair in of_rank])

    def _backward_through_scores(self, micro_batches: Sequence[MicroBatch], term: Term) -> dict[str, float]:
        """`_backward` for a loss that reads the whole mini-batch at once (top-k over its tokens, its extremes).

        The loss is differentiated with respect to the merged scores, and that gradient is passed to the scores of
        each micro-batch, which are computed a second time.
        """
        with torch.no_grad():
            scores = [self._score(micro_batch) for micro_batch in micro_batches]
        merged, leaves = merge_micro_batches(micro_batches, scores, self.process_group, self.model.device)
        leaves.log_probs.requires_grad_()
        leaves.entropy.requires_grad_()
        output = self._loss(merged, leaves, None)
        loss = term(output)
        if loss is not None and loss.requires_grad:
            loss.backward()
        for micro_batch in micro_batches:
            own = self._score(micro_batch)
            width = own.log_probs.shape[1]
            pairs = [(own.log_probs, leaves.log_probs.grad), (own.entropy, leaves.entropy.grad)]
            pairs = [
                (value, grad[list(micro_batch.rows), :width])
                for value, grad in pairs
                if micro_batch.rows and grad is not None and value.requires_grad
            ]
            if pairs:
                torch.autograd.backward([value for value, _ in pairs], [grad for _, grad in pairs])
            else:
                _zero_backward(own)
        return output.metrics

    def _score(self, micro_batch: MicroBatch) -> TokenScores:
        return self.scorer(micro_batch.sequences, entropy_gradient=self.entropy_gradient, logits=self.keep_logits)

    def _loss(self, micro_batch: MicroBatch, scores: TokenScores, totals: BatchTotals | None) -> LossOutput:
        assert micro_batch.old is not None
        return self.policy_loss(
            log_probs=scores.log_probs,
            old_log_probs=micro_batch.old.log_probs,
            advantages=micro_batch.advantages.expand_as(scores.log_probs),
            response_mask=micro_batch.mask,
            entropy=scores.entropy,
            old_entropy=micro_batch.old.entropy,
            logits=scores.logits,
            old_logits=micro_batch.old.logits,
            totals=totals,
            generator=self.generator,
        )

    def _penalty_gradients(self, mini_batch: MiniBatch) -> list[Tensor | None]:
        """The gradient of the penalty alone on one mini-batch; the generator's state is restored afterwards."""
        state = self.generator.get_state()
        self._backward(mini_batch, lambda output: output.penalty_loss)
        self.generator.set_state(state)
        return [None if weight.grad is None else weight.grad.clone() for weight in self.weights]

    def _ratio_to_rest(self, penalty: Sequence[Tensor | None]) -> float:
        """||penalty|| / ||gradient - penalty||, where the weights hold the gradient of the whole loss."""
        of_penalty = of_rest = 0.0
        for own, weight in zip(penalty, self.weights, strict=True):
            if weight.grad is not None:
                of_penalty += 0.0 if own is None else _squared_norm(own)
                of_rest += _squared_norm(weight.grad if own is None else weight.grad - own)
        # Each rank of a sharded model has a shard of every gradient.
        of_penalty, of_rest = self.process_group.sum(of_penalty, of_rest)
        return math.sqrt(of_penalty / of_rest) if of_rest else math.nan

    def _set_learning_rate(self, step: int) -> float:
        """Linear warm-up over `trainer.warmup_steps`, then constant."""
        warmup = self.spec.trainer.warmup_steps
        rate = self.spec.trainer.learning_rate * (min(1.0, step / warmup) if warmup else 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate


def _zero_backward(scores: TokenScores) -> None:
    """A backward pass with zero gradients: all ranks must make the same passes, since sharded weights are gathered."""
    (0.0 * scores.log_probs.sum()).backward()


def _squared_norm(gradient: Tensor) -> float:
    return float((gradient.to_local() if hasattr(gradient, "to_local") else gradient).square().sum())
