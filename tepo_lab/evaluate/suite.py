"""Samples a suite of benchmarks with a model, grades every answer, and keeps one record a generation."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo_lab.rollout.engine import Engine, Sampling
from tepo_lab.schema.profile import Benchmark, PromptSpec, Suite
from tepo_lab.schema.record import GENERATION_COLUMNS, write_whole
from tepo_lab.tasks.grading import GRADER, GradeAll, benchmark_grader, grade_all
from tepo_lab.tasks.prompts import encode_prompts
from tepo_lab.tasks.sources import open_source


@dataclass(frozen=True)
class Count:
    """`correct` of `graded` generations."""

    correct: int
    graded: int


def evaluate(
    engine: Engine,
    tokenizer: Any,
    suite: Suite,
    prompt: PromptSpec,
    *,
    max_prompt_tokens: int,
    grade: GradeAll = grade_all,
    on_benchmark: Callable[[str, Count], None] = lambda name, count: None,
) -> list[dict[str, Any]]:
    """One row (`GENERATION_COLUMNS`) a generation: every problem of every benchmark, as often as it states.

    A benchmark is asked with its own prompt where it has one, else with `prompt`, and graded by its own grader.
    The draws depend on the suite's seed alone, so every model of a profile meets the same noise.
    `on_benchmark` is told each benchmark's count when it is done.
    """
    rows: list[dict[str, Any]] = []
    for index, (name, benchmark) in enumerate(suite.benchmarks.items()):
        sampling = Sampling(
            temperature=benchmark.temperature,
            top_p=benchmark.top_p,
            max_new_tokens=suite.max_new_tokens,
            seed=suite.seed * 1000 + index,
        )
        graded = _benchmark_rows(engine, tokenizer, name, benchmark, prompt, sampling, max_prompt_tokens, grade)
        on_benchmark(name, Count(sum(row["correct"] for row in graded), len(graded)))
        rows += graded
    return rows


def counts(rows: list[dict[str, Any]]) -> dict[str, Count]:
    """Right and graded generations of each benchmark, in the rows' order."""
    found: dict[str, Count] = {}
    for row in rows:
        before = found.get(row["benchmark"], Count(0, 0))
        found[row["benchmark"]] = Count(before.correct + row["correct"], before.graded + 1)
    return found


def write_generations(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write all rows of one evaluation as Parquet, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([{column: row[column] for column in GENERATION_COLUMNS} for row in rows])
    buffer = io.BytesIO()
    # With the checksums a reader can tell bits that a disk has changed.
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    write_whole(path, buffer.getvalue())


def _benchmark_rows(
    engine: Engine,
    tokenizer: Any,
    name: str,
    benchmark: Benchmark,
    prompt: PromptSpec,
    sampling: Sampling,
    max_prompt_tokens: int,
    grade: GradeAll,
) -> list[dict[str, Any]]:
    problems = open_source(benchmark.data).benchmark(benchmark.problems)
    prompts = encode_prompts(problems, benchmark.prompt or prompt, tokenizer, max_tokens=max_prompt_tokens)
    groups = engine.generate(prompts, samples=benchmark.samples, sampling=sampling)
    pairs = [
        (problem, sample, response)
        for problem, group in zip(problems, groups, strict=True)
        for sample, response in enumerate(group)
    ]
    texts = tokenizer.batch_decode([response.token_ids for _, _, response in pairs], skip_special_tokens=True)
    answers = [problem.answer for problem, _, _ in pairs]
    grades = grade(texts, answers, benchmark_grader(benchmark, prompt))
    return [
        {
            "benchmark": name,
            "problem": problem.id,
            "sample": sample,
            "prompt": problem.prompt,
            "answer": problem.answer,
            "response": text,
            "tokens": len(response.token_ids),
            "truncated": response.truncated,
            "extracted": grade.extracted,
            "correct": grade.correct,
            "how": grade.how,
            "grader": GRADER,
        }
        for (problem, sample, response), text, grade in zip(pairs, texts, grades, strict=True)
    ]
