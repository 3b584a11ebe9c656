"""What is recorded of how a run was made."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tepo_lab.execute.planning import made_with as module
from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.planning.made_with import (
    changed_inputs,
    command,
    data_identity,
    going_on,
    is_other,
    model_identity,
    patch_file,
    provenance,
)
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.records.history import RunHistory
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned
from tepo_lab.schema.profile import DatasetData, ModelSpec


def git(folder, *arguments):
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of its own that provenance takes for the package's."""
    root = tmp_path / "checkout"
    (root / "package" / "execute" / "planning").mkdir(parents=True)
    (root / "tracked.txt").write_text("one\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(module, "__file__", str(root / "package" / "execute" / "planning" / "provenance.py"))
    module._source_of.cache_clear()
    yield root
    module._source_of.cache_clear()


@pytest.fixture
def spec():
    return compose_run("tepo", "nano", ("trainer.steps=4",), seed=3)


def test_a_clean_tree_is_its_commit(checkout, tmp_path, spec):
    found = provenance(tmp_path / "home", spec)
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert (found["commit"], found["dirty"]) == (head.stdout.strip(), False)
    assert not {"diff", "untracked"} & set(found)
    assert not (tmp_path / "home").exists()


def test_a_changed_tree_keeps_its_patch_once_and_the_hashes_of_new_files(checkout, tmp_path, spec, monkeypatch):
    (checkout / "tracked.txt").write_text("two\n")
    (checkout / "new.txt").write_text("new\n")
    (checkout / "large.bin").write_bytes(b"x" * 5000)
    monkeypatch.setattr(module, "MAX_UNTRACKED_BYTES", 1000)
    home = tmp_path / "home"
    found = provenance(home, spec)
    assert found["dirty"] is True
    assert found["untracked"] == {
        "count": 2,
        "files": {"large.bin": None, "new.txt": hashlib.sha256(b"new\n").hexdigest()},
    }
    patch = patch_file(home, found["diff"])
    assert hashlib.sha256(patch.read_bytes()).hexdigest() == found["diff"]
    assert "-one\n+two\n" in patch.read_text()
    stamp = patch.stat().st_mtime_ns
    provenance(home, spec)
    assert (patch.stat().st_mtime_ns, len(list(patch.parent.iterdir()))) == (stamp, 1)


def test_the_patch_applied_to_the_commit_gives_the_tree_back(checkout, tmp_path, spec):
    (checkout / "tracked.txt").write_text("two\n")
    found = provenance(tmp_path / "home", spec)
    git(checkout, "checkout", "--quiet", "--", ".")
    git(checkout, "apply", str(patch_file(tmp_path / "home", found["diff"])))
    assert (checkout / "tracked.txt").read_text() == "two\n"


def test_outside_a_checkout_the_commit_is_unknown(tmp_path, monkeypatch, spec):
    monkeypatch.setattr(module, "__file__", str(tmp_path / "package" / "execute" / "planning" / "provenance.py"))
    module._source_of.cache_clear()
    found = provenance(tmp_path, spec)
    module._source_of.cache_clear()
    assert (found["commit"], found["dirty"]) == (None, None)
    assert found["seeds"] == {"run": 3, "suite": spec.suite.seed}
    assert found["versions"]["python"] == ".".join(str(each) for each in sys.version_info[:3])
    assert found["hardware"]["cpus"] >= 1
    assert found["hardware"]["memory_gb"] > 0


def test_the_command_is_recorded_without_the_secrets_of_its_addresses(monkeypatch):
    words = [
        "--mlflow",
        "postgresql://me:s@ecret@host:5432/db?password=secret",
        "--mlflow=https://secret@host",
        "seed=1",
    ]
    monkeypatch.setattr(sys, "argv", ["/bin/tepo-lab", "run", *words])
    expected = ["--mlflow", "postgresql://host:5432/db", "--mlflow=https://host", "seed=1"]
    assert command() == ["tepo-lab", "run", *expected]


def test_weights_and_data_are_known_by_their_hashes(tmp_path, spec):
    weights = Path(module.__file__).parents[2] / "assets" / "nano" / "model.safetensors"
    packaged = model_identity(ModelSpec(name="nano", path="package:nano"))
    assert packaged["sha256"]["model.safetensors"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert {"config.json", "tokenizer.json"} < set(packaged["sha256"])
    hub = model_identity(ModelSpec(name="x", path="someone/model", revision="abc"))
    assert hub == {"path": "someone/model", "revision": "abc"}
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"problem": "1", "answer": "1"}\n')
    data = DatasetData(kind="dataset", path=str(problems))
    own = spec.model_copy(update={"data": data})
    digest = hashlib.sha256(problems.read_bytes()).hexdigest()
    assert data_identity(own)["training"]["sha256"] == {"problems.jsonl": digest}
    assert data_identity(spec)["training"]["generator"] == "chain"
    assert set(data_identity(spec)["benchmarks"]) == set(spec.suite.benchmarks)
    assert data_identity(compose_run("base", "nano"))["training"] is None


def test_a_run_that_goes_on_with_other_code_keeps_what_it_was_made_with(checkout, tmp_path):
    found = entry(tmp_path / "home", planned(compose_run("tepo", "nano", ("trainer.steps=4",), seed=3)))
    prepare_folder(found)
    first = RunHistory.read(found.folder).run["provenance"]
    prepare_folder(found)
    assert "earlier_provenance" not in RunHistory.read(found.folder).run
    (checkout / "tracked.txt").write_text("two\n")
    module._source_of.cache_clear()
    prepare_folder(found)
    run = RunHistory.read(found.folder).run
    assert (run["earlier_provenance"], run["provenance"]["dirty"]) == ([first], True)


@pytest.mark.parametrize(
    "changed",
    [("resources.device=cuda", "resources.gpus=1"), ("trainer.micro_batch_tokens=512",), ("resources.threads=2",)],
)
def test_a_run_that_goes_on_with_other_resources_keeps_those_it_was_begun_with(checkout, tmp_path, changed):
    def prepared(*overrides):
        found = entry(tmp_path / "home", planned(compose_run("tepo", "nano", ("trainer.steps=4", *overrides), seed=3)))
        prepare_folder(found)
        return found.folder

    folder = prepared()
    first = RunHistory.read(folder).run["provenance"]
    begun = {"device": "cpu", "gpus": 0, "learners": 1, "threads": 1, "micro_batch_tokens": 2500}
    assert first["resources"] == begun
    # With nothing made yet, the run was made with the later ones alone.
    assert "earlier_provenance" not in RunHistory.read(prepared(*changed)).run
    prepared()
    folder.checkpoint(2).mkdir(parents=True)
    run = RunHistory.read(prepared(*changed)).run
    assert run["earlier_provenance"] == [first]
    assert run["provenance"]["resources"] != begun
    assert RunHistory.read(prepared(*changed)).run["earlier_provenance"] == [first]


def test_a_run_whose_files_lie_elsewhere_now_goes_on_as_it_was(checkout, tmp_path, monkeypatch):
    home = tmp_path / "home"
    for folder, content in (("before", "1"), ("after", "1"), ("other", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.jsonl").write_text(f'{{"problem": "{content}", "answer": "1"}}\n')
    data = ("data=gsm8k", "data.path=own.jsonl")
    made = []
    for folder in ("before", "after", "other"):
        monkeypatch.chdir(tmp_path / folder)
        found = entry(home, planned(compose_run("tepo", "nano", data, seed=3)))
        prepare_folder(found)
        found.folder.checkpoint(2).mkdir(parents=True, exist_ok=True)
        made.append(RunHistory.read(found.folder).run)
    assert made[0]["provenance"]["data"]["training"]["path"] == str(tmp_path / "before" / "own.jsonl")
    assert "earlier_provenance" not in made[1]
    assert len(made[2]["earlier_provenance"]) == 1


@pytest.mark.parametrize(("name", "is_dirty"), [("tepo_lab/new.py", True), ("sweeps/own.yaml", True), ("b.txt", False)])
def test_a_new_file_among_the_sources_makes_the_tree_a_changed_one(checkout, tmp_path, spec, name, is_dirty):
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text("new\n")
    found = provenance(tmp_path / "home", spec)
    assert (found["dirty"], found["untracked"]["count"]) == (is_dirty, 1)
    assert "diff" not in found


def test_versions_count_where_both_tell_of_them():
    then = {"commit": "a", "versions": {"torch": "2.1", "ray": "2.4"}, "hardware": {"cpus": 2}}
    more = {"commit": "a", "versions": {"torch": "2.1", "ray": "2.4", "sympy": "1.13"}, "hardware": {"cpus": 2}}
    newer = {**then, "versions": {"torch": "2.2", "ray": "2.4"}}
    changed = {**then, "diff": "b"}
    found = {name: is_other(then, each, inputs=False) for name, each in (("same", then), ("more", more))}
    assert found == {"same": False, "more": False}
    assert all(is_other(then, each, inputs=False) for each in (newer, changed))


def hub_provenance(model=None, **training):
    """A provenance of a model and training data of the hub."""
    data = {"hub": "some/problems", "revision": None, **training}
    return {"model": {"path": "some/model", "revision": None, **(model or {})}, "data": {"training": data}}


def test_a_run_that_goes_on_keeps_the_commits_it_was_made_from():
    then = hub_provenance({"commit": "old"}, commit="old")
    now = going_on(hub_provenance({"commit": "new"}, commit="new"), then)
    assert now == then
    # The hub was not asked, or the earlier run did not tell: each keeps what is known.
    assert going_on(hub_provenance(), then) == then
    assert going_on(hub_provenance({"commit": "new"}), hub_provenance()) == hub_provenance({"commit": "new"})
    # Another data set has commits of its own.
    other = hub_provenance(hub="other/problems", commit="new")
    assert going_on(other, then)["data"]["training"]["commit"] == "new"


def test_another_commit_is_another_input_and_one_that_is_not_known_is_not():
    assert is_other(hub_provenance({"commit": "a"}), hub_provenance({"commit": "b"}), inputs=True)
    assert not is_other(hub_provenance({"commit": "a"}), hub_provenance({"commit": "b"}), inputs=False)
    assert not is_other(hub_provenance(), hub_provenance({"commit": "b"}), inputs=True)
    assert is_other(hub_provenance(sha256={"a": "1"}), hub_provenance(sha256={"a": "1", "b": "2"}), inputs=True)


def test_files_too_large_to_be_read_are_known_by_samples_of_them(tmp_path, monkeypatch, spec):
    monkeypatch.setattr(module, "MAX_HASHED_BYTES", 1000)
    monkeypatch.setattr(module, "BLOCK_BYTES", 4)
    monkeypatch.setattr(module, "SAMPLED_BLOCKS", 5)
    problems = tmp_path / "problems.jsonl"
    own = spec.model_copy(update={"data": DatasetData(kind="dataset", path=str(problems))})

    def identity(content):
        problems.unlink(missing_ok=True)
        problems.write_bytes(content)
        module._sampled_sha256.cache_clear()
        return data_identity(own)["training"]

    content = bytes(range(256)) * 8
    first = identity(content)
    assert first["sha256"] == {"problems.jsonl": None}
    # Blocks begin at 0, 511, 1022, 1533 and 2044 of 2048 bytes.
    seen = b"".join(content[place : place + 4] for place in (0, 511, 1022, 1533, 2044))
    assert first["sampled_sha256"] == {"problems.jsonl": hashlib.sha256(b"2048\n" + seen).hexdigest()}
    assert identity(content[:-1] + b"x") != first
    assert identity(content + b"x") != first
    older = {"data": {"training": {"path": first["path"], "sha256": first["sha256"]}}}
    assert changed_inputs(older, own) == []
    assert changed_inputs({"data": {"training": first}}, own) == ["training data"]
