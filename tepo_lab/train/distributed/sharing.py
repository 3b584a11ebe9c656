"""Sampling and grading that the processes of one run divide; each gets the whole result."""

from __future__ import annotations

from dataclasses import replace

from tepo_lab.rollout.engine import DelegatingEngine, Engine, Finished, Prompts, Response, Sampling, ignore_response
from tepo_lab.tasks.grading import Grade, Grader, Grading
from tepo_lab.train.distributed.process_group import ProcessGroup


class SharedEngine(DelegatingEngine):
    """An engine in each process, which samples its share of the prompts. All must call it alike."""

    def __init__(self, engine: Engine, process_group: ProcessGroup) -> None:
        super().__init__(engine)
        self.process_group = process_group

    def generate(
        self, prompts: Prompts, *, samples: int, sampling: Sampling, finished: Finished = ignore_response
    ) -> list[list[Response]]:
        """What one process would have sampled for all prompts, to rounding of the logits."""

        def own(first: int, last: int) -> list[list[Response]]:
            def tell(prompt: int, sample: int, response: Response) -> None:
                finished(first + prompt, sample, response)

            placed = replace(sampling, first_prompt=sampling.first_prompt + first)
            return self.engine.generate(prompts[first:last], samples=samples, sampling=placed, finished=tell)

        return self.process_group.map_shares(own, len(prompts))


class SharedGrading(Grading):
    """A grading to which each process adds the responses it has; all get all grades."""

    def __init__(self, process_group: ProcessGroup, grader: Grader) -> None:
        super().__init__(grader)
        self.process_group = process_group

    def grades(self) -> dict[int, Grade]:
        return {place: grade for own in self.process_group.all_gather(super().grades()) for place, grade in own.items()}
