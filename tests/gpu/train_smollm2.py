"""Trains SmolLM2-135M with one of our objectives, without Ray and MLflow, and prints what it measures.

    python tests/gpu/train_smollm2.py --checkpoint DIR [--data gsm8k_train.jsonl] [--arm tepo] [--steps 30]
    torchrun --nproc-per-node 8 tests/gpu/train_smollm2.py --checkpoint DIR --engine vllm    # sharded over 8 GPUs

Without --data it trains on sums of two or three small numbers, which the model half knows. Per step: reward, kept
groups, entropy, tokens/s of the sampling, seconds by phase, GPU memory; then a JSON line with all of it. Before and
after, the log-probabilities of greedy responses in the run's precision are compared with the same weights in float32.
Of several processes the first prints.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import read_events
from tepo_lab.registry.compose import compose_run
from tepo_lab.rollout.engine import Sampling
from tepo_lab.schema.run import RunSpec
from tepo_lab.tasks.prompts import encode_prompts
from tepo_lab.tasks.sources import ListSource, open_source
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup, TorchProcessGroup
from tepo_lab.train.distributed.sharded import full_weights
from tepo_lab.train.step.scoring import Scorer, pack
from tepo_lab.train.trial import SAMPLER_MISMATCH, Progress, Trial

PHASES = ("rollout", "grade", "old_log_probs", "update")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train as the arguments say. Returns what is printed last."""
    asked = _parser().parse_args(arguments)
    process_group = _process_group(asked.device)
    with tempfile.TemporaryDirectory() as own:
        scratch = process_group.on_rank_zero(lambda: own)
        data = asked.data or process_group.on_rank_zero(lambda: write_sums(Path(scratch) / "sums.jsonl"))
        spec = spec_of(asked, data, process_group.world_size)
        began = time.perf_counter()
        run = Path(scratch) / "run"
        run.mkdir(exist_ok=True)
        trial = Trial(spec, RunFolder(run), process_group=process_group)
        before, steps = agreement(trial), []
        while not trial.done:
            progress = trial.advance()
            if progress.phase == "training":
                steps.append(shown(progress, is_first=process_group.is_rank_zero))
        result = {
            "arm": spec.arm.name,
            "device": str(trial.loaded.model.device),
            "dtype": spec.model.dtype,
            "processes": process_group.world_size,
            "seconds": time.perf_counter() - began,
            "steps": steps,
            "reward_first_quarter": _mean_reward(steps[: max(1, len(steps) // 4)]),
            "reward_last_quarter": _mean_reward(steps[-max(1, len(steps) // 4) :]),
            "evaluated": [event.line() for event in read_events(trial.folder) if event.event == "evaluated"],
            "agreement_before": before,
            "agreement_after": agreement(trial),
        }
        # The folder is the first process's: nobody needs it any more.
        process_group.all_gather(None)
        trial.close()
    if process_group.is_rank_zero:
        print(json.dumps(result))  # noqa: T201
    return result


def _process_group(device: str) -> ProcessGroup:
    """The processes that torchrun has started, each with a GPU of its own; or this one alone."""
    if "LOCAL_RANK" not in os.environ:
        return SINGLE_PROCESS
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return TorchProcessGroup()


def spec_of(asked: argparse.Namespace, data: Path, processes: int = 1) -> RunSpec:
    """The run: the profile smollm2-135m, a device for each process, with the sizes that were asked for."""
    on_gpu = asked.device == "cuda"
    return compose_run(
        asked.arm,
        "smollm2-135m",
        (
            f"model.path={asked.checkpoint.resolve()}",
            "model.sha256=null",
            f"model.dtype={asked.dtype}",
            f"data.path={data.resolve()}",
            "prompt=two_shot",
            "suite=gsm8k_smoke",
            f"suite.max_new_tokens={asked.tokens}",
            f"rollout.max_new_tokens={asked.tokens}",
            f"rollout.engine={asked.engine}",
            "rollout.temperature=0.8",
            f"rollout.sequences_per_batch={512 if on_gpu else 64}",
            f"trainer.steps={asked.steps}",
            f"trainer.prompts_per_step={asked.prompts}",
            f"trainer.mini_batch_prompts={max(1, asked.prompts // 8)}",
            f"trainer.learning_rate={asked.learning_rate}",
            "trainer.micro_batch_tokens=" + ("65536" if on_gpu else "2048"),
            f"trainer.checkpoint_every={asked.steps}",
            f"resources={{cpus: {processes}, gpus: {processes * on_gpu}, learners: {processes}, "
            f"threads: {asked.threads}, device: {asked.device}}}",
        ),
        seed=1,
    )


def shown(progress: Progress, *, is_first: bool) -> dict[str, float]:
    """One step's figures, printed on a line by the first process; memory is this process's."""
    metrics = {name: value or 0.0 for name, value in progress.metrics.items()}
    figures = {
        "step": float(progress.step),
        "reward": metrics["reward/mean"],
        "kept_groups": metrics["rollout/kept_groups"],
        "entropy": metrics.get("actor/entropy", 0.0),
        "tokens_per_s": metrics["rollout/tokens"] / metrics["seconds/rollout"],
        "seconds": metrics["seconds/step"],
        **{phase: metrics[f"seconds/{phase}"] for phase in PHASES},
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0,
    }
    if SAMPLER_MISMATCH in progress.metrics:
        # What was not finite is null.
        mismatch = progress.metrics[SAMPLER_MISMATCH]
        figures["sampler_mismatch_mean"] = math.nan if mismatch is None else mismatch
    if is_first:
        print("  ".join(f"{name} {value:.4g}" for name, value in figures.items()), file=sys.stderr)  # noqa: T201
    return figures


@torch.no_grad()
def agreement(trial: Trial) -> dict[str, float]:
    """How far log-probabilities in the run's precision lie from float32's, in nats, on greedy responses."""
    loaded, spec = trial.loaded, trial.spec
    source = open_source(spec.data)
    assert isinstance(source, ListSource)
    prompts = encode_prompts(source.problems[:8], spec.prompt, loaded.tokenizer, max_tokens=512)
    groups = trial.engine.generate(prompts, samples=1, sampling=Sampling(0.0, spec.rollout.max_new_tokens))
    rows = pack(prompts, [group[0].token_ids for group in groups], loaded.pad_id)
    own = Scorer(loaded.model, temperature=1.0)(rows)
    precise = type(loaded.model)(loaded.model.config).to(loaded.model.device)
    precise.load_state_dict(dict(full_weights(loaded.model)))
    exact = Scorer(precise.eval(), temperature=1.0)(rows)
    difference = (own.log_probs - exact.log_probs).abs()[rows.response_mask.to(own.log_probs.device)]
    return {"mean": float(difference.mean()), "max": float(difference.max())}


def write_sums(path: Path, count: int = 3000) -> Path:
    """Problems "What is 17 + 5 - 8?" with their answers, as JSON lines."""
    draw = random.Random(0)
    texts: dict[str, int] = {}
    while len(texts) < count:
        terms = [draw.randint(2, 20), *(draw.choice((-1, 1)) * draw.randint(1, 9) for _ in range(draw.randint(1, 2)))]
        shown = f"{terms[0]}" + "".join(f" {'+' if term > 0 else '-'} {abs(term)}" for term in terms[1:])
        texts[f"What is {shown}?"] = sum(terms)
    rows = [{"id": f"sum-{n}", "problem": text, "answer": str(texts[text])} for n, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _mean_reward(steps: list[dict[str, float]]) -> float:
    return sum(step["reward"] for step in steps) / len(steps)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="what `tepo-lab model import` wrote")
    parser.add_argument("--data", type=Path, help="GSM8K's training problems, with columns problem, answer and id")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--arm", default="grpo_dapo")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--prompts", type=int, default=64, help="per step, each with 8 responses")
    parser.add_argument("--tokens", type=int, default=32, help="of a response, at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    return parser


if __name__ == "__main__":
    main()
