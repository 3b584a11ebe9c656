"""From names to one resolved run: profile, then the arm's chain of parents, then overrides. The only Hydra import."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.registry.locations import find, names, package_root, read_yaml, roots
from tepo_lab.schema.arm import ArmInfo, Source
from tepo_lab.schema.base import Strict, validate
from tepo_lab.schema.run import RunSpec

GROUPS = ("model", "data", "prompt", "suite", "rollout", "trainer")

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


@cache
def arm_file(name: str) -> ArmFile:
    """An arm's own description. Raises `ConfigError` for an unknown arm or a wrong key."""
    path = find("experiments", name, "arm")
    values = read_yaml(path)
    known = DESCRIPTION | RunSpec.model_fields.keys() - {"arm", "seed", "profile", "resources"}
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key!r}.{nearest(str(key), known)}")
    return validate(ArmFile, {key: values[key] for key in values if key in DESCRIPTION}, where=str(path))


def lineage(name: str) -> list[str]:
    """The arm's chain of parents, the oldest first and the arm itself last. Raises `ConfigError` on a cycle."""
    chain = [name]
    while (parent := arm_file(chain[0]).parent) is not None:
        if parent in chain:
            raise ConfigError(f"arm {name!r}: its parents go round in a circle ({' -> '.join([parent, *chain])}).")
        if parent not in names("experiments", "arm"):
            known = nearest(parent, names("experiments", "arm"))
            raise ConfigError(f"{find('experiments', chain[0], 'arm')}: unknown parent {parent!r}.{known}")
        chain.insert(0, parent)
    return chain


def compose_run(arm: str, profile: str, overrides: Sequence[str] = (), *, seed: int = 0) -> RunSpec:
    """The resolved run of an arm on a profile.

    Args: `overrides` in Hydra's grammar: `dotted.key=value`, or `group=choice` for a config group.
    Raises `ConfigError` naming the arm, file or override at fault.
    """
    return _composed(arm, profile, tuple(overrides)).model_copy(update={"seed": seed})


@cache
def _composed(arm: str, profile: str, overrides: tuple[str, ...]) -> RunSpec:
    chain = lineage(arm)
    find("experiments", profile, "profile")
    values = _hydra_compose(chain, profile, overrides)
    described = arm_file(arm)
    sources = values.get("sources") or {}
    values = {key: value for key, value in values.items() if key not in DESCRIPTION}
    info = described.model_dump() | {"name": arm, "sources": sources}
    where = f"arm {arm}, profile {profile}" + (f", overrides {' '.join(overrides)}" if overrides else "")
    return validate(RunSpec, {"objective": {}, **values, "arm": info}, where=where)


def check_override(text: str) -> tuple[str, str]:
    """Split `key=value`. Raises `ConfigError` for anything else."""
    key, separator, value = text.partition("=")
    if not separator or not re.fullmatch(r"[A-Za-z_][\w.@/-]*", key.strip()):
        raise ConfigError(f"{text!r} is not an override: write key=value, such as trainer.steps=5.")
    return key.strip(), value.strip()


def _hydra_compose(chain: Sequence[str], profile: str, overrides: Sequence[str]) -> dict[str, Any]:
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    choices = [f"profile@_global_={profile}", f"arm@_global_=[{','.join(chain)}]"]
    with _hydra_on_registry():
        try:
            # '++' sets a key whether a file gave it or not: which keys exist is the schema's to say.
            config = compose("config", overrides=[*choices, *(_hydra_override(text) for text in overrides)])
            values = OmegaConf.to_container(config, resolve=True)
        except (HydraException, OmegaConfBaseException) as error:
            message = " ".join(str(error).split())
            shown = f" with {' '.join(overrides)}" if overrides else ""
            raise ConfigError(f"arm {chain[-1]} on profile {profile}{shown} cannot be composed: {message}") from None
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _hydra_override(text: str) -> str:
    key, value = check_override(text)
    if key in GROUPS:
        known = names("experiments", key)
        if value not in known:
            raise ConfigError(f"{text!r}: unknown {key} {value!r}.{nearest(value, known)}")
        return text
    return f"++{key}={value}"


@contextmanager
def _hydra_on_registry() -> Iterator[None]:
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.plugins import Plugins
    from hydra.core.singleton import Singleton
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    own = [root for root in roots("experiments") if root != package_root() / "experiments"]

    class UserRegistry(SearchPathPlugin):
        """Puts a user's own experiments/ before the package's."""

        def manipulate_search_path(self, search_path: Any) -> None:
            for root in own:
                search_path.prepend("user", f"file://{root}")

    state = Singleton.get_state()
    Plugins.instance().register(UserRegistry)
    try:
        with initialize_config_dir(str(package_root() / "experiments"), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().clear()
        Singleton.set_state(state)


def clear_caches() -> None:
    """Forget what was read from disk; for a process in which the registry's files change."""
    arm_file.cache_clear()
    _composed.cache_clear()


def file_of(arm: str) -> Path:
    """The YAML file of an arm."""
    return find("experiments", arm, "arm")
