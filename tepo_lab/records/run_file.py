"""What a run.json must hold for its readers."""

from __future__ import annotations

import re
from typing import Any

#: What every reader of a run.json takes for granted, by dotted key.
_NEEDED = {"id": str, "family": str, "spec.arm.name": str, "spec.seed": int, "spec.trainer.steps": int}

#: What may be missing, and is of this type where it is not.
_OPTIONAL = {
    "provenance": dict,
    "provenance.commit": str,
    "earlier_provenance": list,
    "spec.profile": dict,
    "spec.rollout": dict,
    "spec.resources": dict,
}


def fault_of(run: Any, folder: str) -> str | None:
    """What is wrong with the values of the run.json in a `folder` of that name, or None.

    A folder's name ends with its run's seed and the beginning of its id.
    """
    if not isinstance(run, dict):
        return "not a mapping"
    for key, kind in (_NEEDED | _OPTIONAL).items():
        value: Any = run
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None and key in _NEEDED:
            return f"it has no {key}"
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            return f"its {key} is not what it must be"
    named = re.search(r"-s(\d+)-([0-9a-f]{8})$", folder)
    seed, identity = run["spec"]["seed"], run["id"]
    if named is None or (seed == int(named[1]) and identity.startswith(named[2])):
        return None
    return f"it is of seed {seed} and id {identity[:8]}, its folder of seed {named[1]} and id {named[2]}"
