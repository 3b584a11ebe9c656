"""Data sets of the hub: the commit that is taken, and who is at fault where one cannot be had."""

from __future__ import annotations

import json
import types
from pathlib import Path

import datasets
import pytest
from datasets.packaged_modules.json.json import Json
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError

from tepo_lab.errors import DataError
from tepo_lab.schema.profile import DatasetData
from tepo_lab.tasks.hub_data import HubUnreachableError, _hub_table, data_commit, is_out_of_reach
from tepo_lab.tasks.sources import open_source

OLD, NEW = "a" * 40, "b" * 40
ROWS = [{"id": "a", "problem": "1+1?", "answer": "2"}, {"id": "b", "problem": "2+2?", "answer": "4"}]
SUMS = DatasetData(kind="dataset", hub="Owner/Some-Sums", subset="main", split="test")


class Hub:
    """Stands in for the hub: its newest commit, what it was asked and what was loaded from it."""

    def __init__(self) -> None:
        self.commit = NEW
        self.error: Exception | None = None
        self.load_error: Exception | None = None
        #: The commit of the rows that are loaded, whatever is asked for.
        self.delivers: str | None = None
        self.asked: list[str | None] = []
        self.loads: list[str | None] = []

    def dataset_info(self, api: object, name: str, *, revision: str | None, timeout: float) -> types.SimpleNamespace:
        self.asked.append(revision)
        if self.error is not None:
            raise self.error
        return types.SimpleNamespace(sha=self.commit)

    def load_dataset(self, name: str, subset: str | None, *, split: str, revision: str | None) -> datasets.Dataset:
        self.loads.append(revision)
        if self.load_error is not None:
            raise self.load_error

        class Rows(list):
            cache_files = ({"filename": f"/cache/{name}/{subset}/0.0.0/{self.delivers or revision}/rows.arrow"},)

        return Rows(ROWS)


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    _hub_table.cache_clear()
    yield
    _hub_table.cache_clear()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr(HfApi, "dataset_info", lambda *given, **named: made.dataset_info(*given, **named))
    monkeypatch.setattr(datasets, "load_dataset", made.load_dataset)
    return made


def download(cache: Path, commit: str) -> None:
    """Puts what the hub's client leaves of a download into its cache."""
    repo = cache / "hub" / "datasets--Owner--Some-Sums"
    (repo / "blobs").mkdir(parents=True, exist_ok=True)
    (repo / "blobs" / commit).write_text("rows")
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "snapshots" / commit / "rows.jsonl").symlink_to(repo / "blobs" / commit)


def prepare(cache: Path, commit: str, answers: str) -> None:
    """Has `datasets` prepare a copy of SUMS at `commit`, with these answers."""
    rows = [row | {"answer": answer} for row, answer in zip(ROWS, answers, strict=True)]
    file = cache / f"{commit}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # <owner>___<name>/<subset>/<version>/<commit>
    folder = cache / "datasets" / "Owner___some-sums" / "main" / "0.0.0" / commit
    Json(dataset_name="some-sums", config_name="main", data_files={"test": [str(file)]}).download_and_prepare(
        str(folder)
    )


def answers(data: DatasetData) -> list[str]:
    return [problem.answer for problem in open_source(data).benchmark(2)]


def pinned(commit: str) -> DatasetData:
    return SUMS.model_copy(update={"revision": commit})


def test_the_commit_that_the_hub_names_is_loaded_and_a_process_asks_once(hub: Hub) -> None:
    assert answers(SUMS) == answers(SUMS) == ["2", "4"]
    assert (hub.asked, hub.loads) == ([None], [NEW])


def test_the_commit_of_a_cached_copy_is_taken_and_the_hub_is_not_asked(hub: Hub, tmp_path: Path) -> None:
    download(tmp_path, OLD)
    assert (data_commit(SUMS), data_commit(pinned(OLD)), hub.asked) == (OLD, OLD, [])
    assert data_commit(pinned(NEW)) == NEW
    assert hub.asked == [NEW]


def test_a_copy_at_another_commit_is_not_taken_for_the_pinned_one(hub: Hub) -> None:
    hub.delivers = OLD
    with pytest.raises(HubUnreachableError, match=r"commit b{12} cannot be fetched"):
        answers(pinned(NEW))
    hub.delivers = None
    assert (answers(pinned(NEW)), hub.loads) == (["2", "4"], [NEW, NEW])


def test_offline_the_prepared_copy_is_read_at_its_commit_and_at_no_other(tmp_path: Path, monkeypatch) -> None:
    """With the real `load_dataset`."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set"):
        data_commit(SUMS)
    prepare(tmp_path, OLD, "57")
    assert (data_commit(SUMS), answers(SUMS), answers(pinned(OLD))) == (OLD, ["5", "7"], ["5", "7"])
    with pytest.raises(DataError, match=r"Owner/Some-Sums/main \[test\]: cannot be loaded .*HF_HUB_OFFLINE is set"):
        answers(pinned(NEW))


def test_a_hub_out_of_reach_is_one_line_and_nothing_is_loaded(hub: Hub) -> None:
    hub.error = ConnectionError("[Errno -2] Name or service\nnot known")
    with pytest.raises(HubUnreachableError, match=r"Owner/Some-Sums/main \[test\]: .*data\.path") as raised:
        open_source(SUMS)
    assert hub.loads == []
    assert "\n" not in str(raised.value)
    hub.error = None
    assert answers(SUMS) == ["2", "4"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError('Unknown split "test"'), DataError),
        (RuntimeError("while generating"), HubUnreachableError),
    ],
)
def test_a_connection_lost_while_loading_is_the_machines_fault_and_a_wrong_split_the_users(
    hub: Hub, error: Exception, kind: type[DataError]
) -> None:
    hub.load_error = error
    if kind is HubUnreachableError:
        error.__cause__ = TimeoutError("timed out")
    with pytest.raises(DataError, match=str(error)) as raised:
        open_source(SUMS)
    assert type(raised.value) is kind


def test_an_unknown_name_is_the_users_fault(hub: Hub) -> None:
    hub.error = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
    with pytest.raises(DataError) as raised:
        open_source(SUMS)
    assert type(raised.value) is DataError


@pytest.mark.parametrize(("status", "expected"), [(503, True), (429, True), (404, False)])
def test_a_busy_hub_is_out_of_reach_and_one_that_refuses_is_not(status: int, expected: bool) -> None:
    error = OSError("answer")
    error.response = types.SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    assert is_out_of_reach(error) is expected
