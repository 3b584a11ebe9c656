"""Which runs of a home a command is about: all, those of a sweep, or single ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tepo_lab.errors import ConfigError, RecordError, nearest
from tepo_lab.execute.planning.actions import find_folder
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory
from tepo_lab.registry.expand import expand, is_path, load_sweep
from tepo_lab.registry.locations import names as registry_names

#: Shorter beginnings of a name or id would too often fit by chance.
_SHORTEST = 4


def chosen_folders(home: Path, given: Sequence[str] = (), *, any_seed: bool = False) -> list[RunFolder]:
    """The folders of the runs named, each once; of all runs in the home when none is.

    Args: `given`, names of sweeps (as last run in this home, else as the registry has them; a path is read), of runs
    (or the beginning of a name or id), and key=value overrides, with which sweeps are expanded anew; `any_seed`: of
    those sweeps also runs that the home has of other seeds, unless the overrides name the seeds.
    Folders of a sweep's runs that have not begun do not exist yet. Raises `ConfigError` for a name that fits nothing.
    """
    overrides = [each for each in given if "=" in each]
    wanted = [each for each in given if "=" not in each]
    if overrides and not wanted:
        raise ConfigError(f"{overrides[0]!r} changes a sweep: name the sweep too, such as panel-e {overrides[0]}.")
    held = {path.parent.name: RunFolder(path.parent) for path in sorted(home.glob("runs/*/run.json"))}
    if not wanted:
        return list(held.values())
    found: dict[str, RunFolder] = {}
    for name in wanted:
        for folder in _named(home, name, overrides, held):
            found[folder.name] = folder
        if (
            any_seed
            and overrides
            and not any(each.startswith("seeds=") for each in overrides)
            and not _is_run(name, held)
        ):
            found |= {folder.name: folder for folder in _other_seeds(name, overrides, held)}
    return list(found.values())


def _is_run(name: str, held: dict[str, RunFolder]) -> bool:
    return not is_path(name) and any(_fits(name, each) for each in held)


def _other_seeds(name: str, overrides: list[str], held: dict[str, RunFolder]) -> list[RunFolder]:
    """The home's runs of a sweep's arms, whatever their seed."""
    families = {each.family for each in expand(*load_sweep(name, overrides)).runs}
    return [folder for folder in held.values() if RunHistory.read(folder).family in families]


def _named(home: Path, name: str, overrides: list[str], held: dict[str, RunFolder]) -> list[RunFolder]:
    if not is_path(name):
        runs = [folder for each, folder in held.items() if _fits(name, each)]
        if runs:
            return runs
        snapshots = {path.parent.name: path for path in home.glob("sweeps/*/sweep.json")}
        if not overrides and name in snapshots:
            return [held.get(each, RunFolder(home / "runs" / each)) for each in recorded_runs(snapshots[name])]
        known = [*registry_names("sweeps"), *snapshots]
        if name not in known:
            raise ConfigError(f"no sweep and no run of {home} is called {name!r}.{nearest(name, [*known, *held])}")
    return [find_folder(home, each) for each in expand(*load_sweep(name, overrides)).runs]


def recorded_runs(snapshot: Path) -> list[str]:
    """Folder names of a sweep's runs, from the sweep.json it was last run with. Raises `RecordError` if damaged."""
    try:
        runs = json.loads(snapshot.read_text())["runs"]
        if all(isinstance(each, str) and Path(each).name == each for each in runs):
            return list(runs)
        reason = "runs: not names of folders"
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error)
    raise RecordError(f"{snapshot} is damaged ({reason}): remove it; running the sweep writes it again.")


def _fits(name: str, folder: str) -> bool:
    if name == folder:
        return True
    identity = folder.rpartition("-")[2]
    return len(name) >= _SHORTEST and (folder.startswith(f"{name}-") or identity.startswith(name[: len(identity)]))
