"""From names to one resolved run: a profile, the arm's chain of parents over it, then a sweep's settings and overrides.

Hydra composes the profile from its groups and reads the overrides' grammar; this is the only module that imports it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.registry.locations import find, names, package_root, read_yaml, roots
from tepo_lab.registry.values import flatten, overlaid, plain_keys, resolved, with_value
from tepo_lab.schema.arm import ArmInfo, ValueSource, source_of
from tepo_lab.schema.base import Strict, validate
from tepo_lab.schema.run import RunSpec

#: Keys that overrides may abbreviate as the field does.
SHORT_KEYS = {"trainer.lr": "trainer.learning_rate", "lr": "trainer.learning_rate"}

GROUPS = ("model", "data", "prompt", "suite", "rollout", "trainer")

#: The sections of a run that overrides and sweeps set values in.
SETTABLE = frozenset(RunSpec.model_fields.keys() - {"arm", "seed"})

#: How to set what `SETTABLE` leaves out, and the profile.
_SET_ELSEWHERE = {
    "arm": "a sweep names its arms: arms=[NAME]",
    "seed": "a sweep names its seeds: seeds=[1, 2]",
    "profile": "choose a profile by its name: profile=NAME",
}


class ArmFile(Strict):
    """The describing keys of one experiments/arm/*.yaml; every other key is laid over the configuration."""

    label: str
    parent: str | None = None
    varies: tuple[str, ...] = ()
    note: str | None = None
    trained: bool = True
    sources: dict[str, ValueSource] = Field(default={})


def file_of(arm: str) -> Path:
    """The YAML file of an arm. Raises `ConfigError` for an unknown one."""
    return find("experiments", arm, "arm")


def arm_file(name: str) -> ArmFile:
    """An arm's own description. Raises `ConfigError` for an unknown arm or a wrong key."""
    return _read_arm(file_of(name))[0]


def arm_values(name: str) -> dict[str, Any]:
    """What an arm's file itself lays over the configuration. Raises as `arm_file`."""
    return _read_arm(file_of(name))[1]


@cache
def _read_arm(path: Path) -> tuple[ArmFile, dict[str, Any]]:
    values = read_yaml(path)
    known = ArmFile.model_fields.keys() | RunSpec.model_fields.keys() - {"arm", "seed", "profile", "resources"}
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key!r}.{nearest(str(key), known)}")
    description = {key: values.pop(key) for key in list(values) if key in ArmFile.model_fields}
    return validate(ArmFile, description, where=str(path)), values


def lineage(name: str) -> list[str]:
    """The arm's chain of parents, the oldest first and the arm itself last. Raises `ConfigError` on a cycle."""
    chain = [name]
    while (parent := arm_file(chain[0]).parent) is not None:
        if parent in chain:
            raise ConfigError(f"arm {name!r}: its parents go round in a circle ({' -> '.join([parent, *chain])}).")
        known = names("experiments", "arm")
        if parent not in known:
            hint = nearest(parent, set(known) - set(chain))
            raise ConfigError(f"{file_of(chain[0])}: unknown parent {parent!r}.{hint}")
        chain.insert(0, parent)
    return chain


def unsourced_notes(arms: Iterable[str]) -> list[str]:
    """A line for each of a user's arms (or their parents) that sets values without a source.

    Raises `ConfigError` for an arm of the package: every value there has a source.
    """
    notes = []
    for name in dict.fromkeys(name for arm in arms for name in lineage(arm)):
        sources = arm_file(name).sources
        keys = [key for key in flatten(arm_values(name)) if key and source_of(sources, key) is None]
        if keys:
            line = f"{file_of(name)}: no source for {', '.join(keys)}; add it under sources:"
            line += f" {{{keys[0]}: {{chosen: why}}}}, or paper, where and says."
            if file_of(name).is_relative_to(package_root()):
                raise ConfigError(line)
            notes.append(line)
    return notes


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
    if settings:
        spec = _compose(arm, profile, tuple(overrides), settings)
    else:
        spec = _compose_cached(arm, profile, tuple(overrides), tuple(roots("experiments")))
    return spec.model_copy(update={"seed": seed})


@cache
def _compose_cached(arm: str, profile: str, overrides: tuple[str, ...], places: tuple[Path, ...]) -> RunSpec:
    """A run without settings; `places` is part of the cache's key alone."""
    return _compose(arm, profile, overrides, {})


def _compose(arm: str, profile: str, overrides: tuple[str, ...], settings: Mapping[str, Any]) -> RunSpec:
    assigned = [*settings.items(), *map(_parse_override, overrides)]
    groups = {}
    for key, value in assigned:
        section = key.partition(".")[0]
        if section in ("arm", "seed") or key in ("profile", "profile.name"):
            raise ConfigError(f"{key!r} cannot be set so: {_SET_ELSEWHERE[section]}.")
        if section not in SETTABLE:
            raise ConfigError(f"unknown key {key!r}.{nearest(section, SETTABLE)}")
        if key in GROUPS and isinstance(value, str):
            known = names("experiments", key)
            if value not in known:
                raise ConfigError(f"{key}={value}: unknown {key} {value!r}.{nearest(value, known)}")
            groups[key] = value
    changes = " ".join([*(f"{key}={value}" for key, value in settings.items()), *overrides])
    where = f"arm {arm}, profile {profile}" + (f", with {changes}" if changes else "")
    layers = _layers(arm, profile, tuple(groups.items()), tuple(roots("experiments")))
    values: Mapping[str, Any] = layers.values
    changed = set()
    try:
        for key, value in assigned:
            if key not in groups:
                values = with_value(values, key, value)
                changed.add(key.partition(".")[0])
        values = resolved(values, plain=layers.plain - changed)
        # A benchmark that is new and has no label is a mistyped key.
        known_benchmarks = _benchmarks(layers.values)
        for name, benchmark in _benchmarks(values).items():
            if name not in known_benchmarks and isinstance(benchmark, dict) and "label" not in benchmark:
                raise ConfigError(f"unknown benchmark {name!r}.{nearest(name, known_benchmarks)}")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return validate(RunSpec, {"objective": {}, **values, "arm": layers.arm}, where=where)


def _benchmarks(values: Mapping[str, Any]) -> dict[str, Any]:
    suite = values.get("suite")
    benchmarks = suite.get("benchmarks") if isinstance(suite, dict) else None
    return benchmarks if isinstance(benchmarks, dict) else {}


@dataclass(frozen=True)
class _Layers:
    """A profile with an arm's chain of parents laid over it. `plain`: its keys without references."""

    values: dict[str, Any]
    plain: frozenset[str]
    arm: ArmInfo


@cache
def _layers(arm: str, profile: str, groups: tuple[tuple[str, str], ...], places: tuple[Path, ...]) -> _Layers:
    chain = lineage(arm)
    values = _compose_profile(profile, groups, places)
    sources: dict[str, ValueSource] = {}
    for name in chain:
        values = overlaid(values, arm_values(name))
        sources |= arm_file(name).sources
    info = validate(ArmInfo, arm_file(arm).model_dump() | {"name": arm, "sources": sources}, where=str(file_of(arm)))
    return _Layers(values, plain_keys(values), info)


@cache
def _compose_profile(profile: str, groups: tuple[tuple[str, str], ...], places: tuple[Path, ...]) -> dict[str, Any]:
    """A profile's values, references unresolved. Earlier places hide files of the same name in later ones."""
    path = find("experiments", profile, "profile")
    for place in places[:-1]:
        for group in ("profile", *GROUPS):
            for file in sorted((place / group).glob("*.yaml")):
                # Hydra's own reader reports less of an error, and follow aliases without end.
                read_yaml(file)

    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    choices = [f"profile@_global_={profile}", *(f"{group}={choice}" for group, choice in groups)]
    try:
        with _search_path(places[:-1]), initialize_config_dir(str(places[-1]), version_base="1.3"):
            values = OmegaConf.to_container(compose("config", overrides=choices), resolve=False)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError) as error:
        # What follows is where Hydra looked, which says nothing about the file.
        reason = " ".join(str(error).partition("Config search path")[0].split()).rstrip(".")
        raise ConfigError(f"{path}: cannot be composed: {reason}.") from None
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key != "seed"}


@contextmanager
def _search_path(places: Sequence[Path]) -> Iterator[None]:
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


def split_override(text: str) -> tuple[str, str]:
    """The key and the text of the value of `key=value`. Raises `ConfigError` for anything else."""
    key, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"[A-Za-z_][\w.@/-]*", key.strip()):
        raise ConfigError(f"{text!r} is not an override: write key=value, such as trainer.steps=5.")
    return SHORT_KEYS.get(key.strip(), key.strip()), value.strip()


@cache
def _parse_override(text: str) -> tuple[str, Any]:
    """An override's key and value, by Hydra's grammar."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import QuotedString
    from hydra.errors import HydraException

    def plain(value: Any) -> Any:
        if isinstance(value, QuotedString):
            return value.text
        if isinstance(value, list):
            return [plain(member) for member in value]
        if isinstance(value, dict):
            return {str(plain(key)): plain(member) for key, member in value.items()}
        return value

    key, value = split_override(text)
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
    return key, plain(override.value())


def clear_caches() -> None:
    """Forget what was read from disk; for a process in which the registry's files change."""
    for cached in (_read_arm, _compose_cached, _layers, _compose_profile):
        cached.cache_clear()
