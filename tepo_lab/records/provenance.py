"""What a run was made with, as its run.json records it: the input files, and what differs between two provenances."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tepo_lab.records.files import open_record

#: Names and SHA-256 of the files of one input.
Files = frozenset[tuple[str, str]]


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hex, read in blocks. Raises as `open_record`."""
    with open_record(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def input_places(provenance: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The recorded entries of the model, the training data and each benchmark, by these names; empty where absent."""
    data = _mapping(provenance.get("data"))
    places = {"model": provenance.get("model"), "training data": data.get("training")}
    places |= {f"benchmark {name}": place for name, place in _mapping(data.get("benchmarks")).items()}
    return {name: _mapping(place) for name, place in places.items()}


def input_files(provenance: Mapping[str, Any]) -> dict[str, Files]:
    """(name, SHA-256) of the files of the model, the training data and each benchmark, as far as they are recorded.

    Of files too large to hash in full, the SHA-256 of samples. An input of the hub has no files here but its commit,
    under a name of its own ("commit of the model"), to be compared with other commits only. Generated data has none.
    """
    files = {}
    for name, place in input_places(provenance).items():
        for hashes in (_mapping(place.get("sha256")), _mapping(place.get("sampled_sha256"))):
            if hashes and _all_text(hashes.values()):
                files[name] = frozenset(hashes.items())
        if isinstance(commit := place.get("commit"), str):
            files[commit_name(name)] = frozenset({("commit", commit)})
    return files


def commit_name(name: str) -> str:
    """The name under which the commit of an input is compared."""
    return f"commit of {name}" if name.startswith("benchmark") else f"commit of the {name}"


def differences(last: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """What differs: of commit, diff, versions, hardware, model, data, device, and resources other than the device.

    A value that only one of the two records is not compared: an earlier release may not have recorded it.
    """
    names = {key for key in ("commit", "diff") if last.get(key) != now.get(key)}
    names |= {key for key in ("versions", "hardware", "model", "data") if differs(last.get(key), now.get(key))}
    before, after = _mapping(last.get("resources")), _mapping(now.get("resources"))
    changed = {key for key in before.keys() & after.keys() if before[key] != after[key]}
    return names | ({"device"} & changed) | ({"resources"} if changed - {"device"} else set())


def differs(before: Any, after: Any) -> bool:
    """Whether two values of a provenance differ, as far as both are recorded; equal files may lie elsewhere."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return bool(before != after)
    places = {"path"} if before.get("sha256") and after.get("sha256") else set()
    # A file that only one side has does count.
    return any(
        before[key] != after[key] if key.endswith("sha256") else differs(before[key], after[key])
        for key in (before.keys() & after.keys()) - places
    )


def _all_text(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
