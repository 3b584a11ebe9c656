"""The history of a run: one value read from its folder. Plans, status, tables, figures and MLflow are views of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict, StrictInt, ValidationError

from tepo_lab.errors import RecordError
from tepo_lab.records import events as kinds
from tepo_lab.records.events import Collapsed, Complete, Evaluated, Event, Failed, Outcome, Started, Stopped, Tally
from tepo_lab.records.files import RunFolder, append_line, open_record, read_lines, read_record, run_folders
from tepo_lab.records.lock import is_locked
from tepo_lab.records.provenance import Files, differences, input_files

_PARQUET_MARK = b"PAR1"


class State(StrEnum):
    """What a run is now. `interrupted`: it can go on; `damaged`: its records need a person; nothing of it counts."""

    PENDING = "pending"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETE = "complete"
    COLLAPSED = "collapsed"
    STOPPED = "stopped"
    FAILED = "failed"
    DAMAGED = "damaged"

    @property
    def is_final(self) -> bool:
        """Whether the run came to its end: its result stands."""
        return self in (State.COMPLETE, State.COLLAPSED, State.STOPPED)


class _Arm(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str
    parent: str | None = None
    trained: bool = True


class _Trainer(BaseModel):
    model_config = ConfigDict(extra="allow")
    steps: StrictInt


class _Spec(BaseModel):
    model_config = ConfigDict(extra="allow")
    arm: _Arm
    profile: dict[str, Any] = {}
    rollout: dict[str, Any] = {}
    suite: dict[str, Any] = {}
    trainer: _Trainer
    seed: StrictInt


class _RunFile(BaseModel):
    """What readers of a run.json rely on, whatever release wrote it."""

    model_config = ConfigDict(extra="allow")
    id: str
    family: str
    created: float | None = None
    spec: _Spec
    provenance: dict[str, Any] = {}
    earlier_provenance: list[dict[str, Any]] = []


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run: its counts by benchmark, and `fault`, why they cannot be used (None: they can).

    `seconds` are wall time, `cpu_seconds` of all the run's processes, `sampler_mismatch` nats (None: not finite, or not
    measured), `time` Unix seconds.
    """

    step: int
    counts: Mapping[str, Tally]
    path: Path
    fault: str | None
    time: float
    seconds: float | None = None
    cpu_seconds: float | None = None
    sampler_mismatch: float | None = None
    checks_sampler: bool = False

    @property
    def is_complete(self) -> bool:
        return self.fault is None


@dataclass(frozen=True)
class RunHistory:
    """Everything that the records of one run add up to.

    `run` is run.json as plain values (empty before the run is prepared, or where it is damaged); `step` the last
    training step that an event names; `evaluations` and `validations` (percent) are by step; `checkpoints` are the
    steps with a checkpoint, damaged ones among them; `attempts` the starts whose steps still stand; `suspect` why the
    sampler is doubted; `made_with` the provenances, the newest last; `damage` what is damaged and how to fix it;
    `events` all of them, for what a session cost: nothing derives a state from them but this class.
    """

    folder: RunFolder
    state: State = State.PENDING
    run: Mapping[str, Any] = field(default_factory=dict)
    step: int = 0
    outcome: Outcome | None = None
    evaluations: Mapping[int, Evaluation] = field(default_factory=dict)
    validations: Mapping[int, float] = field(default_factory=dict)
    checkpoints: tuple[int, ...] = ()
    attempts: tuple[Started, ...] = ()
    suspect: tuple[str, ...] = ()
    made_with: tuple[Mapping[str, Any], ...] = ()
    started: float | None = None
    updated: float | None = None
    damage: str | None = None
    events: tuple[Event, ...] = ()

    @classmethod
    def read(cls, folder: RunFolder, *, owned_by_us: bool = False) -> RunHistory:
        """The history of the run in `folder`, as it is now. Damage is a state: only failures of the machine raise.

        Args: `owned_by_us`: the caller owns the run's lock, so that it is not read as running.
        """
        if not os.path.isdir(folder.path):
            if not os.path.lexists(folder.path):
                return cls(folder)
            return cls(folder, State.DAMAGED, damage=f"{folder.path} is not a folder: remove it.")
        try:
            run = read_run(folder)
            events = read_events(folder)
        except RecordError as error:
            return cls(folder, State.DAMAGED, damage=str(error))
        if events and not run:
            fix = f"put it back, or remove {folder.path} to run it again"
            return cls(folder, State.DAMAGED, damage=f"{folder.run_file} is missing: {fix}.")
        return _fold(folder, run, events, owned_by_us)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def spec(self) -> Mapping[str, Any]:
        """The resolved run as plain values; empty where there is none."""
        spec: Mapping[str, Any] = self.run.get("spec", {})
        return spec

    @property
    def id(self) -> str:
        return str(self.run.get("id", ""))

    @property
    def family(self) -> str:
        """The identity of the run without its seed."""
        return str(self.run.get("family", ""))

    @property
    def arm(self) -> str:
        return str(self.spec["arm"]["name"])

    @property
    def parent(self) -> str | None:
        parent: str | None = self.spec["arm"].get("parent")
        return parent

    @property
    def profile(self) -> str:
        return str(self.spec.get("profile", {}).get("name", ""))

    @property
    def seed(self) -> int:
        return int(self.spec["seed"])

    @property
    def asked_steps(self) -> int:
        """Training steps that the run was last asked for: 0 where it is not trained."""
        return int(self.spec["trainer"]["steps"]) if self.spec["arm"].get("trained", True) else 0

    @property
    def collapsed_at(self) -> int | None:
        """The step at which the run collapsed, if it ended so."""
        return self.outcome.step if isinstance(self.outcome, Collapsed) else None

    @property
    def complete_evaluations(self) -> tuple[int, ...]:
        """Steps with an evaluation that can be counted, ascending."""
        return tuple(step for step, evaluation in sorted(self.evaluations.items()) if evaluation.is_complete)

    @property
    def commit(self) -> str | None:
        """The commit of the source tree, marked where the tree differed from it."""
        commit = self.made_with[-1].get("commit") if self.made_with else None
        return f"{commit}+changes" if commit and self.made_with[-1].get("dirty") else commit

    @property
    def is_dirty(self) -> bool:
        """Whether any part was made from a source tree that differs from its commit."""
        return any(made.get("dirty") for made in self.made_with)

    @property
    def is_mixed(self) -> bool:
        """Whether parts were made with different code, versions, machines, devices or inputs."""
        hardware = [attempt.hardware for attempt in self.attempts if attempt.hardware is not None]
        if any(other != hardware[0] for other in hardware):
            return True
        return any(differences(last, now) - {"resources"} for last, now in pairwise(self.made_with))

    @property
    def inputs(self) -> Mapping[str, Files]:
        """SHA-256 of the local files, and commits of the hub, that the run was made from."""
        return input_files(self.made_with[-1]) if self.made_with else {}

    @property
    def description(self) -> str:
        """State, step and cause in a phrase."""
        match self.outcome:
            case _ if self.damage is not None:
                return self.damage
            case _ if self.state is State.PENDING:
                return "not run yet"
            case _ if self.state is State.RUNNING:
                return f"running, at step {self.step}"
            case Collapsed(step=step, rule=rule):
                text = f"collapsed at step {step} ({rule})"
            case Stopped(step=step, by=by):
                text = f"stopped at step {step} by the search ({by})"
            case Failed(kind=kind, error=error):
                text = f"failed ({kind}): {error}"
            case Complete(step=step):
                text = f"complete at step {step}"
            case _:
                return f"interrupted at step {self.step}"
        if self.state is State.INTERRUPTED:
            return f"{text}; its evaluation there is missing or damaged and will be made again"
        return text

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every training step. Raises `RecordError` where a step is damaged or missing."""
        metrics = self.folder.metrics()
        if len(metrics) < self.step and self.state.is_final:
            raise RecordError(
                f"{self.folder.metrics_file} has {len(metrics)} of {self.step} steps: put the file back, or remove "
                f"{self.folder.path} to run it again."
            )
        return metrics


def read_histories(home: Path) -> Iterator[RunHistory]:
    """The histories of all runs of a home, by name."""
    return map(RunHistory.read, run_folders(home))


def read_events(folder: RunFolder) -> list[Event]:
    """The events of a run in order. Raises `RecordError` for a line that is not an event's, but for a torn last one."""
    events = []
    for number, values in enumerate(read_lines(folder.events_file), start=1):
        try:
            events.append(kinds.parse_event(values))
        except ValueError as error:
            fix = f"restore the file, or remove {folder.path} to run it again"
            raise RecordError(f"{folder.events_file}:{number} is damaged ({error}): {fix}.") from None
    return events


def append_event(folder: RunFolder, event: Event) -> None:
    """Append an event, and have it on disk before returning. The caller owns the run."""
    append_line(folder.events_file, event.line())


def read_run(folder: RunFolder) -> dict[str, Any]:
    """The values of run.json; empty where there is none. Raises `RecordError` for values that are not this run's."""
    try:
        text = read_record(folder.run_file)
    except FileNotFoundError:
        return {}
    fix = f"restore it, or remove {folder.path} to run it again"
    try:
        values: dict[str, Any] = json.loads(text)
        # Tables and pages are UTF-8, and their numbers are JSON's.
        json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
        run = _RunFile.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        reason = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
    except (ValueError, RecursionError) as error:
        reason = str(error)
    else:
        # A folder's name ends with its run's seed and the beginning of its id.
        seed, _, start = folder.name.rpartition("-s")[2].partition("-")
        if not (seed.isdecimal() and len(start) == 8) or (int(seed) == run.spec.seed and run.id.startswith(start)):
            return values
        reason = f"it is of seed {run.spec.seed} and id {run.id[:8]}"
    raise RecordError(f"{folder.run_file} is damaged ({reason}): {fix}.")


def _fold(folder: RunFolder, run: dict[str, Any], events: Sequence[Event], owned_by_us: bool) -> RunHistory:
    step, outcome = 0, None
    evaluated: dict[int, Evaluated] = {}
    validations: dict[int, float] = {}
    attempts: list[Started] = []
    suspect: list[str] = []
    for event in events:
        match event:
            case Started():
                outcome = None
                # Later steps of the attempts before are made again, and nothing is left of what they made.
                step = min(step, event.step)
                evaluated = {at: each for at, each in evaluated.items() if at <= event.step}
                validations = {at: each for at, each in validations.items() if at <= event.step}
                attempts = [*(each for each in attempts if each.step < event.step), event]
            case Evaluated():
                evaluated[event.step] = event
            case kinds.Validated():
                validations[event.step] = event.value
            case kinds.Suspect():
                suspect.append(event.why)
            case Complete() | Collapsed() | Stopped() | Failed():
                outcome = event
        step = max(step, event.step)
    evaluations = {at: _evaluation(folder, run, event) for at, event in evaluated.items()}
    checkpoints = tuple(folder.checkpoint_steps())
    if not owned_by_us and is_locked(folder):
        state, damage = State.RUNNING, None
    else:
        state, damage = _state(folder, events, outcome, evaluations, checkpoints)
    return RunHistory(
        folder,
        state,
        run=MappingProxyType(run),
        step=step,
        outcome=outcome,
        evaluations=evaluations,
        validations=validations,
        checkpoints=checkpoints,
        attempts=tuple(attempts),
        suspect=tuple(suspect),
        made_with=(*run.get("earlier_provenance", []), run["provenance"]) if "provenance" in run else (),
        started=events[0].time if events else None,
        updated=events[-1].time if events else None,
        damage=damage,
        events=tuple(events),
    )


def _evaluation(folder: RunFolder, run: Mapping[str, Any], event: Evaluated) -> Evaluation:
    path = folder.generations(event.step)
    graded, asked = sum(tally.graded for tally in event.benchmarks.values()), _generations_of(run)
    if not _is_intact(path):
        fault: str | None = f"{path} is missing or cut off"
    elif asked is not None and graded != asked:
        fault = f"{path} has {graded} of {asked} generations graded"
    else:
        fault = None
    return Evaluation(
        event.step,
        event.benchmarks,
        path,
        fault,
        event.time,
        event.seconds,
        event.cpu_seconds,
        event.sampler_mismatch,
        checks_sampler="sampler_mismatch" in event.model_fields_set,
    )


def _generations_of(run: Mapping[str, Any]) -> int | None:
    """How many generations an evaluation of the run's suite has; None where its run.json does not say."""
    try:
        benchmarks = run["spec"]["suite"]["benchmarks"].values()
        return sum(int(benchmark["problems"]) * int(benchmark["samples"]) for benchmark in benchmarks)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _is_intact(path: Path) -> bool:
    """Whether a Parquet file begins and ends with its mark: one that was cut off does not."""
    try:
        with open_record(path) as stream:
            begins = stream.read(len(_PARQUET_MARK)) == _PARQUET_MARK
            stream.seek(-len(_PARQUET_MARK), os.SEEK_END)
            return begins and stream.read() == _PARQUET_MARK
    except (OSError, RecordError):
        return False


def _state(
    folder: RunFolder,
    events: Sequence[Event],
    outcome: Outcome | None,
    evaluations: Mapping[int, Evaluation],
    checkpoints: Sequence[int],
) -> tuple[State, str | None]:
    """The state, and for a damaged one what is damaged and how to fix it."""
    if not events:
        return State.PENDING, None
    if outcome is None:
        return State.INTERRUPTED, None
    if isinstance(outcome, Stopped):
        return State.STOPPED, None
    if isinstance(outcome, Failed):
        return State.FAILED, None
    last = evaluations.get(outcome.step)
    if last is not None and last.is_complete:
        return (State.COLLAPSED if isinstance(outcome, Collapsed) else State.COMPLETE), None
    # The evaluation at the end is missing. It can be made again from the model before training, or from a checkpoint.
    if outcome.step == 0 or (checkpoints and max(checkpoints) <= outcome.step):
        return State.INTERRUPTED, None
    fault = last.fault if last is not None else f"{folder.generations(outcome.step)} is missing"
    fix = f"restore the file, or remove {folder.path} to run it again"
    return State.DAMAGED, f"{fault}, and no checkpoint is left to make it again: {fix}."
