"""Nested configuration values: merging, setting a dotted key, flattening, and resolving `${...}` references."""

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
    merged = {key: overlaid(below[key], value) if key in below else value for key, value in above.items()}
    return below | merged


def with_value(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of `values` with `value` laid over what stands at a dotted key."""
    first, _, rest = key.partition(".")
    below = values.get(first)
    if not rest:
        return {**values, first: overlaid(below, value)}
    if below is not None and not isinstance(below, dict):
        raise ConfigError(f"{key!r} cannot be set: {first} is a value ({below!r}), not a group of keys.")
    return {**values, first: with_value(below or {}, rest, value)}


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
    return {key: value if key in plain else _resolve(value, values, ()) for key, value in values.items()}


def plain_keys(values: Mapping[str, Any]) -> frozenset[str]:
    """The top-level keys under which there is no reference."""

    def has_reference(node: Any) -> bool:
        if isinstance(node, dict | list | tuple):
            return any(map(has_reference, node.values() if isinstance(node, dict) else node))
        return isinstance(node, str) and "${" in node

    return frozenset(key for key, value in values.items() if not has_reference(value))


def _resolve(node: Any, root: Mapping[str, Any], followed: tuple[str, ...]) -> Any:
    """A node with its references replaced. `followed` are the keys whose references led here."""
    if isinstance(node, dict):
        return {key: _resolve(value, root, followed) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_resolve(value, root, followed) for value in node]
    if not isinstance(node, str) or "${" not in node:
        return node
    if only := _REFERENCE.fullmatch(node):
        return _value_at(only[1], root, followed)
    text = _REFERENCE.sub(lambda match: str(_value_at(match[1], root, followed)), node)
    return _by_omegaconf(text) if "${" in text else text


def _value_at(key: str, root: Mapping[str, Any], followed: tuple[str, ...]) -> Any:
    if key in followed:
        raise ConfigError(f"${{{key}}} leads back to itself ({' -> '.join([*followed, key])}).")
    node: Any = root
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            raise ConfigError(f"${{{key}}}: there is no such key.")
        node = node[part]
    return _resolve(node, root, (*followed, key))


def _by_omegaconf(text: str) -> Any:
    """A reference of another kind, such as `${oc.env:NAME}`, by OmegaConf's resolvers."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return OmegaConf.create({"value": text})["value"]
    except OmegaConfBaseException as error:
        raise ConfigError(f"{text!r} cannot be resolved: {' '.join(str(error).split())}.") from None
