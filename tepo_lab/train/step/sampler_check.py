"""Whether responses were sampled with the trainer's weights: the sampler's log-probs against the trainer's.

A training step compares its own responses. No step follows the weight sync before the last evaluation, so a few
responses of every evaluation are scored by the trainer's model as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tepo_lab.rollout.engine import DelegatingEngine, Engine, Finished, Prompts, Response, Sampling, ignore_response
from tepo_lab.schema.step_metrics import SAMPLER_MISMATCH
from tepo_lab.train.distributed.process_group import ProcessGroup
from tepo_lab.train.model import LoadedModel
from tepo_lab.train.step.batches import MiniBatch
from tepo_lab.train.step.scoring import Scorer

#: Responses of an evaluation that are scored (at least one of each benchmark), and first tokens of each.
RESPONSES, TOKENS = 8, 256


def rollout_mismatch(mini_batches: Sequence[MiniBatch], process_group: ProcessGroup) -> dict[str, float]:
    """Mean and largest distance of the sampler's log-probs from the trainer's, in nats; empty where it has none."""
    differences = [torch.empty(0)]
    for mini_batch in mini_batches:
        for micro_batch in mini_batch.micro_batches:
            if micro_batch.sampler_log_probs and micro_batch.old is not None:
                rows = zip(micro_batch.old.log_probs.cpu(), micro_batch.sampler_log_probs, strict=True)
                differences += [(own[: len(sampled)] - torch.tensor(sampled)).abs() for own, sampled in rows]
    joined = torch.cat(differences)
    own_sums = float(joined.sum()), len(joined), float(joined.max()) if len(joined) else 0.0
    sums, counts, largest = zip(*process_group.all_gather(own_sums), strict=True)
    if not sum(counts):
        return {}
    return {SAMPLER_MISMATCH: sum(sums) / sum(counts), "rollout/sampler_mismatch_max": max(largest)}


class CheckedEngine(DelegatingEngine):
    """An engine that keeps a few responses of each `generate`, where the engine returns log-probs.

    Those are of the whole distribution at the call's temperature, or at temperature 1 of a greedy call (as vLLM
    returns them). A call with top_p below 1 is not comparable and is skipped.
    """

    def __init__(self, engine: Engine, calls: int) -> None:
        """Args: `calls`, the number of calls of `generate` to expect."""
        super().__init__(engine)
        self.kept_per_call = max(1, RESPONSES // calls)
        #: Temperature, prompt, first tokens of a response and their log-probs.
        self.kept: list[tuple[float, Sequence[int], Sequence[int], Sequence[float]]] = []

    def generate(
        self, prompts: Prompts, *, samples: int, sampling: Sampling, finished: Finished = ignore_response
    ) -> list[list[Response]]:
        groups = self.engine.generate(prompts, samples=samples, sampling=sampling, finished=finished)
        if sampling.temperature == 0 or sampling.top_p == 1:
            for prompt, (first, *_) in zip(prompts[: self.kept_per_call], groups, strict=False):
                if first.log_probs is not None:
                    tokens = first.token_ids[:TOKENS], first.log_probs[:TOKENS]
                    self.kept.append((sampling.temperature or 1.0, prompt, *tokens))
        return groups

    @torch.no_grad()
    def mismatch(self, loaded: LoadedModel) -> float | None:
        """Mean distance of the kept log-probs from the trainer's, in nats per token; None where there are none.

        Every rank of a sharded model must call it.
        """
        if not self.kept:
            return None
        scorer, differences = Scorer(loaded.model, temperature=1.0), []
        # One response at a time: the engine may hold most of a GPU's memory.
        for temperature, prompt, ids, sampled in self.kept:
            scorer.temperature = temperature
            own = scorer(scorer.pack([prompt], [ids], loaded.pad_id)).log_probs[0].cpu()
            differences.append((own - torch.tensor(sampled)).abs())
        return float(torch.cat(differences).mean())
