"""Commands that measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tepo_lab.cli.common import examples, group

bench_app = group("bench", "Measure what a step costs on this machine.")


@bench_app.command(epilog=examples("bench step --checkpoint my-model --prompts prompts.jsonl --arm tepo"))
def step(
    checkpoint: Annotated[Path, typer.Option(help="Folder with a causal language model and its tokenizer.")],
    prompts: Annotated[Path, typer.Option(help="JSON lines with `prompt` and `answer`, taken in order.")],
    prompts_per_step: Annotated[int, typer.Option(min=1, help="Prompts of one rollout.")] = 64,
    group: Annotated[int, typer.Option(min=2, help="Responses to each prompt.")] = 8,
    updates: Annotated[int, typer.Option(min=1, help="Optimizer steps for one rollout.")] = 8,
    max_new: Annotated[int, typer.Option(min=1, help="Longest response, in tokens.")] = 40,
    steps: Annotated[int, typer.Option(min=1, help="Steps measured.")] = 12,
    warmup: Annotated[int, typer.Option(min=0, help="Steps before them.")] = 2,
    arm: Annotated[
        Literal["grpo_dapo", "tepo_no_kl", "tepo"], typer.Option(help="Whose objective is taken.")
    ] = "grpo_dapo",
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where the step runs.")] = "cpu",
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="The numbers the model is loaded in.")
    ] = "float32",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    micro_batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens in one forward pass; else a mini-batch at once.")
    ] = None,
) -> None:
    """Measure training steps: rollout, scoring and updates.

    Old log-probabilities are recomputed, and no group is dropped.

    Prints one JSON object: CPU and wall seconds a step, their split, useful tokens a second, peak memory, and the
    floor: the useful arithmetic at the speed of this machine's matrix product (on a GPU also the memory traffic).
    """
    from tepo_lab.bench.step import StepBench, as_line, measure_step

    bench = StepBench(
        checkpoint=checkpoint,
        prompts=prompts,
        arm=arm,
        prompts_per_step=prompts_per_step,
        group=group,
        updates=updates,
        max_new=max_new,
        steps=steps,
        warmup=warmup,
        device=device,
        dtype=dtype,
        threads=threads,
        micro_batch_tokens=micro_batch_tokens,
    )
    typer.echo(as_line(measure_step(bench)))
