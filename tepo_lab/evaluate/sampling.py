"""Sampling and grading side by side: a response is graded while others are still sampled.

Both may share cores. An answer's deadline is CPU time of the worker that grades it, so the grades are those of grading
everything afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from tepo_lab.rollout.engine import Engine, Response, Sampling
from tepo_lab.schema.problem import Problem
from tepo_lab.tasks.grading import Grade, Grading

#: A response's token ids to its text.
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Sampled:
    """Responses (P, G) to P prompts, and their grades, group after group.

    `texts` are those of the responses that this process sampled, by their place among all. `grade_seconds` are its
    own, with what it waited for grades when all was sampled; `rollout_seconds` are the others.
    """

    responses: list[list[Response]]
    grades: list[Grade]
    texts: dict[int, str]
    rollout_seconds: float
    grade_seconds: float


def decoder(tokenizer: Any) -> Decode:
    """The function from a response's token ids to its text."""
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))


def sample_and_grade(
    engine: Engine,
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
    *,
    samples: int,
    sampling: Sampling,
    text: Decode,
    grading: Grading,
) -> Sampled:
    """`samples` responses to each problem's prompt, each graded against its answer as soon as it is finished.

    `grading` is for this call alone: what of it still waits when the call ends early is cancelled.
    """
    spent = 0.0
    texts: dict[int, str] = {}

    def finished(prompt: int, sample: int, response: Response) -> None:
        nonlocal spent
        began = perf_counter()
        place = prompt * samples + sample
        texts[place] = text(response.token_ids)
        grading.add(place, texts[place], problems[prompt].answer)
        spent += perf_counter() - began

    began = perf_counter()
    with grading:
        responses = engine.generate(prompts, samples=samples, sampling=sampling, finished=finished)
        sampled = perf_counter()
        grades = grading.grades()
    ordered = [grades[place] for place in range(len(prompts) * samples)]
    return Sampled(responses, ordered, texts, sampled - began - spent, perf_counter() - sampled + spent)
