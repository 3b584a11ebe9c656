"""Checkpoints: a folder that is there whole or not at all, and is known to be undamaged when it is used."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tepo_lab.errors import RecordError
from tepo_lab.schema.digest import file_sha256
from tepo_lab.schema.record import RunFolder, write_json
from tepo_lab.train.peers import ALONE, Peers

MANIFEST = "manifest.json"


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
    peers: Peers = ALONE,
) -> Path:
    """Write the checkpoint after `position.step`: an ordinary model folder, the optimizer, the random state.

    The folder appears under its name only when every file is on disk, with a manifest of their SHA-256. Several
    processes must all call this: each writes its shard of the optimizer, and the first one the rest. What is left of
    a save that failed, or that was killed before, is removed: it would take the room that the next one needs.
    """
    final = folder.checkpoint(position.step)
    partial = peers.first(lambda: _empty_folder(final.with_name(f".{final.name}.{os.getpid()}.partial")))
    try:
        manifest = _write(partial, position, model, tokenizer, optimizer, peers)
        peers.first(lambda: _publish(partial, final, manifest))
    except BaseException:
        if peers.is_first:
            _remove_partial(folder.checkpoints)
        raise
    return final


def _write(
    partial: Path, position: Position, model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer, peers: Peers
) -> dict[str, Any]:
    """Write a checkpoint's files to disk. Returns its manifest."""
    # Every draw of a run comes from its seed and step; what is left is torch's own generator.
    state: dict[str, Any] = {"torch_rng": torch.get_rng_state()}
    if peers.size > 1:
        from tepo_lab.train.sharded import save_model, save_optimizer

        save_model(partial / "model", model, peers)
        save_optimizer(partial / "optimizer", model, optimizer)
    else:
        model.save_pretrained(partial / "model")
        state["optimizer"] = optimizer.state_dict()
    if peers.is_first:
        tokenizer.save_pretrained(partial / "model")
        torch.save(state, partial / "training.pt")
    files = peers.first(lambda: sorted(path for path in partial.rglob("*") if path.is_file()))
    hashes = peers.divided(lambda first, last: [_on_disk(path) for path in files[first:last]], len(files))
    names = [str(path.relative_to(partial)) for path in files]
    return {"step": position.step, "data": position.data, "sha256": dict(zip(names, hashes, strict=True))}


def newest(folder: RunFolder) -> tuple[Path, Position] | None:
    """The newest undamaged checkpoint, or None. Damaged ones are passed over."""
    for path in sorted(folder.checkpoints.glob("step-*"), reverse=True):
        position = _verified(path)
        if position is not None:
            return path, position
    return None


def load_training_state(path: Path, model: Any, optimizer: torch.optim.Optimizer, peers: Peers = ALONE) -> None:
    """Put the optimizer and torch's random state back as they were, whatever the number of processes was then and is.

    Raises `RecordError` for another model's.
    """
    state = torch.load(path / "training.pt", map_location="cpu", weights_only=True)
    whole = state.get("optimizer")
    try:
        if whole is not None and peers.size == 1:
            optimizer.load_state_dict(whole)
        else:
            from tepo_lab.train.sharded import load_optimizer, scatter_optimizer

            if whole is None:
                load_optimizer(path / "optimizer", model, optimizer, peers, weights=path / "model")
            else:
                scatter_optimizer(whole, model, optimizer)
    except ValueError as error:
        raise RecordError(f"{path}: holds another model's optimizer ({error}); remove the folder.") from None
    torch.set_rng_state(state["torch_rng"])


def prune(folder: RunFolder, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for path in sorted(folder.checkpoints.glob("step-*"))[:-keep]:
        shutil.rmtree(path)


def _verified(path: Path) -> Position | None:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        whole = all(file_sha256(path / name) == digest for name, digest in manifest["sha256"].items())
        return Position(int(manifest["step"]), int(manifest["data"])) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove_partial(checkpoints: Path) -> None:
    for path in checkpoints.glob(".step-*.partial"):
        shutil.rmtree(path, ignore_errors=True)


def _empty_folder(path: Path) -> Path:
    _remove_partial(path.parent)
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
