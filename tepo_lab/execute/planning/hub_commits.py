"""What runs need of the hub: in its cache on this machine, or to be had, looked at before anything is started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tepo_lab.errors import ModelError
from tepo_lab.records.provenance import input_places
from tepo_lab.schema.profile import ChainData, Data, ModelSpec
from tepo_lab.schema.run import RunSpec
from tepo_lab.tasks.hub_data import (
    NOT_CACHED,
    HubUnreachableError,
    commit_on_hub,
    data_commit,
    in_one_line,
    is_out_of_reach,
)

#: Seconds that a run in the middle of a sweep waits before it asks a hub again that did not answer.
WAITS = (2.0, 6.0)

#: Commits that this process took of models and data sets of the hub, by what says which.
_COMMITS: dict[tuple[str | None, ...], str | None] = {}


def check_hub(specs: Iterable[RunSpec]) -> None:
    """Raise `ModelError` or `DataError` for what is neither in the hub's cache here nor on the hub.

    Each name is asked for once, and the commit taken of it is what `commit_of` returns from then on. What lies in a
    folder of its own is not looked at.
    """
    models: dict[tuple[str | None, ...], ModelSpec] = {}
    data_sets: dict[tuple[str | None, ...], Data] = {}
    for spec in specs:
        models.setdefault(_key(spec.model), spec.model)
        for data in data_of(spec).values():
            data_sets.setdefault(_key(data), data)
    for key, model in models.items():
        _COMMITS[key] = check_model(model)
    for key, data in data_sets.items():
        if not isinstance(data, ChainData) and data.path is None:
            _COMMITS[key] = data_commit(data)


def commit_of(source: ModelSpec | Data) -> str | None:
    """The commit that is taken of a model or a data set of the hub; None for what lies elsewhere, or is not known."""
    return _COMMITS.get(_key(source))


def at_commits(spec: RunSpec, provenance: Mapping[str, Any]) -> RunSpec:
    """The run, its model and data pinned to the commits that its provenance names.

    It loads the same wherever and whenever it goes on, whatever the hub, or the cache of another node, has since.
    """
    commits = {source: place.get("commit") for source, place in input_places(provenance).items()}
    pins = {source: {"revision": commit} for source, commit in commits.items() if isinstance(commit, str)}
    benchmarks = {
        name: benchmark.model_copy(update={"data": benchmark.data.model_copy(update=pins.get(f"benchmark {name}"))})
        for name, benchmark in spec.suite.benchmarks.items()
    }
    return spec.model_copy(
        update={
            "model": spec.model.model_copy(update=pins.get("model")),
            "data": spec.data.model_copy(update=pins.get("training data")),
            "suite": spec.suite.model_copy(update={"benchmarks": benchmarks}),
        }
    )


def check_model(model: ModelSpec, waits: Sequence[float] = ()) -> str | None:
    """The commit of a model of the hub: that in its cache here, else the hub's; None for one that lies in a folder.

    Raises `ModelError` for a model that neither lies here, in a folder or the hub's cache, nor is on the hub;
    `HubUnreachableError`, which is one too, when the hub does not answer. Args: `waits`, seconds before a hub that did
    not answer is asked again. transformers itself would ask one that is not there for most of a minute.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if model.is_packaged or model.folder.exists():
        return None
    source, fix = f"model.path={model.path}: cannot be loaded", "set model.path to a local folder"
    try:
        cached = try_to_load_from_cache(model.path, "config.json", revision=model.revision)
    except HFValidationError:
        raise ModelError(f"{source} (no such folder, and no name of the hub); {fix}.") from None
    if isinstance(cached, str):
        # SNAPSHOTS/<commit>/config.json
        return Path(cached).parent.name
    if constants.HF_HUB_OFFLINE:
        raise ModelError(f"{source} ({NOT_CACHED}); {fix}.")
    try:
        return commit_on_hub("model", model.path, model.revision, waits)
    except Exception as error:  # noqa: BLE001 - the hub's client raises a dozen unrelated kinds
        kind = HubUnreachableError if is_out_of_reach(error) else ModelError
        raise kind(f"{source} ({in_one_line(error)}); check the name and the connection, or {fix}.") from None


def data_of(spec: RunSpec) -> dict[str, Data]:
    """A run's data sets, named as its provenance does."""
    held_out = {f"benchmark {name}": benchmark.data for name, benchmark in spec.suite.benchmarks.items()}
    return held_out | ({"training data": spec.data} if spec.arm.trained else {})


def _key(source: ModelSpec | Data) -> tuple[str | None, ...]:
    if isinstance(source, ModelSpec):
        return ("model", source.path, source.revision)
    if isinstance(source, ChainData) or source.path is not None:
        return ("elsewhere",)
    return ("data set", source.hub, source.subset, source.revision)
