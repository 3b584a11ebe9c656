"""What a training step takes, and what a run leaves on disk."""

# ruff: noqa: T201 - a program that prints
from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

ARMS = ("grpo_dapo", "tepo_no_kl", "tepo")

#: Steps of the run whose records are weighed.
RUN_STEPS = 72


def step_split(scratch: Path, checkpoint: Path | None, prompts: Path | None, steps: int) -> dict[str, Any]:
    """`tepo-lab bench step` of each arm."""
    checkpoint = checkpoint or Path(str(resources.files("tepo_lab"))) / "assets" / "nano"
    prompts = prompts or _embedded_prompts(scratch / "prompts.jsonl")
    found = {}
    for arm in ARMS:
        found[arm] = _our_step(checkpoint, prompts, steps, arm)
        print(_described(f"{checkpoint.name} {arm}", found[arm]), flush=True)
    relative = found["tepo"]["cpu_s_per_step"] / found["tepo_no_kl"]["cpu_s_per_step"]
    print(f"tepo over tepo_no_kl: {relative:.2f} (target at most 1.10)")
    return found | {"tepo_over_tepo_no_kl": relative}


def yardstick_ratios(
    yardstick: Sequence[str], checkpoint: Path, prompts: Path, steps: int, rounds: int, arms: Sequence[str]
) -> dict[str, Any]:
    """CPU seconds of another trainer over ours, taking turns with each of the arms: the median of the rounds' ratios.

    Returns theirs, a list with one entry a round; and by arm the ratios, their median, and ours.
    """
    theirs: list[dict[str, Any]] = []
    ours: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for _ in range(rounds):
        theirs.append(_printed([*yardstick, *_unit(checkpoint, prompts, steps)]))
        for arm in arms:
            ours[arm].append(_our_step(checkpoint, prompts, steps, arm))
    found = {}
    for arm, each in ours.items():
        pairs = zip(theirs, each, strict=True)
        ratios = [their["cpu_s_per_step"] / our["cpu_s_per_step"] for their, our in pairs]
        found[arm] = {"ratios": ratios, "median": statistics.median(ratios), "ours": each}
        print(
            f"{checkpoint.name} {arm}: {found[arm]['median']:.2f} times as fast as "
            f"{theirs[-1].get('tool', 'the yardstick')}, median of {rounds} rounds",
            flush=True,
        )
    return {"theirs": theirs, "arms": found}


def records_size(scratch: Path) -> dict[str, float]:
    """MiB that a nano run of 72 steps leaves, its checkpoints apart; the run takes some minutes."""
    from tepo_lab.execute.planning.actions import entry
    from tepo_lab.execute.running.prepare import prepare_folder
    from tepo_lab.registry.compose import compose_run
    from tepo_lab.registry.expand import planned
    from tepo_lab.train.trial import run_trial

    run = compose_run("tepo", "nano", (f"trainer.steps={RUN_STEPS}",), seed=1)
    found = entry(scratch / "records", planned(run))
    prepare_folder(found)
    run_trial(found.planned.spec, found.folder)
    sizes = {each: each.stat().st_size for each in found.folder.path.rglob("*") if each.is_file()}
    checkpoints = sum(size for each, size in sizes.items() if found.folder.checkpoints in each.parents)
    records = (sum(sizes.values()) - checkpoints) / 2**20
    evaluations = len(found.folder.generation_steps())
    print(
        f"records of {RUN_STEPS} steps, {evaluations} of them evaluated: {records:.1f} MiB (target 20), and "
        f"{checkpoints / 2**20:.1f} MiB of checkpoints",
        flush=True,
    )
    return {"records_mib": records, "checkpoints_mib": checkpoints / 2**20, "evaluations": evaluations}


def _our_step(checkpoint: Path, prompts: Path, steps: int, arm: str) -> dict[str, Any]:
    program = [sys.executable, "-c", "from tepo_lab.cli import main; main()", "bench", "step", "--arm", arm]
    return _printed([*program, *_unit(checkpoint, prompts, steps)])


def _unit(checkpoint: Path, prompts: Path, steps: int) -> list[str]:
    return ["--checkpoint", str(checkpoint), "--prompts", str(prompts), "--steps", str(steps)]


def _printed(program: Sequence[str]) -> dict[str, Any]:
    """The JSON object that a program prints, among other lines."""
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"tool"')]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{' '.join(program)} ended with {done.returncode}: {done.stderr[-500:]}")
    values: dict[str, Any] = json.loads(lines[-1])
    return values


def _described(name: str, values: dict[str, Any]) -> str:
    split = values["split"]
    return (
        f"{name:24}{values['cpu_s_per_step']:7.3f} CPU s a step (rollout {split['rollout']:.3f}, old log-probabilities "
        f"{split['old_log_probs']:.3f}, update {split['update']:.3f}); floor {values['floor_flops_s']:.3f}"
    )


def _embedded_prompts(path: Path) -> Path:
    """Training problems of the embedded task."""
    from tepo_lab.registry.compose import compose_run
    from tepo_lab.tasks.sources import open_source

    problems = open_source(compose_run("tepo", "nano").data).training(0, 1024, seed=0)
    path.write_text("".join(json.dumps({"prompt": each.prompt, "answer": each.answer}) + "\n" for each in problems))
    return path
