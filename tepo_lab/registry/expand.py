"""From a sweep's name or file to its runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tepo_lab.errors import ConfigError
from tepo_lab.registry.compose import arm_file, check_override, compose_run
from tepo_lab.registry.difference import check_against_parent
from tepo_lab.registry.identity import family, folder_name, run_id
from tepo_lab.registry.locations import find, names, read_yaml
from tepo_lab.schema.base import validate
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.sweep import Sweep

#: Keys that an override sets on the sweep itself; all others are set on every run's configuration.
SWEEP_KEYS = frozenset(Sweep.model_fields.keys() - {"name", "title", "overrides"})

#: The untrained model is evaluated once, whatever the seeds of the trained runs.
BASE_ARM, BASE_SEED = "base", 0


@dataclass(frozen=True)
class PlannedRun:
    """A resolved run with its identity. `run_id` and `family` as in `tepo_lab.registry.identity`."""

    spec: RunSpec
    run_id: str
    family: str
    folder: str


@dataclass(frozen=True)
class Expansion:
    """A sweep with its runs in the order they are started."""

    sweep: Sweep
    runs: tuple[PlannedRun, ...]
    overrides: tuple[str, ...] = field(default=())


def load_sweep(name: str, overrides: Sequence[str] = ()) -> tuple[Sweep, tuple[str, ...]]:
    """A sweep by its name, or by the path of a YAML file anywhere on disk.

    Returns the sweep with its own overrides applied, and the overrides left for the runs.
    Raises `ConfigError` for an unknown name (with the nearest), a wrong key, type or value.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) or "/" in name else find("sweeps", name)
    values = read_yaml(path)
    if "name" in values:
        raise ConfigError(f"{path}: a sweep is called by its file's name; remove the key 'name'.")
    if isinstance(values.get("stop"), list):
        values["stop"] = [_yaml_key_for(rule) for rule in values["stop"]]
    rest = []
    for text in overrides:
        key, value = check_override(text)
        if key in SWEEP_KEYS:
            values[key] = _plain(text, value)
        else:
            rest.append(text)
    sweep = validate(Sweep, values | {"name": path.stem}, where=str(path))
    return sweep, (*_as_overrides(sweep.overrides), *rest)


def expand(sweep: Sweep, overrides: Sequence[str] = ()) -> Expansion:
    """The runs of a sweep: the untrained model first, then one seed of every arm before the second of any.

    Raises `ConfigError` for an unknown arm or profile, or an arm that differs from its parent outside `varies`.
    """
    if sweep.profile not in names("experiments", "profile"):
        find("experiments", sweep.profile, "profile")
    if sweep.steps is not None:
        overrides = [f"trainer.steps={sweep.steps}", *overrides]
    trained = [arm for arm in sweep.arms if arm_file(arm).trained]
    for arm in trained:
        check_against_parent(arm, sweep.profile)
    pairs = [(arm, seed) for seed in sweep.seeds for arm in trained]
    if sweep.base or len(trained) < len(sweep.arms):
        pairs.insert(0, (BASE_ARM, BASE_SEED))
    runs = [planned(compose_run(arm, sweep.profile, overrides, seed=seed)) for arm, seed in pairs]
    return Expansion(sweep, tuple(runs), tuple(overrides))


def planned(spec: RunSpec) -> PlannedRun:
    """A run with its identity."""
    return PlannedRun(spec, run_id(spec), family(spec), folder_name(spec))


def _as_overrides(values: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key}={json.dumps(value)}" for key, value in values.items())


def _yaml_key_for(rule: Any) -> Any:
    # YAML reads a bare `on`, `off`, `yes`, `no` as a truth value; `for` is plain, but be strict about mappings.
    if not isinstance(rule, dict):
        raise ConfigError(f"stop: {rule!r} is not a rule: write {{when: 'reward/mean < 0.02', for: 5}}.")
    return rule


def _plain(text: str, value: str) -> Any:
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        raise ConfigError(f"{text!r}: its value cannot be read; write lists as [1,2] and text without braces.") from None
