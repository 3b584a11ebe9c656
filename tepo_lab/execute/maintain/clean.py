"""What a home holds that no run needs: said before it goes, and never a record."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tepo_lab.execute.planning.named_runs import recorded_runs
from tepo_lab.execute.running.scratch import is_left_over, is_stale
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory, State
from tepo_lab.records.lock import is_locked
from tepo_lab.registry.expand import expand, load_sweep
from tepo_lab.registry.locations import names as registry_names

#: Used where a run.json does not say how many checkpoints its policy keeps.
_KEPT = 2

_UNITS = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class Leftover:
    """A file or folder that can go, why, and its size in bytes. `run` is whose it is; None for the home's own."""

    path: Path
    why: str
    size: int
    run: RunFolder | None = None


def leftovers(
    home: Path, folders: Sequence[RunFolder], *, keep: int | None = None, unknown: bool = False
) -> list[Leftover]:
    """What can go: partial files of killed writers, dead leases, checkpoints beyond the runs' policy.

    Args: `keep`, checkpoints kept of runs that are over, when not as many as their policy says; `unknown`: also all
    checkpoints of runs that no sweep of the registry or of the home consists of. Runs that are going on are left alone,
    and run.json, metrics, events, generations, token files and logs of any run. The checkpoints of a run whose run.json
    is damaged stay too, as standard error says: what its policy is cannot be told.
    """
    known = known_runs(home) if unknown else None
    found = list(_home_leftovers(home))
    for folder in folders:
        if folder.run_file.exists() and not is_locked(folder):
            is_unknown = known is not None and folder.name not in known
            found += _partials(folder)
            history = RunHistory.read(folder)
            # The checkpoint policy of a damaged run is unknown, and it may need them all.
            if history.run and history.state is not State.DAMAGED:
                found += _checkpoints(history, keep, is_unknown)
    return found


def remove(found: Iterable[Leftover]) -> int:
    """Remove what was found, but nothing of a run that someone has begun to work on since. Returns bytes freed."""
    freed = 0
    for each in found:
        if each.run is not None and is_locked(each.run):
            continue
        if each.path.is_dir() and not each.path.is_symlink():
            shutil.rmtree(each.path)
        else:
            each.path.unlink(missing_ok=True)
        freed += each.size
    return freed


def known_runs(home: Path) -> set[str]:
    """Folder names of the runs that a sweep of the registry, or one that was run in this home, consists of."""
    known = {name for path in home.glob("sweeps/*/sweep.json") for name in recorded_runs(path)}
    for name in registry_names("sweeps"):
        known |= {each.folder for each in expand(*load_sweep(name)).runs}
    return known


def _home_leftovers(home: Path) -> Iterator[Leftover]:
    for path in sorted(home.glob("ray/*")):
        if is_left_over(path):
            yield Leftover(path, "scratch of an ended session", _size(path))
    for path in sorted(home.glob("sweeps/*/.*.partial")):
        # Nothing tells which machine its writer is on; those of a run are guarded by its lease.
        if not _writer_lives(path) and is_stale(path):
            yield Leftover(path, "left by a killed writer", _size(path))


def _partials(folder: RunFolder) -> Iterator[Leftover]:
    for pattern in (".*.partial", "*/.*.partial", ".lease.*"):
        for path in sorted(folder.path.glob(pattern)):
            if not _writer_lives(path):
                yield Leftover(path, "left by a killed writer", _size(path), folder)
    if folder.lease_file.exists():
        yield Leftover(folder.lease_file, "lease of a dead process", _size(folder.lease_file), folder)


def _checkpoints(history: RunHistory, keep: int | None, is_unknown: bool) -> Iterator[Leftover]:
    folder = history.folder
    policy = history.spec["trainer"].get("keep_checkpoints")
    kept, why = max(1, policy) if isinstance(policy, int) else _KEPT, "checkpoint beyond the run's policy"
    if is_unknown:
        kept, why = 0, "checkpoint of a run that no sweep has"
    elif keep is not None and history.state.is_final:
        kept, why = keep, f"checkpoint of a run that is over, beyond --keep {keep}"
    for step in history.checkpoints[: max(0, len(history.checkpoints) - kept)]:
        yield Leftover(folder.checkpoint(step), why, _size(folder.checkpoint(step)), folder)


def _writer_lives(path: Path) -> bool:
    match = re.search(r"\.(\d+)\.partial$", path.name)
    return match is not None and Path(f"/proc/{match[1]}").exists()


def _size(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return sum(_size(each) for each in path.iterdir())
    return path.lstat().st_size


def size_text(size: float) -> str:
    """Bytes for people: 512 B, 1.5 GB."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} {_UNITS[-1]}"


def leftovers_json(home: Path, found: Sequence[Leftover], *, removed: bool) -> dict[str, Any]:
    """What goes or has gone, for scripts; sizes in bytes."""
    return {
        "removed": removed,
        "bytes": sum(each.size for each in found),
        "leftovers": [
            {
                "path": str(each.path.relative_to(home)),
                "why": each.why,
                "bytes": each.size,
                "run": each.run.name if each.run is not None else None,
            }
            for each in found
        ],
    }


def leftovers_text(home: Path, found: Sequence[Leftover], *, removed: bool) -> Group:
    """What goes or has gone, largest first, with the sum."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("size", "what", "why"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for each in sorted(found, key=lambda each: -each.size):
        table.add_row(size_text(each.size), Text(str(each.path.relative_to(home))), each.why)
    total = size_text(sum(each.size for each in found))
    if not found:
        return Group(Text("Nothing to free."))
    said = f"Freed {total}." if removed else f"{total} would be freed; nothing was removed. Add --yes to remove it."
    return Group(table, Text(f"\n{said}", style="bold"))
