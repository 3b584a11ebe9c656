"""Eqs. 18 and 19 of arXiv 2604.12736 on a real run: the covariance estimate against the measured change of entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from tepo_lab.registry.compose import compose_run
from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.tasks.sources import open_source
from tepo_lab.theory.check import Array, Check, count
from tepo_lab.train.model import load_model, pick_device
from tepo_lab.train.step.collect import Collector, Group
from tepo_lab.train.step.learner import Learner
from tepo_lab.train.step.scoring import Scorer, pack

#: A short run of the embedded profile: fewer prompts a step, as many updates, its own learning rate.
ARM, STEPS = "tepo_no_kl", 6
OVERRIDES = (f"trainer.steps={STEPS}", "trainer.prompts_per_step=24", "trainer.mini_batch_prompts=3")

#: Responses scored in one forward pass.
ROWS = 64


@dataclass(frozen=True)
class Tokens:
    """The N response tokens of a run's training steps, in order.

    `step` and `prompt` (numbered over the run) are where a token comes from. log_prob and entropy are of the policy
    that sampled it, new_entropy of the policy after the step's updates, in the same state.
    """

    step: NDArray[np.int64]
    prompt: NDArray[np.int64]
    advantage: Array
    log_prob: Array
    entropy: Array
    new_entropy: Array

    @property
    def change(self) -> Array:
        """ΔH, measured."""
        return np.asarray(self.new_entropy - self.entropy)

    def estimate(self) -> Array:
        """-(log pi - mean)(A - mean), means over the step's tokens: what Eq. 18 averages; 1/beta is left out."""
        estimates = np.empty_like(self.log_prob)
        for step in np.unique(self.step):
            here = self.step == step
            log_prob, advantage = self.log_prob[here], self.advantage[here]
            estimates[here] = -(log_prob - log_prob.mean()) * (advantage - advantage.mean())
        return estimates


def run_nano(seed: int) -> Tokens:
    """Train the embedded model for `STEPS` steps without a KL, and measure every token's entropy before and after each.

    Nothing is written. Deterministic for a seed on one machine.
    """
    spec = compose_run(ARM, "nano", OVERRIDES, seed=seed)
    torch.set_num_threads(spec.resources.threads)
    loaded = load_model(spec.model, pick_device(spec.resources))
    engine = TransformersEngine(loaded.model, end_ids=loaded.end_ids, pad_id=loaded.pad_id)
    collector = Collector(spec, engine, loaded.tokenizer, open_source(spec.data))
    learner = Learner(spec, loaded)
    parts: list[Tokens] = []
    position = prompts = 0
    for step in range(1, spec.steps + 1):
        experience = collector.collect(step, position)
        position, groups = experience.position, experience.groups
        log_probs, entropies = _scores(learner.scorer, groups, loaded.pad_id)
        learner.learn(step, groups)
        _, new_entropies = _scores(learner.scorer, groups, loaded.pad_id)
        lengths = [len(response.token_ids) for group in groups for response in group.responses]
        advantages = [advantage for group in groups for advantage in group.advantages]
        prompt = [prompts + place for place, group in enumerate(groups) for _ in group.responses]
        parts.append(
            Tokens(
                step=np.full(sum(lengths), step, dtype=np.int64),
                prompt=np.repeat(np.asarray(prompt, dtype=np.int64), lengths),
                advantage=np.repeat(np.asarray(advantages, dtype=np.float64), lengths),
                log_prob=log_probs,
                entropy=entropies,
                new_entropy=new_entropies,
            )
        )
        prompts += len(groups)
        engine.sync_weights()
    engine.close()
    columns = ("step", "prompt", "advantage", "log_prob", "entropy", "new_entropy")
    return Tokens(*(np.concatenate([getattr(part, column) for part in parts]) for column in columns))


@torch.no_grad()
def _scores(scorer: Scorer, groups: Sequence[Group], pad_id: int) -> tuple[Array, Array]:
    """Log-probability and entropy of every response token, group by group and response by response."""
    rows = [(group.prompt_ids, response.token_ids) for group in groups for response in group.responses]
    log_probs, entropies = [], []
    for first in range(0, len(rows), ROWS):
        prompts, responses = zip(*rows[first : first + ROWS], strict=True)
        sequences = pack(prompts, responses, pad_id)
        scores = scorer(sequences)
        log_probs.append(scores.log_probs[sequences.response_mask].double().numpy())
        entropies.append(scores.entropy[sequences.response_mask].double().numpy())
    return np.concatenate(log_probs), np.concatenate(entropies)


def means(values: Array, groups: NDArray[np.int64]) -> Array:
    """The mean of `values` in each group, groups in ascending order."""
    _, places = np.unique(groups, return_inverse=True)
    return np.asarray(np.bincount(places, values) / np.bincount(places))


def check_tokens(tokens: Tokens) -> list[Check]:
    """How often the estimate has the sign of the measured change, over steps, prompts and tokens, and how they
    correlate."""
    estimate, change = tokens.estimate(), tokens.change
    return [
        _agreement("steps of a nano run", means(estimate, tokens.step), means(change, tokens.step)),
        _agreement("prompts of a nano run", means(estimate, tokens.prompt), means(change, tokens.prompt)),
        _agreement("tokens of a nano run", estimate, change),
    ]


def _agreement(among: str, estimate: Array, change: Array) -> Check:
    moves = (estimate != 0) & (change != 0)
    predicted, measured = estimate[moves] < 0, change[moves] < 0
    # Where nearly all entropies fall, two unrelated signs agree often.
    by_chance = predicted.mean() * measured.mean() + (1 - predicted.mean()) * (1 - measured.mean())
    # Pearson's r is undefined where either side does not vary.
    varies = estimate.size >= 2 and estimate.std() > 0 and change.std() > 0
    return count(
        "Eq. 18, 19",
        "-Cov(log pi, A) has the sign of the measured ΔH",
        among,
        predicted == measured,
        by_chance=round(float(by_chance), 4),
        pearson=round(float(np.corrcoef(estimate, change)[0, 1]), 4) if varies else 0.0,
        spearman=round(float(spearmanr(estimate, change).statistic), 4),
        mean_change=float(change.mean()),
    )
