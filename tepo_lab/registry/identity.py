"""A run's identity: a hash of its science. Resources, places on disk, names and steps are no part of it."""

from __future__ import annotations

import hashlib
import json

from tepo_lab.schema.run import RunSpec

#: Raised when what is hashed changes; a home may then hold runs of several versions, each under its own id.
IDENTITY_VERSION = 1

ID_LENGTH = 12


def science_text(spec: RunSpec) -> str:
    """What an identity is a hash of, the seed left out, as canonical JSON."""
    return json.dumps(spec.science(), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def family(spec: RunSpec, science: str | None = None) -> str:
    """The identity of a run without its seed: 12 hex digits, equal for all seeds of an arm on a profile.

    Args: `science`, the spec's `science_text` where it is at hand.
    """
    return _digest(f'{{"science":{science or science_text(spec)},"version":{IDENTITY_VERSION}}}')


def run_id(spec: RunSpec, science: str | None = None) -> str:
    """The identity of a run: 12 hex digits. `science` as in `family`."""
    return _digest(f'{{"science":{science or science_text(spec)},"seed":{spec.seed},"version":{IDENTITY_VERSION}}}')


def folder_name(spec: RunSpec, identity: str | None = None) -> str:
    """The run's folder in the home, readable and unique: arm, profile, seed, and the start of its id."""
    return f"{spec.arm.name}-{spec.profile.name}-s{spec.seed}-{(identity or run_id(spec))[:8]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]
