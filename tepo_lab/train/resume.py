"""Where a run resumes: at its newest undamaged checkpoint, with everything after that step removed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo_lab.errors import RecordError
from tepo_lab.records.events import Collapsed, Complete
from tepo_lab.records.files import RunFolder, write_atomically
from tepo_lab.records.history import RunHistory
from tepo_lab.schema.run import RunSpec
from tepo_lab.train import checkpoint
from tepo_lab.train.checkpoint import Position


@dataclass(frozen=True)
class ResumePoint:
    """What a run has at `position`: a new run has nothing, and no `checkpoint`.

    `metrics` of the steps up to there; `is_evaluated` and `is_validated`, whether the scores of this step are recorded;
    `collapsed`, the stop rule by which the run ended here, if it did; `is_suspect`, whether its sampler was reported.
    """

    position: Position
    checkpoint: Path | None
    metrics: list[dict[str, Any]]
    is_evaluated: bool
    is_validated: bool
    collapsed: str | None
    is_suspect: bool
    is_new: bool


def find_resume_point(folder: RunFolder, spec: RunSpec) -> ResumePoint:
    """Where the run of `spec` resumes; nothing is written. The caller owns the run.

    Raises `RecordError` for a damaged run, for one that is beyond the steps of `spec`, and for one whose remaining
    checkpoints are all before an end that was evaluated.
    """
    history = RunHistory.read(folder, owned_by_us=True)
    if history.damage is not None:
        raise RecordError(history.damage)
    metrics = folder.metrics()
    newest = checkpoint.newest(folder, len(metrics)) if spec.arm.trained else None
    path, position = newest if newest else (None, Position(0, 0))
    step = position.step
    if spec.arm.trained:
        _check_nothing_is_lost(history, len(metrics), step, spec.steps)
    outcome = history.outcome
    return ResumePoint(
        position,
        path,
        metrics[:step],
        is_evaluated=step in history.complete_evaluations,
        is_validated=step in history.validations,
        collapsed=outcome.rule if isinstance(outcome, Collapsed) and outcome.step == step else None,
        is_suspect=bool(history.suspect),
        is_new=not history.events,
    )


def _check_nothing_is_lost(history: RunHistory, recorded: int, step: int, asked: int) -> None:
    """Raise `RecordError` where resuming at `step` of the `recorded` ones would delete results."""
    folder = history.folder
    # A torn last line can cost one step; more means that metrics.jsonl was lost.
    if history.checkpoints and history.checkpoints[0] > recorded + 1:
        raise RecordError(
            f"{folder.metrics_file} ends at step {recorded} and the oldest checkpoint is of step "
            f"{history.checkpoints[0]}: restore the file, or remove {folder.path} to run it again."
        )
    reached = max(step, history.step)
    if reached > asked:
        raise RecordError(
            f"{folder.path} is at step {reached}; resuming at step {asked} would delete the steps after it: set "
            f"trainer.steps={reached} or more."
        )
    ends = {event.step for event in history.events if isinstance(event, Complete)}
    lost = [end for end in history.complete_evaluations if end in ends and end > step]
    if lost:
        raise RecordError(
            f"{folder.path} was complete at step {lost[-1]} and can only resume at step {step}, because its later "
            "checkpoints are missing or damaged; that would delete its evaluation: restore the checkpoint, or remove "
            "the folder to run it again."
        )


def remove_later_records(folder: RunFolder, point: ResumePoint) -> None:
    """Remove checkpoints, metrics, generations and tokens of later steps: those steps are trained again.

    Checkpoints first: they are damaged, and must not be newer than the metrics.
    """
    step = point.position.step
    checkpoint.remove_after(folder, step)
    if folder.metrics_file.exists():
        lines = [json.dumps(metrics, separators=(",", ":")) + "\n" for metrics in point.metrics]
        write_atomically(folder.metrics_file, "".join(lines).encode())
    for later in folder.generation_steps():
        if later > step:
            folder.generations(later).unlink()
    for later in folder.token_steps():
        if later > step:
            folder.tokens(later).unlink()
