"""Samples a suite of benchmarks with a model and grades every answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tepo_lab.evaluate.sampling import Decode, Sampled, decoder, sample_and_grade
from tepo_lab.records.events import Tally
from tepo_lab.rollout.engine import Engine, Sampling
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import PromptSpec, Suite
from tepo_lab.tasks.grading import GRADER, Grading, OpenGrading, benchmark_grader
from tepo_lab.tasks.prompts import encode_prompts
from tepo_lab.tasks.sources import open_source


def evaluate(
    engine: Engine,
    tokenizer: Any,
    suite: Suite,
    prompt: PromptSpec,
    *,
    max_prompt_tokens: int,
    system_role: bool = True,
    open_grading: OpenGrading = Grading,
    on_benchmark: Callable[[str, Tally], None] = lambda name, tally: None,
) -> list[dict[str, Any]]:
    """One row (`GENERATION_COLUMNS`) a generation: every problem of every benchmark, as often as it states.

    A benchmark is asked with its own prompt where it has one, else with `prompt`, and graded by its own grader.
    `system_role`: whether the model's chat template takes a system message (`prompt_text`).
    The draws depend on the suite's seed alone, so every model of a profile gets the same noise.
    `on_benchmark` is called with each benchmark's count when it is done.
    Raises `DataError` for problems that are missing, or not as many as stated, before anything is sampled.
    """
    held_out = {
        name: open_source(benchmark.data).benchmark(benchmark.problems) for name, benchmark in suite.benchmarks.items()
    }
    rows: list[dict[str, Any]] = []
    for index, (name, benchmark) in enumerate(suite.benchmarks.items()):
        sampling = Sampling(
            temperature=benchmark.temperature,
            top_p=benchmark.top_p,
            max_new_tokens=suite.max_new_tokens,
            seed=suite.seed * 1000 + index,
        )
        problems = held_out[name]
        prompts = encode_prompts(
            problems, benchmark.prompt or prompt, tokenizer, max_tokens=max_prompt_tokens, system_role=system_role
        )
        text = decoder(tokenizer)
        sampled = sample_and_grade(
            engine,
            problems,
            prompts,
            samples=benchmark.samples,
            sampling=sampling,
            text=text,
            grading=open_grading(benchmark_grader(benchmark, prompt)),
        )
        graded = _rows(name, problems, sampled, text)
        on_benchmark(name, Tally(correct=sum(row["correct"] for row in graded), graded=len(graded)))
        rows += graded
    return rows


def counts(rows: list[dict[str, Any]]) -> dict[str, Tally]:
    """Right and graded generations of each benchmark, in the rows' order."""
    grades: dict[str, list[int]] = {}
    for row in rows:
        grades.setdefault(row["benchmark"], []).append(int(row["correct"]))
    return {name: Tally(correct=sum(correct), graded=len(correct)) for name, correct in grades.items()}


def _rows(name: str, problems: Sequence[Problem], sampled: Sampled, text: Decode) -> list[dict[str, Any]]:
    """A benchmark's generations as rows."""
    pairs = [
        (problem, sample, response)
        for problem, group in zip(problems, sampled.responses, strict=True)
        for sample, response in enumerate(group)
    ]
    return [
        {
            "benchmark": name,
            "problem": problem.id,
            "sample": sample,
            "prompt": problem.prompt,
            "answer": problem.answer,
            # What another process sampled has not been decoded here.
            "response": sampled.texts[place] if place in sampled.texts else text(response.token_ids),
            "tokens": len(response.token_ids),
            "truncated": response.truncated,
            "extracted": grade.extracted,
            "correct": grade.correct,
            "how": grade.how,
            "grader": GRADER,
        }
        for place, ((problem, sample, response), grade) in enumerate(zip(pairs, sampled.grades, strict=True))
    ]
