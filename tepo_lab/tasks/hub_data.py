"""Data sets of the hub: the commit that is taken of each, and its rows. Also what the hub's errors mean."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tepo_lab.errors import DataError, ModelError
from tepo_lab.schema.profile import DatasetData

#: Seconds the hub has for an answer: its client alone would try for half a minute.
TIMEOUT = 10.0

NOT_CACHED = "it is not in the hub's cache and HF_HUB_OFFLINE is set"

_COMMIT = re.compile("[0-9a-f]{40}")

#: The errors, by the names of their kinds, that the hub's client raises when the hub does not answer, and the answers
#: of one that is busy or down.
_OUT_OF_REACH = {"ConnectionError", "TimeoutError", "TransportError", "LocalEntryNotFoundError"}
_BUSY = (429, 500, 502, 503, 504)


class HubUnreachableError(ModelError, DataError):
    """The hub did not answer: a failure of the machine, for which a run is tried again."""


def commit_on_hub(
    kind: Literal["model", "dataset"], name: str, revision: str | None, waits: Sequence[float] = ()
) -> str | None:
    """The commit that the hub has of a model or a data set. Raises whatever the hub's client raises.

    Args: `waits`, seconds after each of which a hub that is out of reach is asked again.
    """
    from huggingface_hub import HfApi

    ask: Any = HfApi().model_info if kind == "model" else HfApi().dataset_info
    for wait in waits:
        try:
            return str(ask(name, revision=revision, timeout=TIMEOUT).sha)
        except Exception as error:
            if not is_out_of_reach(error):
                raise
        time.sleep(wait)
    commit: str | None = ask(name, revision=revision, timeout=TIMEOUT).sha
    return commit


def is_out_of_reach(error: BaseException) -> bool:
    """Whether an error, or what caused it, means that the hub cannot be reached; any other answer is the user's."""
    cause: BaseException | None = error
    while cause is not None:
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if _OUT_OF_REACH & {kind.__name__ for kind in type(cause).__mro__} or status in _BUSY:
            return True
        cause = cause.__cause__
    return False


def in_one_line(error: BaseException) -> str:
    """An error of the hub's client in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def hub_name(data: DatasetData) -> str:
    """A data set of the hub as messages name it."""
    return f"data set {data.hub}" + (f"/{data.subset}" if data.subset else "") + f" [{data.split}]"


def data_commit(data: DatasetData) -> str | None:
    """The commit that is taken of a data set of the hub: of the newest copy in the hub's cache here, else the hub's.

    None where offline it cannot be known. Raises `DataError` when there is neither; `HubUnreachableError`, which is one
    too, within seconds when the hub does not answer.
    """
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    if constants.HF_HUB_OFFLINE:
        return _hub_table(data.hub, data.subset, data.split, data.revision)[1]
    try:
        repos = [repo for repo in scan_cache_dir(constants.HF_HUB_CACHE).repos if repo.repo_type == "dataset"]
    except CacheNotFound:
        repos = []
    copies = [copy for repo in repos if repo.repo_id == data.hub for copy in repo.revisions]
    if data.revision is not None:
        copies = [copy for copy in copies if data.revision in (copy.commit_hash, *copy.refs)]
    if copies:
        return str(max(copies, key=lambda copy: copy.last_modified).commit_hash)
    try:
        return commit_on_hub("dataset", str(data.hub), data.revision)
    except Exception as error:  # noqa: BLE001 - the hub's client raises a dozen unrelated kinds
        raise _error(data, error, "check the name and the connection") from None


def hub_rows(data: DatasetData) -> list[dict[str, Any]]:
    """Rows of a data set of the hub at its `data_commit`, loaded once per process. Raises as `data_commit`."""
    return [dict(row) for row in _hub_table(data.hub, data.subset, data.split, data.revision)[0]]


@cache
def _hub_table(hub: str | None, subset: str | None, split: str, revision: str | None) -> tuple[Any, str | None]:
    """Rows, which lie in a file and are read from there one by one, so that they take no memory, and their commit."""
    from datasets import load_dataset
    from huggingface_hub import constants

    data = DatasetData(kind="dataset", hub=hub, subset=subset, split=split, revision=revision)
    commit = revision if constants.HF_HUB_OFFLINE else data_commit(data)
    try:
        rows = load_dataset(hub, subset, split=split, revision=commit)
        # In the cache a file's folder is named by the commit.
        folders = {Path(file["filename"]).parent.name for file in rows.cache_files}
        loaded = next((name for name in folders if _COMMIT.fullmatch(name)), commit)
        if commit is not None and _COMMIT.fullmatch(commit) and loaded != commit:
            # Without the hub `load_dataset` takes the newest copy in the cache, whatever commit it is asked for.
            raise ConnectionError(f"commit {commit[:12]} cannot be fetched, the cache has {str(loaded)[:12]}")
    except Exception as error:  # noqa: BLE001 - the hub's client raises a dozen unrelated kinds
        raise _error(data, error, "check its name, subset and split") from None
    return rows, loaded


def _error(data: DatasetData, error: Exception, fix: str) -> DataError:
    from huggingface_hub import constants

    reason = NOT_CACHED if constants.HF_HUB_OFFLINE and is_out_of_reach(error) else in_one_line(error)
    kind = HubUnreachableError if is_out_of_reach(error) and not constants.HF_HUB_OFFLINE else DataError
    return kind(f"{hub_name(data)}: cannot be loaded ({reason}); {fix}, or set data.path to a local copy.")
