"""Checkpoints: a folder that exists complete or not at all, and whose files are verified before it is used."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder, read_record, write_json
from tepo_lab.records.provenance import file_sha256
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from tepo_lab.train.training_state import save_training_state

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Position:
    """How far a run is: training steps made, and the index of its next training problem."""

    step: int
    data: int


def save(
    folder: RunFolder,
    position: Position,
    model: Any,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    process_group: ProcessGroup = SINGLE_PROCESS,
    *,
    guard: Callable[[], None] = lambda: None,
) -> Path:
    """Write the checkpoint after `position.step`: an ordinary model folder, and the training state.

    The folder gets its name only when every file is on disk, with a manifest of their SHA-256. Every rank must call
    this: each writes its rows of the optimizer state, and rank 0 the rest. Leftovers of saves that failed or were
    killed are removed first: they take the space that this one needs.
    Args: `guard`, called on rank 0 before the first write, and before the folder gets its name; it raises when this
    process no longer owns the run.
    """
    final = folder.checkpoint(position.step)
    # Unique, so that of two processes that both believe to own the run neither writes into the other's folder.
    partial = process_group.on_rank_zero(
        lambda: final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.{os.getpid()}.partial")
    )

    def begin() -> None:
        guard()
        for leftover in folder.checkpoints.glob(".step-*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
        (partial / "model").mkdir(parents=True)

    def publish() -> None:
        guard()
        write_json(partial / MANIFEST, manifest)
        if final.exists():
            shutil.rmtree(final)
        partial.replace(final)

    process_group.on_rank_zero(begin)
    try:
        if process_group.world_size > 1:
            from tepo_lab.train.distributed.sharded import save_model

            save_model(partial / "model", model, process_group)
        else:
            model.save_pretrained(partial / "model")
        if process_group.is_rank_zero:
            tokenizer.save_pretrained(partial / "model")
        save_training_state(partial, model, optimizer, process_group)
        files = process_group.on_rank_zero(lambda: sorted(path for path in partial.rglob("*") if path.is_file()))
        hashes = process_group.map_shares(lambda first, last: [_synced(file) for file in files[first:last]], len(files))
        names = [str(file.relative_to(partial)) for file in files]
        manifest = {"step": position.step, "data": position.data, "sha256": dict(zip(names, hashes, strict=True))}
        process_group.on_rank_zero(publish)
    except BaseException:
        if process_group.is_rank_zero:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def newest(folder: RunFolder, recorded: int) -> tuple[Path, Position] | None:
    """The newest undamaged checkpoint of the `recorded` steps, or None. Others are skipped.

    Raises `OSError` for one that cannot be read at the moment (too many open files, a file server without connection).
    """
    for step in sorted(folder.checkpoint_steps(), reverse=True):
        path = folder.checkpoint(step)
        if step <= recorded and (position := _verified(path)) is not None:
            return path, position
    return None


def prune(folder: RunFolder, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for step in sorted(folder.checkpoint_steps())[:-keep]:
        shutil.rmtree(folder.checkpoint(step))


def remove_after(folder: RunFolder, step: int) -> None:
    """Remove the checkpoints of later steps."""
    for later in folder.checkpoint_steps():
        if later > step:
            shutil.rmtree(folder.checkpoint(later))


def _verified(path: Path) -> Position | None:
    """The position of a checkpoint, or None for a damaged one."""
    try:
        manifest = json.loads(read_record(path / MANIFEST))
        if any(file_sha256(path / name) != digest for name, digest in manifest["sha256"].items()):
            return None
        return Position(int(manifest["step"]), int(manifest["data"]))
    except (FileNotFoundError, RecordError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def _synced(file: Path) -> str:
    """A file's SHA-256, once the file is on disk."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    return file_sha256(file)
