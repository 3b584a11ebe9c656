"""One run from start to end, step by step, with its records; it can be killed at any moment and opened again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tepo_lab.evaluate.suite import counts, evaluate, write_generations
from tepo_lab.rollout.engine import Engine
from tepo_lab.schema.record import RunFolder, append_line, read_lines, write_whole
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.sweep import VALIDATION, Search, StopRule
from tepo_lab.tasks.sources import open_source
from tepo_lab.train import checkpoint
from tepo_lab.train.checkpoint import Position
from tepo_lab.train.engines import open_engine
from tepo_lab.train.experience import Collector
from tepo_lab.train.learner import Learner
from tepo_lab.train.model import LoadedModel, load_model, pick_device
from tepo_lab.train.seeds import derive
from tepo_lab.train.stop import broken_rule
from tepo_lab.train.tokens import TokenSample, write_tokens

Phase = Literal["training", "validated", "evaluated", "complete", "collapsed"]


@dataclass(frozen=True)
class Progress:
    """What a call of `Trial.advance` did: the step it ended at, the phase, and the step's metrics if it trained."""

    step: int
    phase: Phase
    metrics: dict[str, float | None]


class Trial:
    """A run in its folder. `advance` until `done`; open the folder again to go on after a death.

    Going on starts from the newest undamaged checkpoint: step metrics after it are dropped and made again.
    """

    def __init__(
        self, spec: RunSpec, folder: RunFolder, *, stop: Sequence[StopRule] = (), search: Search | None = None
    ) -> None:
        self.spec = spec
        self.search = search
        self.folder = folder
        self.stop = stop
        self.done = False
        torch.set_num_threads(spec.resources.threads)
        found = checkpoint.newest(folder, at_most=spec.steps) if spec.arm.trained else None
        self.position = found[1] if found else Position(0, 0)
        self.loaded: LoadedModel = load_model(
            spec.model, pick_device(spec.resources), weights=found[0] / "model" if found else None
        )
        self.engine: Engine = open_engine(spec, self.loaded)
        self.metrics = self._cut_back_to(self.position.step)
        #: Steps validated on the way that this process goes; a step made again is validated again.
        self.validated = {
            int(event["step"])
            for event in folder.events()
            if event["event"] == "validated" and event["step"] == self.position.step
        }
        self._record("resumed" if found or folder.events() else "started", step=self.position.step)
        if spec.arm.trained:
            self.learner = Learner(spec, self.loaded)
            self.collector = Collector(spec, self.engine, self.loaded.tokenizer, open_source(spec.data))
            if found:
                checkpoint.load_training_state(found[0], self.learner.optimizer)
            else:
                torch.manual_seed(derive(spec.seed, "torch"))

    def advance(self) -> Progress:
        """Do the next thing: an evaluation that is due, else one training step. The last call ends the run."""
        step = self.position.step
        rule = broken_rule(self.stop, self.metrics)
        is_over = rule is not None or step >= self.spec.steps
        if self.search is not None and self._validation_due(self.search):
            return self._validate(self.search)
        due = step in self.spec.evaluation_steps or is_over
        if due and step not in self.folder.evaluated_steps():
            self._evaluate()
            if not is_over:
                return Progress(step, "evaluated", {})
        if rule is not None:
            return self._end("collapsed", rule=rule.when)
        if is_over:
            return self._end("complete")
        return self._train()

    def close(self) -> None:
        """Give back what the engine holds."""
        self.engine.close()

    def _train(self) -> Progress:
        began = time.perf_counter()
        step = self.position.step + 1
        experience = self.collector.collect(step, self.position.data)
        sample = TokenSample(self.learner, experience.groups) if self._writes_tokens(step) else None
        learned = self.learner.learn(step, experience.groups)
        self.engine.sync_weights()
        values = experience.metrics | learned | {"seconds/step": time.perf_counter() - began, "time": time.time()}
        # JSON has no infinities: what is not finite is recorded as null, and a stop rule can look for it.
        metrics = {name: value if math.isfinite(value) else None for name, value in values.items()}
        append_line(self.folder.metrics_file, {"step": step, **metrics})
        self.metrics.append(metrics)
        if sample is not None:
            write_tokens(self.folder.tokens(step), step, sample.values(self.loaded.tokenizer))
        self.position = Position(step, experience.position)
        is_over = step == self.spec.steps or broken_rule(self.stop, self.metrics) is not None
        if is_over or step % self.spec.trainer.checkpoint_every == 0 or step in self.spec.evaluation_steps:
            self._save()
        return Progress(step, "training", metrics)

    def _writes_tokens(self, step: int) -> bool:
        every = self.spec.trainer.tokens_every
        return step == self.spec.steps or (every > 0 and step % every == 0)

    def _save(self) -> None:
        checkpoint.save(self.folder, self.position, self.loaded.model, self.loaded.tokenizer, self.learner.optimizer)
        checkpoint.prune(self.folder, self.spec.trainer.keep_checkpoints)
        self._record("checkpoint", step=self.position.step)

    def _validation_due(self, search: Search) -> bool:
        step = self.position.step
        return step > 0 and step not in self.validated and (step % search.every == 0 or step == self.spec.steps)

    def _validate(self, search: Search) -> Progress:
        """Sample a search's validation problems; their scores steer the search and stand in no table."""
        began = time.perf_counter()
        suite = self.spec.suite.model_copy(update={"name": "validation", "benchmarks": dict(search.validation)})
        limit = self.spec.rollout.max_prompt_tokens
        found = counts(evaluate(self.engine, self.loaded.tokenizer, suite, self.spec.prompt, max_prompt_tokens=limit))
        percent = {f"{VALIDATION}{name}": 100 * count.correct / count.graded for name, count in found.items()}
        percent[f"{VALIDATION}average"] = (
            100 * sum(each.correct for each in found.values()) / sum(each.graded for each in found.values())
        )
        step = self.position.step
        self.validated.add(step)
        self._record("validated", step=step, value=percent[search.metric], seconds=time.perf_counter() - began)
        return Progress(step, "validated", dict(percent))

    def _evaluate(self) -> None:
        began = time.perf_counter()
        rows = evaluate(
            self.engine,
            self.loaded.tokenizer,
            self.spec.suite,
            self.spec.prompt,
            max_prompt_tokens=self.spec.rollout.max_prompt_tokens,
        )
        write_generations(self.folder.generations(self.position.step), rows)
        scores = {name: {"correct": count.correct, "graded": count.graded} for name, count in counts(rows).items()}
        seconds = time.perf_counter() - began
        self._record("evaluated", step=self.position.step, benchmarks=scores, seconds=seconds)

    def _end(self, outcome: Literal["complete", "collapsed"], **details: Any) -> Progress:
        self._record(outcome, step=self.position.step, **details)
        self.done = True
        return Progress(self.position.step, outcome, {})

    def _record(self, event: str, **details: Any) -> None:
        append_line(self.folder.events_file, {"time": time.time(), "event": event, **details})

    def _cut_back_to(self, step: int) -> list[dict[str, Any]]:
        """The step metrics up to `step`. Records of later steps are dropped: those steps are made again."""
        recorded = list(read_lines(self.folder.metrics_file))
        kept = [metrics for metrics in recorded if metrics["step"] <= step]
        if self.folder.metrics_file.exists():
            lines = [json.dumps(metrics, separators=(",", ":")) + "\n" for metrics in kept]
            write_whole(self.folder.metrics_file, "".join(lines).encode())
        for later in self.folder.evaluated_steps():
            if later > step:
                self.folder.generations(later).unlink()
        for later in self.folder.token_steps():
            if later > step:
                self.folder.tokens(later).unlink()
        return kept


def run_trial(
    spec: RunSpec,
    folder: RunFolder,
    *,
    stop: Sequence[StopRule] = (),
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """A whole run in this process, without Ray or MLflow. Returns the last progress (complete or collapsed)."""
    Path(folder.path).mkdir(parents=True, exist_ok=True)
    trial = Trial(spec, folder, stop=stop)
    try:
        while True:
            progress = trial.advance()
            on_progress(progress)
            if trial.done:
                return progress
    finally:
        trial.close()
