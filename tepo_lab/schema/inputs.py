"""The local files that a run was made from, as its provenance tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def input_files(provenance: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The SHA-256 of the files of `model`, `training data` and each benchmark, as far as they are known.

    What came from the hub, was made by a generator, or was too large to be hashed is not among them.
    """
    data = _mapping(provenance.get("data"))
    named = {"model": provenance.get("model"), "training data": data.get("training")}
    places = {**named, **_mapping(data.get("benchmarks"))}
    hashes = {what: _mapping(_mapping(place).get("sha256")).values() for what, place in places.items()}
    return {what: frozenset(known) for what, known in hashes.items() if known and None not in known}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
