from __future__ import annotations

from types import SimpleNamespace

import datasets
import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from tepo_lab.errors import DataError, ModelError, is_machine_failure
from tepo_lab.execute.planning import hub_commits as hub
from tepo_lab.execute.planning.hub_commits import at_commits, check_hub, check_model, commit_of
from tepo_lab.execute.planning.made_with import provenance
from tepo_lab.registry.compose import compose_run
from tepo_lab.schema.profile import DatasetData, ModelSpec
from tepo_lab.tasks.hub_data import HubUnreachableError

COMMIT = "c" * 40


def spec(*overrides, data=None):
    """A nano run, its training data of the hub where a name is given."""
    made = compose_run("tepo", "nano", overrides, seed=1)
    return made.model_copy(update={"data": DatasetData(kind="dataset", hub=data)}) if data else made


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Names that the hub is asked for; it knows those that begin with "some/"."""
    names = []

    def answer(api, name, **settings):
        names.append(name)
        assert settings["timeout"] <= 10
        if not name.startswith("some/"):
            raise OSError("404\n  not found")
        return SimpleNamespace(sha=COMMIT)

    monkeypatch.setattr(HfApi, "model_info", answer)
    monkeypatch.setattr(HfApi, "dataset_info", answer)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "ready")
    monkeypatch.setattr(hub, "_COMMITS", {})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return names


def test_what_lies_here_is_not_asked_for(asked, tmp_path):
    check_hub([spec(), spec(f"model.path={tmp_path}", "model.sha256=null")])
    assert asked == []


def test_each_name_is_asked_for_once(asked):
    model = ("model.path=some/model", "model.sha256=null")
    check_hub([spec(*model, data="some/problems"), spec(*model, "trainer.steps=3", data="some/problems")])
    assert asked == ["some/model", "some/problems"]


def test_a_model_that_the_hub_does_not_have_is_told_in_one_line(asked):
    with pytest.raises(ModelError) as told:
        check_hub([spec("model.path=other/model", "model.sha256=null")])
    assert "model.path=other/model: cannot be loaded (404 not found)" in str(told.value)
    assert "set model.path to a local folder" in str(told.value)


def test_a_hub_that_does_not_answer_is_asked_again_and_one_that_has_no_such_model_is_not(asked, monkeypatch):
    class NotThereError(RepositoryNotFoundError):
        def __init__(self):
            Exception.__init__(self, "404")

    answers = [ConnectionError("down"), TimeoutError("late"), COMMIT]

    def answer(api, name, **settings):
        asked.append(name)
        if isinstance(found := answers.pop(0), Exception):
            raise found
        return SimpleNamespace(sha=found)

    monkeypatch.setattr(HfApi, "model_info", answer)
    assert check_model(ModelSpec(name="m", path="some/model"), waits=(0.0, 0.0)) == COMMIT
    assert asked == ["some/model"] * 3
    answers[:] = [NotThereError()]
    with pytest.raises(ModelError, match="cannot be loaded"):
        check_model(ModelSpec(name="m", path="other/model"), waits=(0.0, 0.0))
    assert asked[3:] == ["other/model"]


def refusal(kind, status=None):
    error = kind.__new__(kind)
    Exception.__init__(error, "refused")
    error.response = type("Response", (), {"status_code": status})
    return error


@pytest.mark.parametrize(
    ("error", "is_machine"),
    [
        (refusal(GatedRepoError), False),
        (refusal(RepositoryNotFoundError, 404), False),
        (refusal(OSError, 403), False),
        (refusal(OSError, 503), True),
        (ConnectionError("name or service not known"), True),
        (TimeoutError("timed out"), True),
    ],
    ids=["gated", "not found", "forbidden", "down", "no connection", "too late"],
)
def test_a_hub_that_cannot_be_reached_is_the_machines_fault_and_its_no_the_users(asked, monkeypatch, error, is_machine):
    def answer(api, name, **settings):
        asked.append(name)
        raise error

    monkeypatch.setattr(HfApi, "model_info", answer)
    with pytest.raises(ModelError) as told:
        check_model(ModelSpec(name="m", path="some/model"), waits=(0.0, 0.0))
    assert isinstance(told.value, HubUnreachableError) == is_machine_failure(told.value) == is_machine
    assert len(asked) == (3 if is_machine else 1)


@pytest.mark.parametrize("name", ["no/such/folder", "what is this"])
def test_what_can_be_no_name_of_the_hub_is_a_missing_folder(asked, name):
    with pytest.raises(ModelError, match="no such folder, and no name of the hub"):
        check_hub([spec(f"model.path='{name}'", "model.sha256=null")])
    assert asked == []


def test_data_that_the_hub_does_not_have_are_told_in_one_line(asked):
    with pytest.raises(DataError, match=r"data set other/problems \[train\]: cannot be loaded"):
        check_hub([spec(data="other/problems")])


def test_offline_only_the_cache_counts(asked, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set"):
        check_hub([spec(data="some/problems")])
    assert asked == []


MODEL = ("model.path=some/model", "model.sha256=null")


def test_the_commits_that_the_hub_names_stand_in_the_provenance_and_are_what_the_run_loads(asked, tmp_path):
    own = spec(*MODEL, data="some/problems")
    check_hub([own])
    told = provenance(tmp_path, own)
    assert (told["model"]["commit"], told["data"]["training"]["commit"]) == (COMMIT, COMMIT)
    assert "commit" not in told["data"]["benchmarks"]["sum6"]
    pinned = at_commits(own, told)
    assert (pinned.model.revision, pinned.data.revision) == (COMMIT, COMMIT)
    assert pinned.suite == own.suite
    assert (own.model.revision, own.data.revision) == (None, None)
    assert at_commits(own, {}) == own


def test_of_a_cached_model_the_commit_is_that_of_its_snapshot_and_the_hub_is_not_asked(asked, tmp_path):
    cached = tmp_path / "models--some--model"
    snapshot = cached / "snapshots" / ("d" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("d" * 40)
    own = spec(*MODEL)
    check_hub([own])
    assert (commit_of(own.model), asked) == ("d" * 40, [])
    assert commit_of(spec().model) is None
