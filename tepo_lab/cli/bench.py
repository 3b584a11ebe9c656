"""Commands that measure."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tepo_lab.cli.common import examples, group

bench_app = group("bench", "Measure what a step costs on this machine.")


class BenchArm(StrEnum):
    """Arms whose step is measured."""

    grpo_dapo = "grpo_dapo"
    tepo_no_kl = "tepo_no_kl"
    tepo = "tepo"


class Device(StrEnum):
    """Where the step runs."""

    cpu = "cpu"
    cuda = "cuda"


class Dtype(StrEnum):
    """The numbers the model is loaded in."""

    float32 = "float32"
    bfloat16 = "bfloat16"


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
    arm: Annotated[BenchArm, typer.Option(help="Whose objective is taken.")] = BenchArm.grpo_dapo,
    device: Annotated[Device, typer.Option(help="Where the step runs.")] = Device.cpu,
    dtype: Annotated[Dtype, typer.Option(help="The numbers the model is loaded in.")] = Dtype.float32,
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
        arm=arm.value,
        prompts_per_step=prompts_per_step,
        group=group,
        updates=updates,
        max_new=max_new,
        steps=steps,
        warmup=warmup,
        device=device.value,
        dtype=dtype.value,
        threads=threads,
        micro_batch_tokens=micro_batch_tokens,
    )
    typer.echo(as_line(measure_step(bench)))
