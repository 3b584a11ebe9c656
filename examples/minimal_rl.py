"""Reinforcement learning of a reasoning model in one file: sample, grade, score, update. Read this first.

    python examples/minimal_rl.py --arm tepo --steps 3

trains the embedded model (0.16 M parameters, running totals modulo 100) on a CPU, a few seconds a step, and prints the
metrics of every step. `--arm` takes any name from experiments/arm/, and further arguments override single values:
`objective.clip_high=0.4 trainer.learning_rate=2e-4`.

`tepo-lab run` makes the same updates (a test compares them), and adds what a long run needs: micro-batches, prompts
stored once per group, several GPUs, vLLM, checkpoints, records and evaluation. See tepo_lab/train/.

Shapes: P prompts a step, G responses to each, B = P x G rows, L tokens in the longest prompt with its response.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from tepo_lab.errors import TepoLabError
from tepo_lab.objectives import PolicyLoss, average_metrics, group_advantages
from tepo_lab.registry.compose import compose_run
from tepo_lab.rollout.engine import Sampling
from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.schema.run import RunSpec
from tepo_lab.tasks.grading import grade_all, grader_of
from tepo_lab.tasks.prompts import encode_prompts
from tepo_lab.tasks.sources import open_source
from tepo_lab.train.seeds import derive


@dataclass
class Groups:
    """Prompts with G sampled responses each, as token ids; rewards and advantages (P, G)."""

    prompts: list[list[int]]
    responses: list[list[tuple[int, ...]]]
    rewards: Tensor
    advantages: Tensor


@dataclass
class MiniBatch:
    """What one optimizer step learns from. B rows, each a prompt, its response and padding on the right.

    ids (B, L). All else is of the token that follows each position, (B, L-1): the response mask, advantages, and
    log-probabilities and entropies (nats) under the policy that sampled, before any update of this step.
    """

    ids: Tensor
    mask: Tensor
    advantages: Tensor
    old_log_probs: Tensor
    old_entropy: Tensor


def sample_groups(spec: RunSpec, model: Any, tokenizer: Any, step: int) -> Groups:
    """Sample G responses to each of the step's P prompts, grade them, and compare each with its group."""
    count, group_size = spec.trainer.prompts_per_step, spec.trainer.group_size

    # The problems of this step, and their prompts as token ids.
    problems = open_source(spec.data).training((step - 1) * count, count, seed=spec.seed)
    prompts = encode_prompts(problems, spec.prompt, tokenizer, max_tokens=spec.rollout.max_prompt_tokens)

    # G responses to each. The engine decodes with the model that is trained, so there are no weights to copy.
    engine = TransformersEngine(model, end_ids=[tokenizer.eos_token_id], pad_id=tokenizer.pad_token_id)
    sampling = Sampling(
        temperature=spec.rollout.temperature,
        top_p=spec.rollout.top_p,
        max_new_tokens=spec.rollout.max_new_tokens,
        seed=derive(spec.seed, "rollout", step, 0),
    )
    sampled = engine.generate(prompts, samples=group_size, sampling=sampling)
    responses = [[response.token_ids for response in group] for group in sampled]

    # The reward is 1 for a right answer in the box, and 0 for a wrong or missing one.
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for group in responses for ids in group]
    answers = [problem.answer for problem in problems for _ in range(group_size)]
    grades = grade_all(texts, answers, grader_of(spec.data, spec.prompt))
    rewards = torch.tensor([float(grade.correct) for grade in grades]).view(count, group_size)

    # No critic: an answer is good or bad in comparison with the other answers to the same prompt.
    return Groups(prompts, responses, rewards, group_advantages(spec.objective, rewards))


def score(model: Any, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each next token and entropy of its distribution, (B, L-1) each, from ids (B, L)."""
    # Padding on the right needs no attention mask: in a causal model no token of a response sees it.
    log_softmax = (model(ids[:, :-1]).logits / temperature).log_softmax(-1)
    log_probs = log_softmax.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    entropy = -(log_softmax.exp() * log_softmax).sum(-1)
    return log_probs, entropy


@torch.no_grad()
def make_mini_batch(spec: RunSpec, model: Any, pad_id: int, groups: Groups, chosen: Sequence[int]) -> MiniBatch:
    """The chosen prompts' responses as one padded batch, with the scores of the policy that sampled them."""
    rows = [(groups.prompts[p], response) for p in chosen for response in groups.responses[p]]
    width = max(len(prompt) + len(response) for prompt, response in rows)
    ids = torch.full((len(rows), width), pad_id)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        ids[row, :end] = torch.tensor([*prompt, *response])
        mask[row, len(prompt) : end] = True
    mask = mask[:, 1:]
    advantages = groups.advantages[list(chosen)].flatten().unsqueeze(-1).expand(mask.shape)
    # By the trainer's model, not the sampler's own numbers: then every ratio is exactly 1 before the first update.
    old_log_probs, old_entropy = score(model, ids, spec.rollout.temperature)
    return MiniBatch(ids, mask, advantages, old_log_probs, old_entropy)


def train_step(
    spec: RunSpec, model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer, policy_loss: PolicyLoss, step: int
) -> dict[str, float]:
    """One training step, numbered from 1: sampling, then several updates on what was sampled. Returns its metrics."""
    trainer = spec.trainer
    groups = sample_groups(spec, model, tokenizer, step)

    # Groups that are all right or all wrong have advantages of zero and teach nothing.
    mixed = [p for p, rewards in enumerate(groups.rewards.tolist()) if len(set(rewards)) > 1]

    # Mini-batches of whole groups, all scored before the first update.
    count = min(trainer.prompts_per_step // trainer.mini_batch_prompts, len(mixed))
    bounds = [part * len(mixed) // count for part in range(count + 1)] if count else [0]
    mini_batches = [
        make_mini_batch(spec, model, tokenizer.pad_token_id, groups, mixed[first:last])
        for first, last in pairwise(bounds)
    ]

    # For objectives that choose tokens at random (Clip-Cov).
    draws = torch.Generator().manual_seed(derive(spec.seed, "updates", step))
    updates = []
    for _ in range(trainer.epochs):
        for batch in mini_batches:
            # From the second update on the policy is no longer the one that sampled: ratios leave 1, clips take hold.
            log_probs, entropy = score(model, batch.ids, spec.rollout.temperature)
            out = policy_loss(
                log_probs=log_probs,
                old_log_probs=batch.old_log_probs,
                advantages=batch.advantages,
                response_mask=batch.mask,
                entropy=entropy,
                old_entropy=batch.old_entropy,
                generator=draws,
            )
            optimizer.zero_grad()
            out.loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), trainer.max_grad_norm)
            optimizer.step()
            updates.append((out.metrics | {"actor/grad_norm": float(norm)}, out.token_count))

    return average_metrics(updates) | {
        "reward/mean": groups.rewards.mean().item(),
        "actor/updates": float(len(updates)),
    }


def adamw(spec: RunSpec, model: Any) -> torch.optim.AdamW:
    """The optimizer, with the settings of the run."""
    rate, betas, decay = spec.trainer.learning_rate, spec.trainer.betas, spec.trainer.weight_decay
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=betas, weight_decay=decay)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train the embedded model with one arm's objective.")
    parser.add_argument("--arm", default="tepo", help="a name from experiments/arm/ (default: tepo)")
    parser.add_argument("--steps", type=int, default=3, help="training steps (default: 3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="values of the run to set")
    args = parser.parse_args(arguments)

    # An arm is data: one choice on each axis of an objective. With the profile `nano` it is a run, value by value.
    try:
        spec = compose_run(args.arm, "nano", args.overrides, seed=args.seed)
    except TepoLabError as error:
        parser.error(str(error))
    torch.set_num_threads(spec.resources.threads)
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(spec.model.folder)
    tokenizer = AutoTokenizer.from_pretrained(spec.model.folder)
    optimizer = adamw(spec, model)
    policy_loss = PolicyLoss(spec.objective)

    shown = ("reward/mean", "actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/grad_norm", "actor/pg_clipfrac")
    for step in range(1, args.steps + 1):
        metrics = train_step(spec, model, tokenizer, optimizer, policy_loss, step)
        print(f"step {step}: " + "  ".join(f"{name} {metrics[name]:.4f}" for name in shown if name in metrics))


if __name__ == "__main__":
    main()
