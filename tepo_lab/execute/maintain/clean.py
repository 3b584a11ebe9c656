"""Finds and removes what no run of a home needs, never a record."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tepo_lab.execute.running.scratch import is_left_over, is_stale
from tepo_lab.records.files import RunFolder, is_inside
from tepo_lab.records.history import RunHistory, State
from tepo_lab.records.lock import is_locked
from tepo_lab.records.sweeps import recorded_runs
from tepo_lab.registry.expand import expand, load_sweep
from tepo_lab.registry.locations import names as registry_names

#: Checkpoints kept by a run whose run.json gives no policy.
_KEPT = 2

_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Leftover:
    """A file or folder that no run needs, why, and its size in bytes. `run` is its run's folder; None outside runs."""

    path: Path
    why: str
    size: int
    run: RunFolder | None = None


def leftovers(
    home: Path, folders: Sequence[RunFolder], *, keep: int | None = None, unknown: bool = False
) -> list[Leftover]:
    """What can be removed: partial files of killed writers, leases of dead processes, surplus checkpoints.

    Never a run.json, metrics, events, generations, token files or logs; nothing of a run that is running; no checkpoint
    of a damaged run, whose policy is unknown; nothing that is in the home only through a link.

    Args: `keep`, checkpoints kept of runs that ended, instead of as many as their policy says; `unknown`: also all
    checkpoints of runs that are in no sweep of the registry or of the home.
    """
    known = known_runs(home) if unknown else None
    found: list[tuple[Path, str, RunFolder | None]] = []
    for path in sorted(home.glob("ray/*")):
        if is_left_over(path):
            found.append((path, "scratch of an ended session", None))
    for path in sorted(home.glob("sweeps/*/.*.partial")):
        # The writer's machine is unknown here; partial files of a run are guarded by the run's lock.
        if not _writer_lives(path) and is_stale(path):
            found.append((path, "left by a killed writer", None))
    for folder in folders:
        if not os.path.exists(folder.run_file) or is_locked(folder):
            continue
        for pattern in (".*.partial", "*/.*.partial", ".lease.*"):
            for path in sorted(folder.path.glob(pattern)):
                if not _writer_lives(path):
                    found.append((path, "left by a killed writer", folder))
        if folder.lease_file.exists():
            found.append((folder.lease_file, "lease of a dead process", folder))
        history = RunHistory.read(folder)
        if history.run and history.state is not State.DAMAGED:
            is_unknown = known is not None and folder.name not in known
            found += [(path, why, folder) for path, why in _surplus_checkpoints(history, keep, is_unknown)]
    # A link itself can be removed; what is behind a linked folder cannot.
    return [Leftover(path, why, _size(path), run) for path, why, run in found if is_inside(path.parent, home)]


def remove(found: Iterable[Leftover]) -> int:
    """Remove what was found, except of a run that has been started since. Returns bytes freed."""
    freed = 0
    for leftover in found:
        if leftover.run is not None and is_locked(leftover.run):
            continue
        if leftover.path.is_dir() and not leftover.path.is_symlink():
            shutil.rmtree(leftover.path)
        else:
            leftover.path.unlink(missing_ok=True)
        freed += leftover.size
    return freed


def known_runs(home: Path) -> set[str]:
    """Folder names of the runs of every sweep of the registry and every sweep that was run in this home."""
    known = {name for path in home.glob("sweeps/*/sweep.json") for name in recorded_runs(path)}
    for name in registry_names("sweeps"):
        known |= {run.folder for run in expand(*load_sweep(name)).runs}
    return known


def _surplus_checkpoints(history: RunHistory, keep: int | None, is_unknown: bool) -> Iterator[tuple[Path, str]]:
    """Checkpoints that may be removed, the oldest first, and why."""
    policy = history.spec["trainer"].get("keep_checkpoints")
    kept, why = max(1, policy) if isinstance(policy, int) else _KEPT, "checkpoint beyond the run's policy"
    if is_unknown:
        kept, why = 0, "checkpoint of a run that no sweep has"
    elif keep is not None and history.state.is_final:
        kept, why = keep, f"checkpoint of a run that is over, beyond --keep {keep}"
    for step in history.checkpoints[: max(0, len(history.checkpoints) - kept)]:
        yield history.folder.checkpoint(step), why


def _writer_lives(path: Path) -> bool:
    match = re.search(r"\.(\d+)\.partial$", path.name)
    return match is not None and psutil.pid_exists(int(match[1]))


def _size(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(map(_size, path.iterdir()))
    return path.lstat().st_size


def size_text(size: float) -> str:
    """Bytes as text: 512 B, 1.5 GB."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"


def leftovers_json(home: Path, found: Sequence[Leftover], *, removed: bool) -> dict[str, Any]:
    """What can be or was removed, for scripts; sizes in bytes."""
    return {
        "removed": removed,
        "bytes": sum(leftover.size for leftover in found),
        "leftovers": [
            {
                "path": str(leftover.path.relative_to(home)),
                "why": leftover.why,
                "bytes": leftover.size,
                "run": leftover.run.name if leftover.run is not None else None,
            }
            for leftover in found
        ],
    }


def leftovers_text(home: Path, found: Sequence[Leftover], *, removed: bool) -> Group:
    """What can be or was removed, largest first, with the sum."""
    if not found:
        return Group(Text("Nothing to free."))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("size", "what", "why"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for leftover in sorted(found, key=lambda leftover: -leftover.size):
        table.add_row(size_text(leftover.size), Text(str(leftover.path.relative_to(home))), leftover.why)
    total = size_text(sum(leftover.size for leftover in found))
    result = f"Freed {total}." if removed else f"{total} would be freed; nothing was removed. Add --yes to remove it."
    return Group(table, Text(f"\n{result}", style="bold"))
