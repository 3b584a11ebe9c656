"""Whether an evaluation was sampled with the trainer's weights: a few of its responses scored by the trainer's model.

A step's own responses are checked as it learns from them; no step follows the sync before the last evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tepo_lab.rollout.engine import DelegatingEngine, Engine, Finished, Prompts, Response, Sampling, ignore_response
from tepo_lab.train.model import LoadedModel
from tepo_lab.train.step.scoring import Scorer

#: Responses scored of an evaluation, at least one of each benchmark, and the first tokens of each that are.
RESPONSES, TOKENS = 8, 256


class CheckedEngine(DelegatingEngine):
    """An engine that keeps a few responses of each `generate`, where the engine gives log-probabilities of its own.

    Those are of the whole distribution at the call's temperature, of a greedy call at temperature 1 (as vLLM gives
    them). A call whose top_p cuts the distribution is not comparable, and left out.
    """

    def __init__(self, engine: Engine, calls: int) -> None:
        """Args: `calls`, how many of `generate` there will be."""
        super().__init__(engine)
        self.kept_of_each = max(1, RESPONSES // calls)
        #: Temperature, prompt, first tokens of a response and their log-probabilities.
        self.kept: list[tuple[float, Sequence[int], Sequence[int], Sequence[float]]] = []

    def generate(
        self, prompts: Prompts, *, samples: int, sampling: Sampling, finished: Finished = ignore_response
    ) -> list[list[Response]]:
        groups = self.engine.generate(prompts, samples=samples, sampling=sampling, finished=finished)
        if sampling.temperature == 0 or sampling.top_p == 1:
            for prompt, (first, *_) in zip(prompts[: self.kept_of_each], groups, strict=False):
                if first.log_probs is not None:
                    tokens = first.token_ids[:TOKENS], first.log_probs[:TOKENS]
                    self.kept.append((sampling.temperature or 1.0, prompt, *tokens))
        return groups

    @torch.no_grad()
    def mismatch(self, loaded: LoadedModel) -> float | None:
        """Mean distance of the kept log-probabilities from the trainer's, in nats a token; None where there are none.

        All processes of a sharded model must call it.
        """
        if not self.kept:
            return None
        scorer, differences = Scorer(loaded.model, temperature=1.0), []
        # One at a time: the engine may hold most of a GPU's memory.
        for temperature, prompt, ids, sampled in self.kept:
            scorer.temperature = temperature
            own = scorer(scorer.pack([prompt], [ids], loaded.pad_id)).log_probs[0].cpu()
            differences.append((own - torch.tensor(sampled)).abs())
        return float(torch.cat(differences).mean())
