"""One run from start to end, with its records. It can be killed at any moment and opened again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from tepo_lab.errors import ObjectiveError
from tepo_lab.evaluate.suite import counts, evaluate
from tepo_lab.records.events import (
    CheckpointSaved,
    Collapsed,
    Complete,
    Evaluated,
    Event,
    Started,
    Suspect,
    Validated,
)
from tepo_lab.records.files import RunFolder, append_line
from tepo_lab.records.generations import write_generations
from tepo_lab.records.history import append_event
from tepo_lab.rollout.engine import Engine
from tepo_lab.schema.profile import Suite
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.step_metrics import EVALUATED_MISMATCH, SAMPLER_MISMATCH
from tepo_lab.schema.sweep import MUST_BE_FINITE, VALIDATION, Search, StopRule
from tepo_lab.tasks.sources import open_source
from tepo_lab.train import checkpoint
from tepo_lab.train.checkpoint import Position
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from tepo_lab.train.distributed.sharing import SharedGrading
from tepo_lab.train.engines import open_engine
from tepo_lab.train.model import LoadedModel, load_model, pick_device
from tepo_lab.train.resume import ResumePoint, find_resume_point, remove_later_records
from tepo_lab.train.seeds import derive
from tepo_lab.train.step.collect import Collector
from tepo_lab.train.step.learner import Learner
from tepo_lab.train.step.sampler_check import CheckedEngine
from tepo_lab.train.step.stop_rules import broken_rule
from tepo_lab.train.step.token_samples import TokenSample, write_tokens
from tepo_lab.train.training_state import load_training_state

Phase = Literal["training", "validated", "evaluated", "complete", "collapsed"]


@dataclass(frozen=True)
class Progress:
    """What a call of `Trial.advance` did: the step it ended at, the phase, and the metrics of that step."""

    step: int
    phase: Phase
    metrics: dict[str, float | None]


class Trial:
    """A run in its folder: call `advance` until `done`. After a kill, open the folder again.

    It resumes at the newest undamaged checkpoint; later steps are removed from the records and trained again.
    Every rank of `process_group` opens the same run and makes the same calls; rank 0 alone writes its records.
    `hardware` of the node is recorded at each start. `guard` is called on rank 0 before the records are written; it
    raises when this process no longer owns the run.
    """

    def __init__(
        self,
        spec: RunSpec,
        folder: RunFolder,
        *,
        stop: Sequence[StopRule] = (),
        search: Search | None = None,
        process_group: ProcessGroup = SINGLE_PROCESS,
        hardware: Mapping[str, Any] | None = None,
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.stop = stop
        self.search = search
        self.process_group = process_group
        self.guard = guard
        self.open_grading = partial(SharedGrading, process_group)
        self.done = False
        torch.set_num_threads(spec.resources.threads)
        start: ResumePoint = process_group.on_rank_zero(lambda: find_resume_point(folder, spec))
        self.position, self.metrics, self.collapsed = start.position, start.metrics, start.collapsed
        self.is_evaluated, self.is_validated, self.is_suspect = start.is_evaluated, start.is_validated, start.is_suspect
        self.loaded: LoadedModel = load_model(
            spec.model,
            pick_device(spec.resources),
            weights=start.checkpoint / "model" if start.checkpoint else None,
            process_group=process_group,
        )
        self.engine: Engine = open_engine(spec, self.loaded, process_group)
        self._write(lambda: remove_later_records(folder, start))
        on = {"hardware": dict(hardware)} if hardware else {}
        self._record(Started(event="started" if start.is_new else "resumed", step=self.position.step, **on))
        if spec.arm.trained:
            self.learner = Learner(spec, self.loaded, process_group)
            source = open_source(spec.data)
            self.collector = Collector(spec, self.engine, self.loaded.tokenizer, source, open_grading=self.open_grading)
            if start.checkpoint:
                model, optimizer = self.loaded.model, self.learner.optimizer
                load_training_state(start.checkpoint, model, optimizer, process_group)
            else:
                torch.manual_seed(derive(spec.seed, "torch"))

    def advance(self) -> Progress:
        """Do what is next: an evaluation that is due, else one training step. The last call ends the run."""
        step = self.position.step
        broken = broken_rule(self.stop, self.metrics)
        rule = self.collapsed or (broken.when if broken else None)
        is_over = rule is not None or step >= self.spec.steps
        if self.search is not None and self._is_validation_due(self.search):
            return self._validate(self.search)
        if (is_over or step in self.spec.evaluation_steps) and not self.is_evaluated:
            self._evaluate()
            if not is_over:
                return Progress(step, "evaluated", {})
        if not is_over:
            return self._train()
        self.done = True
        if rule is not None:
            self._record(Collapsed(step=step, rule=rule))
            return Progress(step, "collapsed", {})
        self._record(Complete(step=step))
        return Progress(step, "complete", {})

    def close(self) -> None:
        """Release what the engine owns."""
        self.engine.close()

    def _train(self) -> Progress:
        """One training step: collect responses, update the weights, record the metrics, save a checkpoint if due."""
        elapsed = self._start_clock()
        step = self.position.step + 1
        experience = self.collector.collect(step, self.position.data)
        self.engine.rest()
        sample = TokenSample(self.learner, experience.groups) if self._is_token_step(step) else None
        learned = self.learner.learn(step, experience.groups)
        self.engine.sync_weights()
        wall, cpu = elapsed()

        values = experience.metrics | learned | {"seconds/step": wall, "seconds/cpu": cpu, "time": time.time()}
        # JSON has no infinities: a value that is not finite is recorded as null, which a stop rule can test for.
        own = {name: value if math.isfinite(value) else None for name, value in values.items()}
        # Ranks measure different times; all of them use those of rank 0.
        metrics = self.process_group.on_rank_zero(lambda: own)
        self.metrics.append(metrics)
        self._write(lambda: append_line(self.folder.metrics_file, {"step": step, **metrics}))
        if sample is not None:
            tokens = sample.values(self.loaded.tokenizer)
            self._write(lambda: write_tokens(self.folder.tokens(step), step, tokens))
        if SAMPLER_MISMATCH in metrics:
            self._check_sampler(step, metrics[SAMPLER_MISMATCH])

        self.position = Position(step, experience.position)
        self.is_evaluated = self.is_validated = False
        is_broken = broken_rule(self.stop, self.metrics) is not None
        if not is_broken:
            _check_finite(step, metrics)
        is_over = is_broken or step == self.spec.steps
        if is_over or step % self.spec.trainer.checkpoint_every == 0 or step in self.spec.evaluation_steps:
            self._save()
        return Progress(step, "training", metrics)

    def _is_token_step(self, step: int) -> bool:
        every = self.spec.trainer.tokens_every
        return step == self.spec.steps or (every > 0 and step % every == 0)

    def _check_sampler(self, step: int, mean: float | None) -> None:
        """Record once per run that the sampler does not sample from the trained policy. `mean` in nats per token."""
        limit = self.spec.rollout.max_sampler_mismatch
        if self.is_suspect or (mean is not None and mean <= limit):
            return
        self.is_suspect = True
        if mean is None:
            fault = "the sampler's log-probabilities are not finite; the limit is "
        else:
            fault = f"the sampler's log-probabilities are {mean:.3g} nats from the trainer's, more than "
        self._record(Suspect(step=step, why=f"{fault}rollout.max_sampler_mismatch ({limit:g})"))

    def _save(self) -> None:
        loaded, optimizer = self.loaded, self.learner.optimizer
        parts = (loaded.model, loaded.tokenizer, optimizer)
        checkpoint.save(self.folder, self.position, *parts, self.process_group, guard=self.guard)
        self._write(lambda: checkpoint.prune(self.folder, self.spec.trainer.keep_checkpoints))
        self._record(CheckpointSaved(step=self.position.step))

    def _is_validation_due(self, search: Search) -> bool:
        step = self.position.step
        return step > 0 and not self.is_validated and (step % search.every == 0 or step == self.spec.steps)

    def _validate(self, search: Search) -> Progress:
        """Score a search's validation problems; the scores steer the search and are part of no table."""
        elapsed = self._start_clock()
        suite = self.spec.suite.model_copy(update={"name": "validation", "benchmarks": dict(search.validation)})
        scores = counts(self._generations(suite, self.engine))
        percent = {f"{VALIDATION}{name}": 100 * tally.correct / tally.graded for name, tally in scores.items()}
        correct = sum(tally.correct for tally in scores.values())
        graded = sum(tally.graded for tally in scores.values())
        percent[f"{VALIDATION}average"] = 100 * correct / graded
        wall, cpu = elapsed()
        step, value = self.position.step, percent[search.metric]
        self._record(Validated(step=step, value=value, seconds=wall, cpu_seconds=cpu))
        self.is_validated = True
        return Progress(step, "validated", dict(percent))

    def _evaluate(self) -> None:
        """Sample, grade and record the suite with the weights of the current step."""
        elapsed = self._start_clock()
        step = self.position.step
        engine = CheckedEngine(self.engine, len(self.spec.suite.benchmarks))
        rows = self._generations(self.spec.suite, engine)
        checked: dict[str, float | None] = {}
        own = engine.mismatch(self.loaded)
        if (mean := self.process_group.on_rank_zero(lambda: own)) is not None:
            checked[EVALUATED_MISMATCH] = mean if math.isfinite(mean) else None
            self._check_sampler(step, checked[EVALUATED_MISMATCH])
        self._write(lambda: write_generations(self.folder.generations(step), rows))
        wall, cpu = elapsed()
        self._record(Evaluated(step=step, benchmarks=counts(rows), seconds=wall, cpu_seconds=cpu, **checked))
        self.is_evaluated = True

    def _generations(self, suite: Suite, engine: Engine) -> list[dict[str, Any]]:
        """The graded generations of a suite."""
        return evaluate(
            engine,
            self.loaded.tokenizer,
            suite,
            self.spec.prompt,
            max_prompt_tokens=self.spec.rollout.max_prompt_tokens,
            system_role=self.spec.model.system_role,
            open_grading=self.open_grading,
        )

    def _start_clock(self) -> Callable[[], tuple[float, float]]:
        """A function that returns the wall seconds since now, and the CPU seconds since of all ranks together."""
        began, cpu = time.perf_counter(), time.process_time()
        return lambda: (time.perf_counter() - began, self.process_group.sum(time.process_time() - cpu)[0])

    def _record(self, event: Event) -> None:
        self._write(lambda: append_event(self.folder, event))

    def _write(self, write: Callable[[], object]) -> None:
        """Write to the records on rank 0, if it still owns the run; an exception there is raised on every rank."""

        def guarded() -> None:
            self.guard()
            write()

        self.process_group.on_rank_zero(guarded)


def _check_finite(step: int, metrics: Mapping[str, float | None]) -> None:
    """Raise `ObjectiveError` for a step after which the weights are not finite: none of their scores may count."""
    for name in MUST_BE_FINITE:
        if name in metrics and metrics[name] is None:
            raise ObjectiveError(
                f"step {step}: {name} is not finite, and neither are the weights from here on; fix the objective or "
                f"lower trainer.learning_rate, or count it as a collapse: stop: [{{when: {name} is not finite}}]."
            )


def run_trial(
    spec: RunSpec,
    folder: RunFolder,
    *,
    stop: Sequence[StopRule] = (),
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """A whole run in this process, without Ray or MLflow. Returns the last progress (complete or collapsed)."""
    folder.path.mkdir(parents=True, exist_ok=True)
    trial = Trial(spec, folder, stop=stop)
    try:
        while True:
            progress = trial.advance()
            on_progress(progress)
            if trial.done:
                return progress
    finally:
        trial.close()
