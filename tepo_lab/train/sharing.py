"""Sampling and grading that the processes of one run divide; each gets the whole result."""

from __future__ import annotations

from collections.abc import Sequence

from tepo_lab.rollout.engine import Engine, Response, Sampling
from tepo_lab.tasks.grading import Grade, Grader, grade_all
from tepo_lab.train.peers import Peers


class SharedEngine:
    """An engine in each process, which samples its share of the prompts. All must call it alike."""

    def __init__(self, engine: Engine, peers: Peers) -> None:
        self.engine = engine
        self.peers = peers

    def generate(
        self, prompts: Sequence[Sequence[int]], *, samples: int, sampling: Sampling, first_prompt: int = 0
    ) -> list[list[Response]]:
        """What one process would have sampled for all prompts, to rounding of the logits."""

        def own(first: int, last: int) -> list[list[Response]]:
            begin = first_prompt + first
            return self.engine.generate(prompts[first:last], samples=samples, sampling=sampling, first_prompt=begin)

        return self.peers.divided(own, len(prompts))

    def sync_weights(self) -> None:
        self.engine.sync_weights()

    def close(self) -> None:
        self.engine.close()


class SharedGrading:
    """`grade_all` with the answers divided among the processes. All must call it alike."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers

    def __call__(self, texts: Sequence[str], answers: Sequence[str], grader: Grader) -> list[Grade]:
        return self.peers.divided(
            lambda first, last: grade_all(texts[first:last], answers[first:last], grader), len(texts)
        )
