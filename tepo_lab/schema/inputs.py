"""The local files that a run was made from, as its provenance tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Names and SHA-256 of the files of one thing.
Files = frozenset[tuple[str, str]]


def input_files(provenance: Mapping[str, Any]) -> dict[str, Files]:
    """(name, SHA-256) of the files of the model, the training data and each benchmark, as far as they are known.

    What came from the hub, was made by a generator, or was too large to be hashed is not among them.
    """
    data = _mapping(provenance.get("data"))
    places = {"model": provenance.get("model"), "training data": data.get("training")}
    places |= {f"benchmark {name}": place for name, place in _mapping(data.get("benchmarks")).items()}
    hashes = {what: _mapping(_mapping(place).get("sha256")) for what, place in places.items()}
    return {what: frozenset(known.items()) for what, known in hashes.items() if known and None not in known.values()}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
