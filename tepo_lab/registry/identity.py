"""A run's identity: a hash of its science. Resources, paths of the home, names and steps are no part of it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tepo_lab.schema.run import RunSpec

#: Raised when what is hashed changes; a home may then hold runs of several versions, each under its own id.
IDENTITY_VERSION = 1

ID_LENGTH = 12


def family(spec: RunSpec) -> str:
    """The identity of a run without its seed: 12 hex digits, equal for all seeds of an arm on a profile."""
    return _digest({"version": IDENTITY_VERSION, "science": spec.science()})


def run_id(spec: RunSpec) -> str:
    """The identity of a run: 12 hex digits. An untrained model has one, whatever the seed."""
    return _digest({"version": IDENTITY_VERSION, "science": spec.science(), "seed": spec.seed})


def folder_name(spec: RunSpec) -> str:
    """The run's folder in the home, readable and unique: arm, profile, seed, and the start of its id."""
    return f"{spec.arm.name}-{spec.profile.name}-s{spec.seed}-{run_id(spec)[:8]}"


def _digest(values: Any) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:ID_LENGTH]
