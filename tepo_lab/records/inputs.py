"""The files and commits that a run was made from, as its provenance tells of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: Names and SHA-256 of the files of one thing.
Files = frozenset[tuple[str, str]]


def input_places(provenance: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What is told of the model, the training data and each benchmark, by these names; nothing where nothing is."""
    data = _mapping(provenance.get("data"))
    places = {"model": provenance.get("model"), "training data": data.get("training")}
    places |= {f"benchmark {name}": place for name, place in _mapping(data.get("benchmarks")).items()}
    return {what: _mapping(place) for what, place in places.items()}


def input_files(provenance: Mapping[str, Any]) -> dict[str, Files]:
    """(name, SHA-256) of the files of the model, the training data and each benchmark, as far as they are known.

    Of files too large to be read for this, the SHA-256 of samples. What came from the hub has no files here but a
    commit, under a name of its own ("commit of the model"): to be compared with other commits alone. What was made by a
    generator is not among them.
    """
    found = {}
    for what, place in input_places(provenance).items():
        for known in (_mapping(place.get("sha256")), _mapping(place.get("sampled_sha256"))):
            if known and _all_text(known.values()):
                found[what] = frozenset(known.items())
        if isinstance(commit := place.get("commit"), str):
            found[commit_name(what)] = frozenset({("commit", commit)})
    return found


def commit_name(what: str) -> str:
    """What the commit of a model, the training data or a benchmark is called beside it."""
    return f"commit of {what}" if what.startswith("benchmark") else f"commit of the {what}"


def _all_text(values: Iterable[Any]) -> bool:
    return all(isinstance(each, str) for each in values)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
