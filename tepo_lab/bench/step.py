"""Measures the training step: one unit of work through the trainer's own classes, and the machine's lower bound."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import torch

from tepo_lab.bench.floors import Work, byte_floor, flop_floor, peak_bandwidth, peak_flops
from tepo_lab.errors import ConfigError, DataError
from tepo_lab.registry.compose import compose_run
from tepo_lab.rollout.engine import DelegatingEngine, Engine, Finished, Prompts, Response, Sampling, ignore_response
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import DatasetData, ModelSpec
from tepo_lab.schema.run import RunSpec
from tepo_lab.tasks.answers import last_boxed
from tepo_lab.tasks.grading import Grader, Grading
from tepo_lab.tasks.sources import ListSource, open_source
from tepo_lab.train.engines import open_engine
from tepo_lab.train.model import load_model, pick_device
from tepo_lab.train.step.collect import Collector
from tepo_lab.train.step.learner import Learner

#: Arms whose step is measured: the baseline, the sequence-level ratio, and that with its penalty.
Arm = Literal["grpo_dapo", "tepo_no_kl", "tepo"]


@dataclass(frozen=True)
class StepBench:
    """The unit of work: prompts x group responses of at most `max_new` tokens, old log-probabilities, `updates`.

    `steps` are measured after `warmup` others. No group is dropped, and the learning rate is so small that the lengths
    of the responses stay those of the checkpoint.
    """

    checkpoint: Path
    prompts: Path
    arm: Arm = "grpo_dapo"
    prompts_per_step: int = 64
    group: int = 8
    updates: int = 8
    max_new: int = 40
    steps: int = 12
    warmup: int = 2
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = 1
    micro_batch_tokens: int | None = None

    def spec(self) -> RunSpec:
        """The run that this is a step of. Raises `ConfigError` for numbers that do not fit."""
        if not (self.checkpoint / "config.json").is_file():
            raise ConfigError(f"--checkpoint {self.checkpoint}: not a folder with a checkpoint (no config.json there).")
        if self.prompts_per_step % self.updates:
            raise ConfigError(
                f"--updates {self.updates} does not divide --prompts-per-step {self.prompts_per_step}: give a divisor."
            )
        overrides = [
            f"trainer.prompts_per_step={self.prompts_per_step}",
            f"trainer.group_size={self.group}",
            f"trainer.mini_batch_prompts={self.prompts_per_step // self.updates}",
            "trainer.dynamic_sampling=off",
            "trainer.learning_rate=1e-6",
            "trainer.betas=[0.9,0.95]",
            f"trainer.micro_batch_tokens={'null' if self.micro_batch_tokens is None else self.micro_batch_tokens}",
            f"rollout.max_new_tokens={self.max_new}",
            "rollout.max_prompt_tokens=1000000",
            f"resources.threads={self.threads}",
            f"resources.device={self.device}",
            f"resources.gpus={int(self.device == 'cuda')}",
        ]
        spec = compose_run(self.arm, "nano", overrides)
        model = ModelSpec(name=self.checkpoint.name, path=str(self.checkpoint), dtype=self.dtype)
        data = DatasetData(kind="dataset", path=str(self.prompts), columns={"prompt": "prompt", "id": None})
        return spec.model_copy(update={"model": model, "data": data})


class InFileOrder(ListSource):
    """Problems for training in the order of their file, from the start again after the last."""

    def training(self, position: int, count: int, *, seed: int) -> list[Problem]:
        return [self.problems[place % len(self.problems)] for place in range(position, position + count)]


class BareGrading(Grading):
    """Compares the last box of each response with the answer, or the whole response where it has no box."""

    def __init__(self, _: Grader) -> None:
        super().__init__(Grader("boxed", symbolic=False))

    def add(self, place: int, response: str, answer: str) -> None:
        super().add(place, response if last_boxed(response) is not None else f"\\boxed{{{response}}}", answer)


@dataclass
class Clock:
    """CPU and wall seconds by phase."""

    cpu: dict[str, float] = field(default_factory=dict)
    wall: dict[str, float] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time of its block to the phase `name`, once the GPU has finished its work."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu
        self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall

    @contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Subtracts the time of its block from the phase `name`, within which it runs."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu[name] = self.cpu.get(name, 0.0) - (time.process_time() - cpu)
        self.wall[name] = self.wall.get(name, 0.0) - (time.perf_counter() - wall)


class TimedEngine(DelegatingEngine):
    """An engine whose sampling is the phase `rollout` of a clock, without the time that `finished` takes."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(engine)
        self.clock = clock

    def generate(
        self, prompts: Prompts, *, samples: int, sampling: Sampling, finished: Finished = ignore_response
    ) -> list[list[Response]]:
        def on_finished(prompt: int, sample: int, response: Response) -> None:
            with self.clock.aside("rollout"):
                finished(prompt, sample, response)

        with self.clock.phase("rollout"):
            return self.engine.generate(prompts, samples=samples, sampling=sampling, finished=on_finished)


def measure_step(bench: StepBench) -> dict[str, Any]:
    """Times and lower bounds of a training step, as plain values (see `tepo-lab bench step --help`).

    Raises `ConfigError`, `DataError` or `ModelError` for settings that cannot be measured.
    """
    spec = bench.spec()
    problems = open_source(spec.data)
    if not isinstance(problems, ListSource):
        raise DataError(f"--prompts {bench.prompts}: holds no problems.")
    torch.set_num_threads(bench.threads)
    torch.manual_seed(0)
    device = pick_device(spec.resources)
    loaded = load_model(spec.model, device)
    clock = Clock(device=device)
    engine = TimedEngine(open_engine(spec, loaded), clock)
    source = InFileOrder(problems.problems, where=problems.where)
    collector = Collector(spec, engine, loaded.tokenizer, source, open_grading=BareGrading)
    work = Work(loaded.model, bench.updates)
    steps = _run_steps(bench, collector, Learner(spec, loaded), clock, work)
    result = _settings(bench, loaded.model, device) | _times(steps) | _floors(steps, work, loaded.model.dtype, device)
    return {name: _rounded(value) for name, value in result.items()}


def _run_steps(
    bench: StepBench, collector: Collector, learner: Learner, clock: Clock, work: Work
) -> list[dict[str, float]]:
    """The measured steps: seconds by phase, tokens and mean reward of each; their groups are added to `work`."""
    steps: list[dict[str, float]] = []
    position = 0
    for step in range(1, bench.warmup + bench.steps + 1):
        clock.cpu.clear()
        clock.wall.clear()
        with clock.phase("step"):
            experience = collector.collect(step, position)
            with clock.phase("learn"):
                metrics = learner.learn(step, experience.groups)
        position = experience.position
        if step > bench.warmup:
            sampled = {"tokens": experience.metrics["rollout/tokens"], "reward": experience.metrics["reward/mean"]}
            steps.append(_split(clock, metrics) | sampled)
            work.add(experience.groups)
    return steps


def _settings(bench: StepBench, model: torch.nn.Module, device: torch.device) -> dict[str, Any]:
    """The settings of the measurement, and the machine."""
    return {
        "tool": "tepo-lab",
        "arm": bench.arm,
        "checkpoint": bench.checkpoint.resolve().name,
        "parameters": sum(each.numel() for each in model.parameters()),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": bench.dtype,
        "torch": torch.__version__,
        "threads": bench.threads,
        "prompts_per_step": bench.prompts_per_step,
        "group": bench.group,
        "updates": bench.updates,
        "max_new": bench.max_new,
        "steps": bench.steps,
    }


def _times(steps: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Seconds and tokens of the steps; the reward is the last step's."""
    cpu, wall, tokens = ([each[name] for each in steps] for name in ("cpu", "wall", "tokens"))
    return {
        "cpu_s_per_step": fmean(cpu),
        "cpu_s_median": median(cpu),
        "cpu_s_min": min(cpu),
        "wall_s_per_step": fmean(wall),
        "split": {phase: fmean(each[phase] for each in steps) for phase in ("rollout", "old_log_probs", "update")},
        "tokens_per_step": fmean(tokens),
        "reward": steps[-1]["reward"],
        "tokens_per_cpu_s": sum(tokens) / sum(cpu),
        "tokens_per_wall_s": sum(tokens) / sum(wall),
    }


def _floors(steps: Sequence[dict[str, float]], work: Work, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """The useful work of a step, its time at this machine's peak, and the memory."""
    on_gpu = device.type == "cuda"
    # First: the matrices that measure the peaks are not part of the step.
    memory = _peak_memory(device)
    peak = peak_flops(device, dtype)
    flops = {phase: value / len(steps) for phase, value in work.flops.items()}
    floor = flop_floor(flops, peak)
    floors = {
        "flops_per_step": sum(flops.values()),
        "peak_flops": peak,
        "floor_flops_s": sum(floor.values()),
        "floor_flops_split_s": floor,
        "mfu": sum(flops.values()) / peak / fmean(each["wall" if on_gpu else "cpu"] for each in steps),
        "peak_memory_mib": memory / 2**20,
    }
    if on_gpu:
        bandwidth = peak_bandwidth(device)
        floors |= {"peak_bandwidth": bandwidth, "floor_bytes_s": byte_floor(work, len(steps), bandwidth)}
    return floors


def _split(clock: Clock, metrics: dict[str, float]) -> dict[str, float]:
    """CPU and wall seconds of one step, and its phases in CPU seconds (on a GPU: wall seconds).

    The learner tells its two phases apart by the wall; the CPU seconds are divided in that proportion.
    """
    times = clock.wall if clock.device.type == "cuda" else clock.cpu
    scoring, updating = metrics["seconds/old_log_probs"], metrics["seconds/update"]
    share = scoring / (scoring + updating)
    return {
        "cpu": clock.cpu["step"],
        "wall": clock.wall["step"],
        "rollout": times["rollout"],
        "old_log_probs": times["learn"] * share,
        "update": times["learn"] * (1 - share),
    }


def _peak_memory(device: torch.device) -> float:
    """Bytes at the highest: allocated on the GPU, or resident in memory."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def as_line(result: dict[str, Any]) -> str:
    """The result as one line of JSON."""
    return json.dumps(result, allow_nan=False)
