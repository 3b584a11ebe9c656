"""Data sets of the hub: what lies ready here is not asked for, and who is at fault where one cannot be had."""

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
from tepo_lab.tasks.data_files import _hub_table
from tepo_lab.tasks.hub_data import HubUnreachableError, data_commit, is_out_of_reach
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
        self.cache: Path | None = None
        self.asked: list[str | None] = []
        self.loads: list[str | None] = []

    def dataset_info(self, api: object, name: str, *, revision: str | None, timeout: float) -> types.SimpleNamespace:
        self.asked.append(revision)
        if self.error is not None:
            raise self.error
        return types.SimpleNamespace(sha=self.commit)

    def load_dataset(self, name: str, subset: str | None, *, split: str, revision: str | None) -> list[dict]:
        self.loads.append(revision)
        if self.load_error is not None:
            raise self.load_error
        if self.cache is not None:
            make_ready(self.cache, revision or self.commit, "24")
        return ROWS


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    made = Hub()
    monkeypatch.setattr(HfApi, "dataset_info", lambda *given, **named: made.dataset_info(*given, **named))
    monkeypatch.setattr(datasets, "load_dataset", made.load_dataset)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    _hub_table.cache_clear()
    yield made
    _hub_table.cache_clear()


def make_ready(cache: Path, commit: str, answers: str) -> None:
    """Has `datasets` make a copy of SUMS at `commit` ready, with these answers."""
    rows = [row | {"answer": answer} for row, answer in zip(ROWS, answers, strict=True)]
    file = cache / f"{commit}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # <owner>___<name>/<subset>/<version>/<commit>
    folder = cache / "datasets" / "Owner___some-sums" / "main" / "0.0.0" / commit
    Json(dataset_name="some-sums", data_files={"test": [str(file)]}).download_and_prepare(str(folder))


def answers(data: DatasetData) -> list[str]:
    return [problem.answer for problem in open_source(data).benchmark(2)]


def pinned(commit: str) -> DatasetData:
    return SUMS.model_copy(update={"revision": commit})


def test_the_commit_that_the_hub_names_is_the_one_that_is_loaded_and_a_process_asks_once(hub) -> None:
    assert answers(SUMS) == answers(SUMS) == ["2", "4"]
    assert (hub.asked, hub.loads) == ([None], [NEW])


@pytest.mark.parametrize("offline", [True, False])
def test_a_copy_that_lies_ready_is_read_without_a_word_to_the_hub(hub, tmp_path, monkeypatch, offline) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    make_ready(tmp_path, OLD, "57")
    assert answers(SUMS) == ["5", "7"]
    assert (data_commit(SUMS), hub.asked, hub.loads) == (OLD, [], [])


def test_of_several_copies_the_one_at_the_commit_asked_for_is_read(hub, tmp_path) -> None:
    make_ready(tmp_path, OLD, "57")
    make_ready(tmp_path, NEW, "68")
    assert (answers(pinned(OLD)), answers(pinned(NEW))) == (["5", "7"], ["6", "8"])
    assert hub.asked == []


def test_a_copy_at_another_commit_is_not_taken_for_it(hub, tmp_path) -> None:
    make_ready(tmp_path, OLD, "57")
    # The hub answers, and is gone while the rows are fetched: `datasets` gives those of OLD.
    with pytest.raises(HubUnreachableError, match=r"commit b{12} did not arrive"):
        answers(pinned(NEW))
    hub.cache = tmp_path
    assert (answers(pinned(NEW)), hub.loads) == (["2", "4"], [NEW, NEW])


def test_offline_a_copy_at_another_commit_is_not_taken_for_it(hub, tmp_path, monkeypatch) -> None:
    make_ready(tmp_path, OLD, "57")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"Owner/Some-Sums/main \[test\]: cannot be loaded .*HF_HUB_OFFLINE is set"):
        answers(pinned(NEW))


def test_a_hub_out_of_reach_is_one_line_and_nothing_is_loaded(hub) -> None:
    hub.error = ConnectionError("[Errno -2] Name or service\nnot known")
    with pytest.raises(
        HubUnreachableError, match=r"Owner/Some-Sums/main \[test\]: cannot be loaded .*data\.path"
    ) as told:
        open_source(SUMS)
    assert hub.loads == []
    assert "\n" not in str(told.value)
    assert isinstance(told.value, DataError)
    hub.error = None
    assert answers(SUMS) == ["2", "4"]


def test_a_hub_that_has_no_such_data_is_the_users_fault(hub) -> None:
    hub.error = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
    with pytest.raises(DataError) as told:
        open_source(SUMS)
    assert not isinstance(told.value, HubUnreachableError)


def test_what_breaks_off_while_it_is_loaded_is_the_machines_fault_and_a_wrong_split_the_users(hub) -> None:
    hub.load_error = ValueError('Unknown split "test"')
    with pytest.raises(DataError, match=r'Unknown split "test".*; check its name, subset and split') as told:
        open_source(SUMS)
    assert not isinstance(told.value, HubUnreachableError)
    hub.load_error = RuntimeError("while generating")
    hub.load_error.__cause__ = TimeoutError("timed out")
    with pytest.raises(HubUnreachableError, match="while generating"):
        open_source(SUMS)


def test_an_answer_that_says_later_is_out_of_reach_and_no_is_not() -> None:
    def answered(status: int) -> OSError:
        error = OSError("answer")
        error.response = types.SimpleNamespace(status_code=status)
        return error

    assert [is_out_of_reach(answered(status)) for status in (503, 429, 404)] == [True, True, False]
    assert is_out_of_reach(FileNotFoundError("no such data set")) is False
