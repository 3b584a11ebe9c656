"""Which runs of a home a command is about: all, those of a sweep, or single ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.execute.planning.actions import find_folder
from tepo_lab.records.files import RunFolder, run_folders
from tepo_lab.records.history import RunHistory
from tepo_lab.records.sweeps import recorded_runs
from tepo_lab.registry.expand import expand, is_path, load_sweep
from tepo_lab.registry.locations import names as registry_names

#: Shorter beginnings of a name or id would too often fit by chance.
_SHORTEST = 4


def chosen_folders(home: Path, given: Sequence[str] = (), *, any_seed: bool = False) -> list[RunFolder]:
    """The folders of the runs named, each once; of all runs in the home when none is.

    Args: `given`, names of sweeps (as last run in this home, else as in the registry; a path is read), of runs (or the
    beginning of a name or id), and key=value overrides, with which sweeps are expanded; `any_seed`: of those sweeps
    also runs of other seeds that are in the home, unless the overrides name the seeds.
    Folders of a sweep's runs that have not begun do not exist yet. Raises `ConfigError` for a name that fits nothing.
    """
    overrides = [text for text in given if "=" in text]
    names = [text for text in given if "=" not in text]
    if overrides and not names:
        raise ConfigError(f"{overrides[0]!r} changes a sweep: name the sweep too, such as panel-e {overrides[0]}.")
    present = {folder.name: folder for folder in run_folders(home)}
    if not names:
        return list(present.values())
    with_other_seeds = any_seed and overrides and not any(text.startswith("seeds=") for text in overrides)
    chosen: dict[str, RunFolder] = {}
    for name in names:
        runs = [] if is_path(name) else [folder for folder in present.values() if _fits(name, folder.name)]
        chosen |= {folder.name: folder for folder in runs or _of_sweep(home, name, overrides, present)}
        if with_other_seeds and not runs:
            families = {run.family for run in expand(*load_sweep(name, overrides)).runs}
            others = (folder for folder in present.values() if RunHistory.read(folder).family in families)
            chosen |= {folder.name: folder for folder in others}
    return list(chosen.values())


def _of_sweep(home: Path, name: str, overrides: list[str], present: dict[str, RunFolder]) -> list[RunFolder]:
    if not is_path(name):
        snapshots = {path.parent.name: path for path in home.glob("sweeps/*/sweep.json")}
        if not overrides and name in snapshots:
            return [present.get(run, RunFolder(home / "runs" / run)) for run in recorded_runs(snapshots[name])]
        known = [*registry_names("sweeps"), *snapshots]
        if name not in known:
            raise ConfigError(f"no sweep and no run of {home} is called {name!r}.{nearest(name, [*known, *present])}")
    return [find_folder(home, run) for run in expand(*load_sweep(name, overrides)).runs]


def _fits(name: str, folder: str) -> bool:
    if name == folder:
        return True
    identity = folder.rpartition("-")[2]
    return len(name) >= _SHORTEST and (folder.startswith(f"{name}-") or identity.startswith(name[: len(identity)]))
