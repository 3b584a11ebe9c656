"""Checkpoints: a folder that is there whole or not at all, and is known to be undamaged when it is used."""

from __future__ import annotations

import errno
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
from tepo_lab.records.files import RunFolder, write_json
from tepo_lab.records.provenance import file_sha256
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup

MANIFEST = "manifest.json"

#: What the system says of a file that is not there, or that the disk no longer gives back.
_LOST = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO}


@dataclass(frozen=True)
class Position:
    """How far a run has come: training steps done, and the next place in its data."""

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
    """Write the checkpoint after `position.step`: an ordinary model folder, the optimizer, the random state.

    The folder appears under its name only when every file is on disk, with a manifest of their SHA-256. Several
    processes must all call this: each writes its shard of the optimizer, and the first one the rest. What is left of
    a save that failed, or that was killed before, is removed: it would take the room that the next one needs.
    Args: `guard`, called on the first process right before it begins, and right before the folder gets its name; it
    raises when this process may not write to the run any more.
    """
    final = folder.checkpoint(position.step)
    # Of two processes that each believe to have the run neither writes into the other's folder.
    name = f".{final.name}.{uuid.uuid4().hex[:8]}.{os.getpid()}.partial"

    def begin() -> Path:
        guard()
        return _empty_folder(final.with_name(name))

    def end() -> None:
        guard()
        _publish(partial, final, manifest)

    partial = process_group.on_rank_zero(begin)
    try:
        manifest = _write(partial, position, model, tokenizer, optimizer, process_group)
        process_group.on_rank_zero(end)
    except BaseException:
        if process_group.is_rank_zero:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def _write(
    partial: Path,
    position: Position,
    model: Any,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    process_group: ProcessGroup,
) -> dict[str, Any]:
    """Write a checkpoint's files to disk. Returns its manifest."""
    # Every draw of a run comes from its seed and step; what is left is torch's own generator.
    state: dict[str, Any] = {"torch_rng": torch.get_rng_state()}
    if process_group.world_size > 1:
        from tepo_lab.train.distributed.sharded import save_model, save_optimizer

        save_model(partial / "model", model, process_group)
        save_optimizer(partial / "optimizer", model, optimizer)
    else:
        model.save_pretrained(partial / "model")
        state["optimizer"] = optimizer.state_dict()
    if process_group.is_rank_zero:
        tokenizer.save_pretrained(partial / "model")
        torch.save(state, partial / "training.pt")
    files = process_group.on_rank_zero(lambda: sorted(path for path in partial.rglob("*") if path.is_file()))
    hashes = process_group.map_shares(lambda first, last: [_on_disk(path) for path in files[first:last]], len(files))
    names = [str(path.relative_to(partial)) for path in files]
    return {"step": position.step, "data": position.data, "sha256": dict(zip(names, hashes, strict=True))}


def newest(folder: RunFolder, recorded: int) -> tuple[Path, Position] | None:
    """The newest undamaged checkpoint of the `recorded` steps, or None. Others are passed over.

    Raises `OSError` for one that cannot be read just now (too many open files, a file server that is away), or by us.
    """
    for step in reversed(folder.checkpoint_steps()):
        position = _verified(folder.checkpoint(step)) if step <= recorded else None
        if position is not None:
            return folder.checkpoint(step), position
    return None


def load_training_state(
    path: Path, model: Any, optimizer: torch.optim.Optimizer, process_group: ProcessGroup = SINGLE_PROCESS
) -> None:
    """Put the optimizer and torch's random state back as they were, whatever the number of processes was then and is.

    Raises `RecordError` for another model's.
    """
    state = torch.load(path / "training.pt", map_location="cpu", weights_only=True)
    whole = state.get("optimizer")
    try:
        if whole is not None and process_group.world_size == 1:
            optimizer.load_state_dict(whole)
        else:
            from tepo_lab.train.distributed.sharded import load_optimizer, scatter_optimizer

            if whole is None:
                load_optimizer(path / "optimizer", model, optimizer, process_group, weights=path / "model")
            else:
                scatter_optimizer(whole, model, optimizer)
    except ValueError as error:
        raise RecordError(f"{path}: holds another model's optimizer ({error}); remove the folder.") from None
    torch.set_rng_state(state["torch_rng"])


def prune(folder: RunFolder, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for path in sorted(folder.checkpoints.glob("step-*"))[:-keep]:
        _remove(path)


def remove_after(folder: RunFolder, step: int) -> None:
    """Remove the checkpoints of later steps."""
    for later in folder.checkpoint_steps():
        if later > step:
            _remove(folder.checkpoint(later))


def _remove(path: Path) -> None:
    """Remove a checkpoint, or what a bad disk has left in its place."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _verified(path: Path) -> Position | None:
    """How far a checkpoint has come, or None for a damaged one."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        whole = all(file_sha256(path / name) == digest for name, digest in manifest["sha256"].items())
        return Position(int(manifest["step"]), int(manifest["data"])) if whole else None
    except OSError as error:
        if error.errno not in _LOST:
            raise
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _empty_folder(path: Path) -> Path:
    for leftover in path.parent.glob(".step-*.partial"):
        shutil.rmtree(leftover, ignore_errors=True)
    (path / "model").mkdir(parents=True)
    return path


def _on_disk(path: Path) -> str:
    """A file's SHA-256, once it is on disk."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    return file_sha256(path)


def _publish(partial: Path, final: Path, manifest: dict[str, Any]) -> None:
    write_json(partial / MANIFEST, manifest)
    if final.exists():
        shutil.rmtree(final)
    partial.replace(final)
