"""One run from start to end, step by step, with its records; it can be killed at any moment and opened again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from tepo_lab.errors import ObjectiveError, RecordError
from tepo_lab.evaluate.suite import counts, evaluate
from tepo_lab.records.files import RunFolder, append_line, write_whole
from tepo_lab.records.generations import write_generations
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
from tepo_lab.train.seeds import derive
from tepo_lab.train.step.collect import Collector
from tepo_lab.train.step.learner import Learner
from tepo_lab.train.step.sampler_check import CheckedEngine
from tepo_lab.train.step.stop_rules import broken_rule
from tepo_lab.train.step.token_samples import TokenSample, write_tokens

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
    Every process of `process_group` opens the same run and makes the same calls; rank 0 alone writes its records.
    `hardware` of the node it runs on is noted where it starts or resumes. `guard` is called right before each write to
    the run's records, on the first process; it raises when this process may not write any more.
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
        self.guard = guard
        self.hardware = {"hardware": dict(hardware)} if hardware else {}
        self.search = search
        self.folder = folder
        self.stop = stop
        self.process_group = process_group
        self.open_grading = partial(SharedGrading, process_group)
        self.done = False
        torch.set_num_threads(spec.resources.threads)
        found = process_group.on_rank_zero(lambda: _newest(folder, spec.steps)) if spec.arm.trained else None
        self.position = found[1] if found else Position(0, 0)
        self.loaded: LoadedModel = load_model(
            spec.model,
            pick_device(spec.resources),
            weights=found[0] / "model" if found else None,
            process_group=process_group,
        )
        self.engine: Engine = open_engine(spec, self.loaded, process_group)
        self.metrics, self.validated, self.collapsed = process_group.on_rank_zero(self._taken_up_records)
        if spec.arm.trained:
            self.learner = Learner(spec, self.loaded, process_group)
            source = open_source(spec.data)
            self.collector = Collector(spec, self.engine, self.loaded.tokenizer, source, open_grading=self.open_grading)
            if found:
                checkpoint.load_training_state(found[0], self.loaded.model, self.learner.optimizer, process_group)
            else:
                torch.manual_seed(derive(spec.seed, "torch"))

    def advance(self) -> Progress:
        """Do the next thing: an evaluation that is due, else one training step. The last call ends the run."""
        step = self.position.step
        due, rule = self.process_group.on_rank_zero(self._due)
        is_over = rule is not None or step >= self.spec.steps
        if self.search is not None and due == "validation":
            return self._validate(self.search)
        if due == "evaluation":
            self._evaluate()
            if not is_over:
                return Progress(step, "evaluated", {})
        if rule is not None:
            return self._end("collapsed", rule=rule)
        if is_over:
            return self._end("complete")
        return self._train()

    def close(self) -> None:
        """Give back what the engine holds."""
        self.engine.close()

    def _due(self) -> tuple[Literal["validation", "evaluation"] | None, str | None]:
        """What is to be sampled before going on, and the rule by which the run is over, as the records say."""
        step = self.position.step
        broken = broken_rule(self.stop, self.metrics)
        rule = self.collapsed or (broken.when if broken else None)
        if self.search is not None and self._validation_due(self.search):
            return "validation", rule
        evaluates = step in self.spec.evaluation_steps or rule is not None or step >= self.spec.steps
        return "evaluation" if evaluates and not _is_evaluated(self.folder, self.folder.events(), step) else None, rule

    def _train(self) -> Progress:
        clock = self._started_clock()
        step = self.position.step + 1
        experience = self.collector.collect(step, self.position.data)
        self.engine.rest()
        sample = TokenSample(self.learner, experience.groups) if self._writes_tokens(step) else None
        learned = self.learner.learn(step, experience.groups)
        self.engine.sync_weights()
        wall, cpu = clock()
        values = experience.metrics | learned | {"seconds/step": wall, "seconds/cpu": cpu, "time": time.time()}
        # JSON has no infinities: what is not finite is recorded as null, and a stop rule can look for it.
        own = {name: value if math.isfinite(value) else None for name, value in values.items()}
        # Each process has its own clock; the first one's numbers are everyone's.
        metrics = self.process_group.on_rank_zero(lambda: own)
        self.metrics.append(metrics)
        tokens = sample.values(self.loaded.tokenizer) if sample is not None else None
        self._write(lambda: append_line(self.folder.metrics_file, {"step": step, **metrics}))
        if tokens is not None:
            self._write(lambda: write_tokens(self.folder.tokens(step), step, tokens))
        if SAMPLER_MISMATCH in metrics:
            self._doubt_sampler(step, metrics[SAMPLER_MISMATCH])
        self.position = Position(step, experience.position)
        broken = broken_rule(self.stop, self.metrics) is not None
        if not broken:
            _check_finite(step, metrics)
        is_over = broken or step == self.spec.steps
        if is_over or step % self.spec.trainer.checkpoint_every == 0 or step in self.spec.evaluation_steps:
            self._save()
        return Progress(step, "training", metrics)

    def _doubt_sampler(self, step: int, mean: float | None) -> None:
        """Record, once a run, that the sampler does not sample from the policy that is trained."""
        limit = self.spec.rollout.max_sampler_mismatch
        if mean is not None and mean <= limit:
            return
        if self.process_group.on_rank_zero(lambda: any(event["event"] == "suspect" for event in self.folder.events())):
            return
        why = (
            f"the sampler's log-probabilities are {mean:.3g} nats from the trainer's, more than "
            if mean is not None
            else "the sampler's log-probabilities are not finite; the limit is "
        ) + f"rollout.max_sampler_mismatch ({limit:g})"
        self._record("suspect", step=step, why=why)

    def _writes_tokens(self, step: int) -> bool:
        every = self.spec.trainer.tokens_every
        return step == self.spec.steps or (every > 0 and step % every == 0)

    def _save(self) -> None:
        loaded, optimizer = self.loaded, self.learner.optimizer
        parts = (loaded.model, loaded.tokenizer, optimizer)
        checkpoint.save(self.folder, self.position, *parts, self.process_group, guard=self.guard)
        self._write(lambda: checkpoint.prune(self.folder, self.spec.trainer.keep_checkpoints))
        self._record("checkpoint", step=self.position.step)

    def _validation_due(self, search: Search) -> bool:
        step = self.position.step
        return step > 0 and step not in self.validated and (step % search.every == 0 or step == self.spec.steps)

    def _validate(self, search: Search) -> Progress:
        """Sample a search's validation problems; their scores steer the search and stand in no table."""
        clock = self._started_clock()
        suite = self.spec.suite.model_copy(update={"name": "validation", "benchmarks": dict(search.validation)})
        found = counts(self._sampled(suite, self.engine))
        percent = {f"{VALIDATION}{name}": 100 * count.correct / count.graded for name, count in found.items()}
        percent[f"{VALIDATION}average"] = (
            100 * sum(each.correct for each in found.values()) / sum(each.graded for each in found.values())
        )
        step = self.position.step
        self.validated.add(step)
        wall, cpu = clock()
        self._record("validated", step=step, value=percent[search.metric], seconds=wall, cpu_seconds=cpu)
        return Progress(step, "validated", dict(percent))

    def _evaluate(self) -> None:
        clock = self._started_clock()
        engine = CheckedEngine(self.engine, len(self.spec.suite.benchmarks))
        rows = self._sampled(self.spec.suite, engine)
        checked: dict[str, float | None] = {}
        own = engine.mismatch(self.loaded)
        # Each process has reckoned it; the first one's is everyone's.
        if (mean := self.process_group.on_rank_zero(lambda: own)) is not None:
            checked[EVALUATED_MISMATCH] = mean if math.isfinite(mean) else None
            self._doubt_sampler(self.position.step, checked[EVALUATED_MISMATCH])
        self._write(lambda: write_generations(self.folder.generations(self.position.step), rows))
        scores = {name: asdict(count) for name, count in counts(rows).items()}
        wall, cpu = clock()
        self._record("evaluated", step=self.position.step, benchmarks=scores, seconds=wall, cpu_seconds=cpu, **checked)

    def _sampled(self, suite: Suite, engine: Engine) -> list[dict[str, Any]]:
        """Graded generations of a suite."""
        return evaluate(
            engine,
            self.loaded.tokenizer,
            suite,
            self.spec.prompt,
            max_prompt_tokens=self.spec.rollout.max_prompt_tokens,
            system_role=self.spec.model.system_role,
            open_grading=self.open_grading,
        )

    def _end(self, outcome: Literal["complete", "collapsed"], **details: Any) -> Progress:
        self._record(outcome, step=self.position.step, **details)
        self.done = True
        return Progress(self.position.step, outcome, {})

    def _started_clock(self) -> Callable[[], tuple[float, float]]:
        """A clock that is called for the wall seconds since, and the CPU seconds of all the run's processes."""
        began, cpu = time.perf_counter(), time.process_time()
        return lambda: (time.perf_counter() - began, self.process_group.sum(time.process_time() - cpu)[0])

    def _record(self, event: str, **details: Any) -> None:
        self._write(lambda: self._append_event(event, details))

    def _append_event(self, event: str, details: Mapping[str, Any]) -> None:
        append_line(self.folder.events_file, {"time": time.time(), "event": event, **details})

    def _write(self, work: Callable[[], object]) -> None:
        """Write to the records on the first process, if it still may; what that raises is raised on all."""
        self.process_group.on_rank_zero(lambda: self._guarded(work))

    def _guarded(self, work: Callable[[], object]) -> None:
        self.guard()
        work()

    def _taken_up_records(self) -> tuple[list[dict[str, Any]], set[int], str | None]:
        """Cut the records back to the position. Returns how the run stands there.

        That is: its step metrics; the steps validated on the way that this run goes (a step made again is validated
        again); and why it collapsed here before, when all that it lacks is its evaluation.
        """
        step, events = self.position.step, self.folder.events()
        metrics = self._cut_back_to(step)
        validated = {int(event["step"]) for event in events if event["event"] == "validated" and event["step"] == step}
        event = "resumed" if step or events else "started"
        self._guarded(lambda: self._append_event(event, {"step": step, **self.hardware}))
        return metrics, validated, _collapsed(events, step)

    def _cut_back_to(self, step: int) -> list[dict[str, Any]]:
        """The step metrics up to `step`. Records of later steps are dropped: those steps are made again.

        So are later checkpoints, first of all: they are damaged, and would outlast those that the steps made again
        leave, and stand ahead of the metrics.
        """
        folder = self.folder
        kept = [metrics for metrics in folder.metrics() if metrics["step"] <= step]
        self._guarded(lambda: checkpoint.remove_after(folder, step))
        if folder.metrics_file.exists():
            lines = [json.dumps(metrics, separators=(",", ":")) + "\n" for metrics in kept]
            self._guarded(lambda: write_whole(folder.metrics_file, "".join(lines).encode()))
        later = [folder.generations(each) for each in folder.evaluated_steps() if each > step]
        later += [folder.tokens(each) for each in folder.token_steps() if each > step]
        for path in later:
            self._guarded(path.unlink)
        return kept


def _newest(folder: RunFolder, asked: int) -> tuple[Path, Position] | None:
    """The checkpoint to go on from.

    Raises `RecordError` for a run that has come further than it is asked to, and for one that would have to begin
    before an end whose evaluation it has.
    """
    recorded, saved = len(folder.metrics()), folder.checkpoint_steps()
    found = checkpoint.newest(folder, recorded)
    # A torn last line can cost one step; more means that metrics.jsonl was lost.
    if saved and saved[0] > recorded + 1:
        raise RecordError(
            f"{folder.metrics_file} ends at step {recorded} and the oldest checkpoint is of step {saved[0]}: put the "
            f"file back, or remove {folder.path} to run it again."
        )
    start = found[1].step if found else 0
    events = folder.events()
    made = max(start, *(int(event.get("step") or 0) for event in events), 0)
    if made > asked:
        raise RecordError(
            f"{folder.path} is at step {made}, and going back to step {asked} would drop what was made since: ask for "
            f"trainer.steps={made} or more."
        )
    ends = {int(event["step"]) for event in events if event["event"] == "complete" and event.get("step")}
    lost = [end for end in sorted(ends) if start < end and _is_evaluated(folder, events, end)]
    if lost:
        where = f"only from step {start}" if found else "from none of its checkpoints"
        raise RecordError(
            f"{folder.path} was complete at step {lost[-1]} and can go on {where}: the others are gone or damaged, and "
            "to train those steps again would drop its evaluation; remove the folder to run it anew."
        )
    return found


def _is_evaluated(folder: RunFolder, events: Sequence[Mapping[str, Any]], step: int) -> bool:
    """Whether the generations are on disk and counted in the events: a death may come between the two."""
    counted = any(event["event"] == "evaluated" and event["step"] == step for event in events)
    return counted and step in folder.evaluated_steps()


def _check_finite(step: int, metrics: Mapping[str, float | None]) -> None:
    """Raise `ObjectiveError` for a step that has left the weights without meaning: no score of theirs may count."""
    for name in MUST_BE_FINITE:
        if name in metrics and metrics[name] is None:
            raise ObjectiveError(
                f"step {step}: {name} is not finite, and neither are the weights from here on; mend the objective or "
                f"lower trainer.learning_rate, or let it count as a collapse: stop: [{{when: {name} is not finite}}]."
            )


def _collapsed(events: Sequence[Mapping[str, Any]], step: int) -> str | None:
    """The rule by which the run has collapsed at `step`, if it has."""
    ended = [event for event in events if event["event"] == "collapsed" and event["step"] == step]
    return str(ended[-1]["rule"]) if ended else None


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
