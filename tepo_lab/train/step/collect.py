"""The first half of a training step: sample groups of responses, grade them, compute advantages, select groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tepo_lab.errors import DataError
from tepo_lab.evaluate.sampling import decoder, sample_and_grade
from tepo_lab.objectives import group_advantages
from tepo_lab.rollout.engine import Engine, Response, Sampling
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.run import RunSpec
from tepo_lab.tasks.grading import Grading, OpenGrading, grader_of
from tepo_lab.tasks.overlap import without_overlaps
from tepo_lab.tasks.prompts import encode_prompts
from tepo_lab.tasks.sources import ProblemSource
from tepo_lab.train.seeds import derive


@dataclass(frozen=True)
class Group:
    """One prompt's G responses with their rewards (0 or 1) and advantages."""

    problem: Problem
    prompt_ids: list[int]
    responses: list[Response]
    rewards: list[float]
    advantages: list[float]

    @property
    def is_mixed(self) -> bool:
        """Whether some responses are right and some wrong, so that advantages are not all zero."""
        return len(set(self.rewards)) > 1


@dataclass(frozen=True)
class Experience:
    """The groups to learn from, the position in the data after them, and metrics of all that was sampled."""

    groups: list[Group]
    position: int
    metrics: dict[str, float]


class Collector:
    """Samples, grades and selects groups. Problems of `source` that are in a benchmark of the suite are skipped."""

    def __init__(
        self,
        spec: RunSpec,
        engine: Engine,
        tokenizer: Any,
        source: ProblemSource,
        *,
        open_grading: OpenGrading = Grading,
    ) -> None:
        self.spec = spec
        self.engine = engine
        self.tokenizer = tokenizer
        self.source, self.dropped = without_overlaps(source, spec.suite)
        self.open_grading = open_grading
        self.grader = grader_of(spec.data, spec.prompt)
        self.timed_out = 0

    def collect(self, step: int, position: int) -> Experience:
        """The experience of training step `step`, whose prompts begin at `position` of the data.

        With `dynamic_sampling: drop`, groups all right or all wrong are dropped; with `refill`, more prompts are
        sampled until there are enough mixed groups; with `off`, all groups stay.
        Raises `DataError` when refilling does not find enough within `max_generation_batches`.
        """
        trainer = self.spec.trainer
        wanted = trainer.prompts_per_step
        sampled: list[Group] = []
        seconds = {"rollout": 0.0, "grade": 0.0}
        limit = trainer.max_generation_batches if trainer.dynamic_sampling == "refill" else 1
        batches = self.timed_out = 0
        while batches < limit:
            sampled += self._sample(step, batches, position, seconds)
            position += wanted
            batches += 1
            if sum(group.is_mixed for group in sampled) >= wanted:
                break
        groups = sampled if trainer.dynamic_sampling == "off" else [group for group in sampled if group.is_mixed]
        if trainer.dynamic_sampling == "refill" and len(groups) < wanted:
            raise DataError(
                f"step {step}: {batches} batches of {wanted} prompts gave {len(groups)} groups neither all right nor "
                "all wrong; raise trainer.max_generation_batches or set trainer.dynamic_sampling=drop."
            )
        groups = groups[:wanted]
        metrics = _rollout_metrics(sampled)
        metrics |= {"rollout/kept_groups": float(len(groups)), "rollout/generation_batches": float(batches)}
        metrics |= {f"seconds/{phase}": value for phase, value in seconds.items()}
        if self.grader.symbolic:
            metrics |= {"reward/timed_out": float(self.timed_out), "data/dropped_overlaps": float(self.dropped)}
        return Experience(groups, position, metrics)

    def _sample(self, step: int, batch: int, position: int, seconds: dict[str, float]) -> list[Group]:
        rollout, trainer = self.spec.rollout, self.spec.trainer
        problems = self.source.training(position, trainer.prompts_per_step, seed=self.spec.seed)
        prompts = encode_prompts(
            problems,
            self.spec.prompt,
            self.tokenizer,
            max_tokens=rollout.max_prompt_tokens,
            system_role=self.spec.model.system_role,
        )
        sampled = sample_and_grade(
            self.engine,
            problems,
            prompts,
            samples=trainer.group_size,
            sampling=Sampling(
                temperature=rollout.temperature,
                top_p=rollout.top_p,
                max_new_tokens=rollout.max_new_tokens,
                seed=derive(self.spec.seed, "rollout", step, batch),
            ),
            text=decoder(self.tokenizer),
            grading=self.open_grading(self.grader),
        )
        seconds["rollout"] += sampled.rollout_seconds
        seconds["grade"] += sampled.grade_seconds
        self.timed_out += sum(grade.how == "timeout" for grade in sampled.grades)
        # 1 for a right answer, 0 for any other, truncated responses among them.
        correct = [float(grade.correct) for grade in sampled.grades]
        rewards = torch.tensor(correct).view(len(problems), trainer.group_size)
        advantages = group_advantages(self.spec.objective, rewards).tolist()
        columns = (problems, prompts, sampled.responses, rewards.tolist(), advantages)
        return [Group(*group) for group in zip(*columns, strict=True)]


def _rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    lengths = [len(response.token_ids) for group in groups for response in group.responses]
    truncated = sum(response.truncated for group in groups for response in group.responses)
    rewards = [reward for group in groups for reward in group.rewards]
    prompt_tokens = sum(len(group.prompt_ids) for group in groups)
    return {
        "reward/mean": sum(rewards) / len(rewards),
        "reward/all_right_groups": sum(min(group.rewards) > 0 for group in groups) / len(groups),
        "reward/all_wrong_groups": sum(max(group.rewards) == 0 for group in groups) / len(groups),
        "rollout/response_tokens_mean": sum(lengths) / len(lengths),
        "rollout/response_tokens_max": float(max(lengths)),
        "rollout/truncated_share": truncated / len(lengths),
        "rollout/tokens": float(sum(lengths)),
        "rollout/prompt_tokens": float(prompt_tokens),
    }
