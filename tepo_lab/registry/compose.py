"""From names to one resolved run: a profile, the arm's chain of parents over it, then overrides.

Hydra composes the profile from its groups and reads the overrides' grammar; this is the only module that imports it.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.registry.locations import find, names, read_yaml, roots
from tepo_lab.registry.values import flatten, overlaid, plain_keys, resolved, with_value
from tepo_lab.schema.arm import ArmInfo, Source, source_of
from tepo_lab.schema.base import Strict, validate
from tepo_lab.schema.run import RunSpec

#: Keys that overrides may abbreviate as the field does.
SHORT_KEYS = {"trainer.lr": "trainer.learning_rate", "lr": "trainer.learning_rate"}

GROUPS = ("model", "data", "prompt", "suite", "rollout", "trainer")

#: The sections of a run that overrides and sweeps set values in.
SETTABLE = frozenset(RunSpec.model_fields.keys() - {"arm", "seed"})

_SET_ELSEWHERE = {"arm": "a sweep names its arms: arms=[NAME]", "seed": "a sweep names its seeds: seeds=[1, 2]"}

#: Keys of an arm's file that describe it; every other key is laid over the configuration.
DESCRIPTION = frozenset({"label", "parent", "varies", "note", "trained", "sources"})


class ArmFile(Strict):
    """The describing keys of one experiments/arm/*.yaml."""

    label: str
    parent: str | None = None
    varies: tuple[str, ...] = ()
    note: str | None = None
    trained: bool = True
    sources: dict[str, Source] = Field(default={})


def arm_file(name: str) -> ArmFile:
    """An arm's own description. Raises `ConfigError` for an unknown arm or a wrong key."""
    return _arm(file_of(name))[0]


def arm_values(name: str) -> dict[str, Any]:
    """What an arm's file itself lays over the configuration. Raises as `arm_file`."""
    return _arm(file_of(name))[1]


def lineage(name: str) -> list[str]:
    """The arm's chain of parents, the oldest first and the arm itself last. Raises `ConfigError` on a cycle."""
    chain = [name]
    while (parent := arm_file(chain[0]).parent) is not None:
        if parent in chain:
            raise ConfigError(f"arm {name!r}: its parents go round in a circle ({' -> '.join([parent, *chain])}).")
        known = names("experiments", "arm")
        if parent not in known:
            others = [each for each in known if each not in chain]
            raise ConfigError(f"{file_of(chain[0])}: unknown parent {parent!r}.{nearest(parent, others)}")
        chain.insert(0, parent)
    return chain


def compose_run(
    arm: str,
    profile: str,
    overrides: Sequence[str] = (),
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> RunSpec:
    """The resolved run of an arm on a profile.

    Args: `settings` are a sweep's own values, by dotted key or config group; `overrides` follow them, in Hydra's
    grammar: `dotted.key=value`, or `group=choice` for a config group.
    Raises `ConfigError` naming the arm, file or override at fault.
    """
    given = tuple(overrides)
    if settings:
        spec = _resolved(arm, profile, given, settings)
    else:
        spec = _composed(arm, profile, given, tuple(roots("experiments")))
    return spec.model_copy(update={"seed": seed})


@cache
def _composed(arm: str, profile: str, overrides: tuple[str, ...], places: tuple[Path, ...]) -> RunSpec:
    """A run without settings; `places` only tells registries apart."""
    return _resolved(arm, profile, overrides, {})


def _resolved(arm: str, profile: str, overrides: tuple[str, ...], settings: Mapping[str, Any]) -> RunSpec:
    given = [*settings.items(), *(_parsed(text) for text in overrides)]
    _check_settable(key for key, _ in given)
    groups = {key: _choice(key, value) for key, value in given if key in GROUPS and isinstance(value, str)}
    changes = [*(f"{key}={value}" for key, value in settings.items()), *overrides]
    where = f"arm {arm}, profile {profile}" + (f", with {' '.join(changes)}" if changes else "")
    layers = _layers(arm, profile, tuple(groups.items()), tuple(roots("experiments")))
    values: Mapping[str, Any] = layers.values
    touched = set()
    try:
        for key, value in given:
            if key not in groups:
                values = with_value(values, key, value)
                touched.add(key.partition(".")[0])
        values = resolved(values, plain=layers.plain - touched)
        _check_benchmarks(_benchmarks(values), _benchmarks(layers.values))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return validate(RunSpec, {"objective": {}, **values, "arm": layers.arm}, where=where)


def _check_settable(keys: Iterable[str]) -> None:
    for key in keys:
        first = key.partition(".")[0]
        if first in _SET_ELSEWHERE or key in ("profile", "profile.name"):
            mend = _SET_ELSEWHERE.get(first, "choose a profile by its name: profile=NAME")
            raise ConfigError(f"{key!r} cannot be set so: {mend}.")
        if first not in SETTABLE:
            raise ConfigError(f"unknown key {key!r}.{nearest(first, SETTABLE)}")


def _benchmarks(values: Mapping[str, Any]) -> dict[str, Any]:
    suite = values.get("suite")
    benchmarks = suite.get("benchmarks") if isinstance(suite, dict) else None
    return benchmarks if isinstance(benchmarks, dict) else {}


def _check_benchmarks(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a benchmark that only a mistyped key can have made: new, and without its label."""
    for name, benchmark in given.items():
        if name not in known and isinstance(benchmark, dict) and "label" not in benchmark:
            raise ConfigError(f"unknown benchmark {name!r}.{nearest(name, known)}")


@dataclass(frozen=True)
class _Layers:
    """A profile with an arm's chain of parents laid over it. `plain`: its keys without references."""

    values: dict[str, Any]
    plain: frozenset[str]
    arm: ArmInfo


@cache
def _layers(arm: str, profile: str, groups: tuple[tuple[str, str], ...], places: tuple[Path, ...]) -> _Layers:
    chain = lineage(arm)
    find("experiments", profile, "profile")
    values = _hydra_compose(profile, groups, places)
    sources: dict[str, Source] = {}
    for name in chain:
        values = overlaid(values, arm_values(name))
        sources |= arm_file(name).sources
    info = validate(ArmInfo, arm_file(arm).model_dump() | {"name": arm, "sources": sources}, where=str(file_of(arm)))
    return _Layers(values, plain_keys(values), info)


@cache
def _arm(path: Path) -> tuple[ArmFile, dict[str, Any]]:
    values = read_yaml(path)
    known = DESCRIPTION | RunSpec.model_fields.keys() - {"arm", "seed", "profile", "resources"}
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key!r}.{nearest(str(key), known)}")
    described = validate(ArmFile, {key: values[key] for key in values if key in DESCRIPTION}, where=str(path))
    return described, {key: values[key] for key in values if key not in DESCRIPTION}


@cache
def _hydra_compose(profile: str, groups: tuple[tuple[str, str], ...], places: tuple[Path, ...]) -> dict[str, Any]:
    """A profile's values, references unresolved. Earlier places hide files of the same name in later ones."""
    for place in places[:-1]:
        for path in (path for group in ("profile", *GROUPS) for path in sorted((place / group).glob("*.yaml"))):
            # Hydra's own reader would tell less of a fault, and follow aliases without end.
            read_yaml(path)
    with _no_collection():
        return _hydra_composed(profile, groups, places)


def _hydra_composed(profile: str, groups: tuple[tuple[str, str], ...], places: tuple[Path, ...]) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    choices = [f"profile@_global_={profile}", *(f"{group}={choice}" for group, choice in groups)]
    try:
        with _searched_first(places[:-1]), initialize_config_dir(str(places[-1]), version_base="1.3"):
            values = OmegaConf.to_container(compose("config", overrides=choices), resolve=False)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError) as error:
        # What follows is where Hydra looked, which says nothing about the file.
        reason = " ".join(str(error).partition("Config search path")[0].split()).rstrip(".")
        raise ConfigError(f"{find('experiments', profile, 'profile')}: cannot be composed: {reason}.") from None
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key != "seed"}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hydra makes many small objects that live: looking for garbage among them takes a sixth of planning."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _searched_first(places: Sequence[Path]) -> Iterator[None]:
    """Has Hydra look into `places` before the folder it is started on."""
    from hydra.core.plugins import Plugins
    from hydra.core.singleton import Singleton
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class UserRegistry(SearchPathPlugin):  # type: ignore[misc]
        def manipulate_search_path(self, search_path: Any) -> None:
            for place in reversed(places):
                search_path.prepend("user", f"file://{place}")

    state = Singleton.get_state()
    try:
        if places:
            Plugins.instance().register(UserRegistry)
        yield
    finally:
        Singleton.set_state(state)


def unsourced(arm: str) -> dict[str, list[str]]:
    """The keys that an arm and its parents set without saying where the value comes from, by the arm that sets them."""
    found = {
        name: [key for key in flatten(arm_values(name)) if key and source_of(arm_file(name).sources, key) is None]
        for name in lineage(arm)
    }
    return {name: keys for name, keys in found.items() if keys}


def check_override(text: str) -> tuple[str, str]:
    """Split `key=value`. Raises `ConfigError` for anything else."""
    key, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"[A-Za-z_][\w.@/-]*", key.strip()):
        raise ConfigError(f"{text!r} is not an override: write key=value, such as trainer.steps=5.")
    return SHORT_KEYS.get(key.strip(), key.strip()), value.strip()


@cache
def _parsed(text: str) -> tuple[str, Any]:
    """An override's key and value, by Hydra's grammar."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import QuotedString
    from hydra.errors import HydraException

    key, value = check_override(text)
    if key in GROUPS and not value.startswith("{"):
        return key, value
    try:
        # The grammar knows fewer keys than we do (no "C6@32"); only the value is left to it.
        override = OverridesParser.create().parse_override(f"value={value}")
    except (HydraException, ValueError, RecursionError):
        raise ConfigError(
            f"{text!r}: its value cannot be read; write a number, a word, a list [1, 2] or a mapping {{key: 1}}, and "
            "quote any other text: \"key='some text'\"."
        ) from None
    if override.is_sweep_override():
        raise ConfigError(f"{text!r} gives several values: put them in a sweep's axes.")
    return key, _plain(override.value(), QuotedString)


def _plain(value: Any, quoted: type) -> Any:
    if isinstance(value, quoted):
        return value.text  # type: ignore[attr-defined]
    if isinstance(value, list):
        return [_plain(each, quoted) for each in value]
    if isinstance(value, dict):
        return {str(_plain(key, quoted)): _plain(each, quoted) for key, each in value.items()}
    return value


def _choice(group: str, value: str) -> str:
    known = names("experiments", group)
    if value not in known:
        raise ConfigError(f"{group}={value}: unknown {group} {value!r}.{nearest(value, known)}")
    return value


def clear_caches() -> None:
    """Forget what was read from disk; for a process in which the registry's files change."""
    _arm.cache_clear()
    _composed.cache_clear()
    _layers.cache_clear()
    _hydra_compose.cache_clear()


def file_of(arm: str) -> Path:
    """The YAML file of an arm."""
    return find("experiments", arm, "arm")
