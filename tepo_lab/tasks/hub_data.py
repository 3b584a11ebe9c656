"""What the hub says of a model or a data set, and which of its data sets lie ready in the cache here."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tepo_lab.errors import DataError, ModelError
from tepo_lab.schema.profile import DatasetData

#: Seconds the hub has for an answer: its client alone would try for half a minute.
TIMEOUT = 10.0

_COMMIT = re.compile("[0-9a-f]{40}")

NOT_CACHED = "it is not in the hub's cache and HF_HUB_OFFLINE is set"

#: Answers of the hub that asking again does not change: not allowed, not there.
_REFUSED = (401, 403, 404)

#: Kinds of error, by name, with which its client tells of a hub that is out of reach; so does one of these answers.
_OUT_OF_REACH = {"ConnectionError", "TimeoutError", "TransportError", "LocalEntryNotFoundError"}
_BUSY = (429, 500, 502, 503, 504)


class HubUnreachableError(ModelError, DataError):
    """The hub did not answer: a failure of the machine, where it befalls a run in the middle of a sweep."""


def commit_on_hub(
    kind: Literal["model", "dataset"], name: str, revision: str | None, waits: Sequence[float] = ()
) -> str | None:
    """The commit that the hub has of a model or a data set. Raises whatever the hub's client raises.

    A hub that did not answer is asked again after each of `waits` seconds, one that gives no such thing is not.
    """
    from huggingface_hub import HfApi

    ask: Any = HfApi().model_info if kind == "model" else HfApi().dataset_info
    try:
        commit: str | None = ask(name, revision=revision, timeout=TIMEOUT).sha
    except Exception as error:
        if not waits or is_refusal(error):
            raise
    else:
        return commit
    time.sleep(waits[0])
    return commit_on_hub(kind, name, revision, waits[1:])


def data_commit(data: DatasetData) -> str | None:
    """The commit of a data set of the hub that is taken: that of the copy which lies ready here, else the hub's.

    None where it cannot be told. Raises `DataError` when there is neither; `HubUnreachableError`, which is one too,
    within seconds when the hub does not tell.
    """
    from huggingface_hub import constants

    ready = ready_copies(data)
    commit = data.revision or next(iter(ready), None)
    if commit in ready:
        return commit
    what, mend = hub_name(data), "set data.path to a local copy"
    if constants.HF_HUB_OFFLINE:
        if not ready and _is_cached(str(data.hub)):
            return None
        raise DataError(f"{what}: cannot be loaded ({NOT_CACHED}); {mend}.")
    try:
        return commit_on_hub("dataset", str(data.hub), data.revision)
    except Exception as error:  # noqa: BLE001 - the hub's client raises a dozen unrelated kinds
        kind = DataError if is_refusal(error) else HubUnreachableError
        mend = f"check the name and the connection, or {mend}"
        raise kind(f"{what}: cannot be loaded ({in_one_line(error)}); {mend}.") from None


def hub_name(data: DatasetData) -> str:
    """A data set of the hub as messages name it."""
    return f"data set {data.hub}" + (f"/{data.subset}" if data.subset else "") + f" [{data.split}]"


def ready_copies(data: DatasetData) -> dict[str, Path]:
    """Copies of a data set's subset that `datasets` has made ready here, by their commits, the newest first."""
    from datasets import config

    # Below it: the subset's name, a version, and the commit.
    folders = [*_prepared(str(data.hub)).glob(f"{data.subset or 'default'}/*/*")]
    whole = [
        each for each in folders if _COMMIT.fullmatch(each.name) and (each / config.DATASET_INFO_FILENAME).is_file()
    ]
    return {each.name: each for each in sorted(whole, key=lambda each: each.stat().st_mtime, reverse=True)}


def read_copy(copy: Path, data: DatasetData) -> Any:
    """The rows of a ready copy's split, which the hub is not asked for."""
    from datasets.packaged_modules.cache.cache import Cache

    subset, version, commit = copy.parts[-3:]
    hub = str(data.hub)
    return Cache(
        dataset_name=_folder_name(hub), repo_id=hub, config_name=subset, version=version, hash=commit
    ).as_dataset(split=data.split)


def is_refusal(error: Exception) -> bool:
    """Whether the hub answered, and has no such thing or does not give it to this user."""
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    # A gated repository is one that is not found, for those who may not have it.
    if isinstance(error, RepositoryNotFoundError | RevisionNotFoundError | HFValidationError):
        return True
    return _status(error) in _REFUSED


def is_out_of_reach(error: BaseException) -> bool:
    """Whether an error, or what it arose from, says that the hub cannot be reached."""
    cause: BaseException | None = error
    while cause is not None:
        if _OUT_OF_REACH & {kind.__name__ for kind in type(cause).__mro__} or _status(cause) in _BUSY:
            return True
        cause = cause.__cause__
    return False


def in_one_line(error: BaseException) -> str:
    """An error of the hub's client in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _status(error: BaseException) -> int | None:
    status: int | None = getattr(getattr(error, "response", None), "status_code", None)
    return status


def _is_cached(name: str) -> bool:
    """Whether anything of a data set lies in the caches of the hub's client or of `datasets`."""
    from huggingface_hub import constants

    downloaded = Path(constants.HF_HUB_CACHE) / f"datasets--{name.replace('/', '--')}"
    return downloaded.is_dir() or _prepared(name).is_dir()


def _prepared(name: str) -> Path:
    """Where `datasets` keeps its ready copies of a data set."""
    from datasets import config

    *owner, _ = name.split("/")
    return Path(config.HF_DATASETS_CACHE).expanduser() / "___".join([*owner, _folder_name(name)])


def _folder_name(name: str) -> str:
    from datasets.naming import camelcase_to_snakecase

    return str(camelcase_to_snakecase(name.split("/")[-1]))
