"""What runs need of the hub: in its cache on this machine, or to be had, looked at before anything is started."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from tepo_lab.errors import DataError, ModelError
from tepo_lab.schema.profile import ChainData, DatasetData, ModelSpec
from tepo_lab.schema.run import RunSpec

#: Seconds the hub has for an answer.
TIMEOUT = 10.0

#: Seconds that a run in the middle of a sweep waits before it asks a hub again that did not answer.
WAITS = (2.0, 6.0)

#: Answers of the hub that asking again does not change: not allowed, not there.
_REFUSED = (401, 403, 404)

_NOT_CACHED = "it is not in the hub's cache and HF_HUB_OFFLINE is set"


class HubUnreachableError(ModelError):
    """The hub did not answer: a failure of the machine, where it befalls a run in the middle of a sweep."""


def check_hub(specs: Iterable[RunSpec]) -> None:
    """Raise `ModelError` or `DataError` for what is neither in the hub's cache here nor on the hub.

    Each name is asked for once. What lies in a folder of its own is not looked at.
    """
    models: dict[tuple[str, str | None], ModelSpec] = {}
    data_sets: dict[tuple[str, str | None], DatasetData] = {}
    for spec in specs:
        models.setdefault((spec.model.path, spec.model.revision), spec.model)
        used = [each.data for each in spec.suite.benchmarks.values()] + ([spec.data] if spec.arm.trained else [])
        for data in used:
            if not isinstance(data, ChainData) and data.path is None:
                data_sets.setdefault((str(data.hub), data.revision), data)
    for model in models.values():
        check_model(model)
    for data in data_sets.values():
        _check_data(data)


def check_model(model: ModelSpec, waits: Sequence[float] = ()) -> None:
    """Raise `ModelError` for a model that neither lies here, in a folder or the hub's cache, nor is on the hub.

    `HubUnreachableError`, which is one too, when the hub does not tell. Args: `waits`, seconds before a hub that did
    not answer is asked again. transformers itself would ask one that is not there for most of a minute.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if model.is_packaged or model.folder.exists():
        return
    what, mend = f"model.path={model.path}: cannot be loaded", "set model.path to a local folder"
    try:
        cached = try_to_load_from_cache(model.path, "config.json", revision=model.revision)
    except HFValidationError:
        raise ModelError(f"{what} (no such folder, and no name of the hub); {mend}.") from None
    if isinstance(cached, str):
        return
    if constants.HF_HUB_OFFLINE:
        raise ModelError(f"{what} ({_NOT_CACHED}); {mend}.")
    error = _refusal(partial(HfApi().model_info, model.path, revision=model.revision, timeout=TIMEOUT), waits)
    if error is not None:
        kind = ModelError if _is_refusal(error) else HubUnreachableError
        raise kind(f"{what} ({_line(error)}); check the name and the connection, or {mend}.")


def _check_data(data: DatasetData) -> None:
    from huggingface_hub import HfApi, constants

    what, mend = f"data set {data.hub}: cannot be loaded", "set data.path to a local copy"
    if constants.HF_HUB_OFFLINE:
        if not _is_cached(str(data.hub)):
            raise DataError(f"{what} ({_NOT_CACHED}); {mend}.")
        return
    error = _refusal(partial(HfApi().dataset_info, str(data.hub), revision=data.revision, timeout=TIMEOUT))
    if error is not None:
        mend = f"check the name and the connection, set HF_HUB_OFFLINE=1 to use the hub's cache, or {mend}"
        raise DataError(f"{what} ({_line(error)}); {mend}.")


def _refusal(ask: Callable[[], object], waits: Sequence[float] = ()) -> Exception | None:
    """What the hub's client raised when asked, None when it got its answer.

    A hub that did not answer is asked again after each of `waits` seconds, one that gives no such thing is not.
    """
    refusal = None
    for wait in (0.0, *waits):
        time.sleep(wait)
        try:
            ask()
        except Exception as error:  # noqa: BLE001 - the hub's client raises a dozen unrelated kinds
            refusal = error
            if _is_refusal(error):
                break
        else:
            return None
    return refusal


def _line(error: Exception) -> str:
    """An error of the hub's client in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _is_refusal(error: Exception) -> bool:
    """Whether the hub answered, and has no such thing or does not give it to this user."""
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    # A gated repository is one that is not found, for those who may not have it.
    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError | HFValidationError):
        return True
    return getattr(getattr(error, "response", None), "status_code", None) in _REFUSED


def _is_cached(name: str) -> bool:
    """Whether anything of a data set lies in the caches of the hub's client or of `datasets`."""
    from datasets import config
    from huggingface_hub import constants

    downloaded = Path(constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}"
    prepared = Path(config.HF_DATASETS_CACHE) / name.replace("/", "___")
    return downloaded.is_dir() or prepared.is_dir()
