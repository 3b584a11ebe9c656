"""What differs between two resolved runs, and whether an arm changes only what it declares in `varies`."""

from __future__ import annotations

from typing import Any

from tepo_lab.errors import ConfigError
from tepo_lab.registry.compose import compose_run, file_of
from tepo_lab.registry.values import flatten
from tepo_lab.schema.run import RunSpec

#: Sections an arm may change; the rest of a run comes from the profile, the seed or the command line.
COMPARED = {"objective", "model", "data", "prompt", "suite", "rollout", "trainer"}


def difference(left: RunSpec, right: RunSpec) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (left's value, right's value), for every key whose values differ. None where a side has no key."""
    a, b = (flatten(spec.model_dump(mode="json", include=COMPARED)) for spec in (left, right))
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def read_difference(left: RunSpec, right: RunSpec) -> dict[str, tuple[Any, Any]]:
    """`difference` without keys of the objective that neither side reads."""
    unread = [{f"objective.{key}" for key in spec.objective.unread} for spec in (left, right)]

    def is_read(key: str, pair: tuple[Any, Any]) -> bool:
        return any(value is not None and key not in side for value, side in zip(pair, unread, strict=True))

    return {key: pair for key, pair in difference(left, right).items() if is_read(key, pair)}


def check_against_parent(arm: str, profile: str) -> None:
    """Raise `ConfigError` when the arm differs from its parent outside `varies`."""
    spec = compose_run(arm, profile)
    if spec.arm.parent is None:
        return
    changes = difference(compose_run(spec.arm.parent, profile), spec)
    stray = [
        f"{key} ({before} -> {after})"
        for key, (before, after) in changes.items()
        if not any(key == allowed or key.startswith(f"{allowed}.") for allowed in spec.arm.varies)
    ]
    if stray:
        raise ConfigError(
            f"{file_of(arm)}: differs from its parent {spec.arm.parent!r} outside `varies`: {', '.join(stray)}. "
            "Add the key to `varies` or remove the change."
        )
