"""Nested configuration values: laying one over another, setting a dotted key, and following `${...}` references."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

from tepo_lab.errors import ConfigError

#: `${dotted.key}`: the value of another key of the same configuration.
_REFERENCE = re.compile(r"\$\{\s*([A-Za-z_][\w.@-]*)\s*\}")


def overlaid(below: Any, above: Any) -> Any:
    """`above` laid over `below`: mappings are merged key by key, anything else replaces. Neither is changed."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    merged = dict(below)
    for key, value in above.items():
        merged[key] = overlaid(merged[key], value) if key in merged else value
    return merged


def with_value(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """`values` with `value` laid over what stands at a dotted key. `values` is not changed."""
    first, _, rest = key.partition(".")
    held = values.get(first)
    if not rest:
        return {**values, first: overlaid(held, value)}
    if held is not None and not isinstance(held, dict):
        raise ConfigError(f"{key!r} cannot be set: {first} is a value ({held!r}), not a group of keys.")
    return {**values, first: with_value(held or {}, rest, value)}


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; lists and empty mappings are values."""
    if not isinstance(values, dict) or not values:
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def resolved(values: Mapping[str, Any], *, plain: Container[str] = ()) -> dict[str, Any]:
    """A copy in which every `${dotted.key}` is that key's value (and `${oc.env:NAME}` an environment variable).

    Args: `plain`, top-level keys known to hold no reference (`plain_keys`), whose values are taken as they are.
    Raises `ConfigError` for a key that does not exist, or a reference that leads back to itself.
    """
    return {key: value if key in plain else _walk(value, values, ()) for key, value in values.items()}


def plain_keys(values: Mapping[str, Any]) -> frozenset[str]:
    """The top-level keys under which there is no reference."""
    return frozenset(key for key, value in values.items() if not _has_reference(value))


def _has_reference(node: Any) -> bool:
    if isinstance(node, dict):
        return any(_has_reference(value) for value in node.values())
    if isinstance(node, list | tuple):
        return any(_has_reference(value) for value in node)
    return isinstance(node, str) and "${" in node


def _walk(node: Any, root: Mapping[str, Any], behind: tuple[str, ...]) -> Any:
    if isinstance(node, str):
        return _followed(node, root, behind) if "${" in node else node
    if isinstance(node, dict):
        return {key: _walk(value, root, behind) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_walk(value, root, behind) for value in node]
    return node


def _followed(text: str, root: Mapping[str, Any], behind: tuple[str, ...]) -> Any:
    whole = _REFERENCE.fullmatch(text)
    if whole:
        return _at(whole[1], root, behind)
    filled = _REFERENCE.sub(lambda match: str(_at(match[1], root, behind)), text)
    return _by_resolver(filled) if "${" in filled else filled


def _at(key: str, root: Mapping[str, Any], behind: tuple[str, ...]) -> Any:
    if key in behind:
        raise ConfigError(f"${{{key}}} leads back to itself ({' -> '.join([*behind, key])}).")
    node: Any = root
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            raise ConfigError(f"${{{key}}}: there is no such key.")
        node = node[part]
    return _walk(node, root, (*behind, key))


def _by_resolver(text: str) -> Any:
    """A reference of another kind, such as `${oc.env:NAME}`, by OmegaConf's resolvers."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.create({"value": text})["value"]
    except OmegaConfBaseException as error:
        raise ConfigError(f"{text!r} cannot be resolved: {' '.join(str(error).split())}.") from None
