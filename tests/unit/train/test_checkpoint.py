"""Checkpoints: complete or absent, verified, of safe formats; a save that fails or is killed leaves nothing."""

from __future__ import annotations

import errno
import json

import pytest
import torch
from safetensors.torch import load_file

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder
from tepo_lab.train import checkpoint
from tepo_lab.train.checkpoint import Position
from tepo_lab.train.training_state import load_training_state, save_training_state


class Model(torch.nn.Linear):
    """Writes one file, or finds the disk full after it."""

    def __init__(self, folder, *, full=False):
        super().__init__(2, 3)
        self.folder, self.full = folder, full

    def save_pretrained(self, path):
        self.seen = sorted(each.name for each in self.folder.checkpoints.iterdir())
        (path / "weights").write_text("weights")
        if self.full:
            raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")


def save(folder, step, model, **settings):
    optimizer = torch.optim.AdamW(model.parameters())
    return checkpoint.save(folder, Position(step, 2 * step), model, Model(folder), optimizer, **settings)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def names(folder):
    return sorted(path.name for path in folder.checkpoints.iterdir())


def test_a_checkpoint_is_verified_and_its_position_read(folder):
    save(folder, 1, Model(folder))
    path = save(folder, 2, Model(folder))
    assert checkpoint.newest(folder, 9) == (path, Position(2, 4))
    (path / "model" / "weights").write_text("weightz")
    assert checkpoint.newest(folder, 9) == (folder.checkpoint(1), Position(1, 2))


def test_a_save_that_fails_leaves_the_checkpoints_as_they_were(folder):
    save(folder, 1, Model(folder))
    with pytest.raises(RuntimeError, match="failed writing"):
        save(folder, 2, Model(folder, full=True))
    assert names(folder) == ["step-000001"]


def test_leftovers_of_a_killed_save_are_removed_before_the_next_writes(folder):
    leftover = folder.checkpoints / ".step-000001.123.partial"
    leftover.mkdir(parents=True)
    model = Model(folder)
    save(folder, 2, model)
    assert leftover.name not in model.seen
    assert names(folder) == ["step-000002"]


def test_a_process_that_no_longer_owns_the_run_removes_only_its_own_folder(folder):
    save(folder, 1, Model(folder))
    other = folder.checkpoints / ".step-000002.0123abcd.7.partial"
    seen = []

    def guard():
        seen.append(names(folder))
        if len(seen) == 2:
            # Another process has taken the run over meanwhile, and saves the same step.
            other.mkdir()
            raise RecordError("taken over")

    with pytest.raises(RecordError, match="taken over"):
        save(folder, 2, Model(folder), guard=guard)
    assert seen[0] == ["step-000001"]
    assert len(seen[1]) == 2
    assert names(folder) == [other.name, "step-000001"]


@pytest.mark.parametrize(
    ("number", "is_damaged"), [(errno.ENOENT, True)] + [(each, False) for each in (errno.EMFILE, errno.ESTALE)]
)
def test_a_missing_file_is_damage_and_one_that_cannot_be_opened_now_is_not(folder, monkeypatch, number, is_damaged):
    for step in (1, 2):
        save(folder, step, Model(folder))
    digest = checkpoint.file_sha256

    def read(path):
        if folder.checkpoint(2) in path.parents:
            raise OSError(number, "of the system", str(path))
        return digest(path)

    monkeypatch.setattr(checkpoint, "file_sha256", read)
    if is_damaged:
        assert checkpoint.newest(folder, 9) == (folder.checkpoint(1), Position(1, 2))
    else:
        with pytest.raises(OSError, match="of the system"):
            checkpoint.newest(folder, 9)


@pytest.mark.parametrize("content", ["[]", '{"step": 2', '{"step": 2, "data": 0, "sha256": []}', '{"sha256": {}}'])
def test_a_checkpoint_with_a_damaged_manifest_is_skipped(folder, content):
    (save(folder, 2, Model(folder)) / checkpoint.MANIFEST).write_text(content)
    assert checkpoint.newest(folder, 9) is None


def test_older_and_later_checkpoints_are_removed(folder):
    for step in (1, 2, 3, 4):
        save(folder, step, Model(folder))
    checkpoint.prune(folder, 3)
    checkpoint.remove_after(folder, 3)
    assert folder.checkpoint_steps() == [2, 3]


def trained(folder, seed):
    """A model and its optimizer after two updates."""
    torch.manual_seed(seed)
    model = Model(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for _ in range(2):
        model(torch.randn(4, 2)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def test_the_training_state_is_restored_bit_for_bit_from_safetensors(folder, tmp_path):
    model, optimizer = trained(folder, 0)
    save_training_state(tmp_path, model, optimizer)
    drawn = torch.rand(3)
    assert [path.name for path in tmp_path.iterdir()] == ["training-00000.safetensors"]
    other, restored = trained(folder, 1)
    load_training_state(tmp_path, other, restored)
    assert torch.equal(torch.rand(3), drawn)
    for weight, own in zip(model.parameters(), other.parameters(), strict=True):
        expected, state = optimizer.state[weight], restored.state[own]
        assert {key: torch.equal(value, state[key]) for key, value in expected.items()} == dict.fromkeys(state, True)


def test_the_pickled_state_of_release_0_1_0_is_still_read(folder, tmp_path):
    model, optimizer = trained(folder, 0)
    state = {"torch_rng": torch.get_rng_state(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "training.pt")
    other, restored = trained(folder, 1)
    load_training_state(tmp_path, other, restored)
    assert torch.equal(torch.get_rng_state(), state["torch_rng"])
    own = restored.state[other.weight]
    assert all(torch.equal(own[key], value) for key, value in optimizer.state[model.weight].items())
    torch.save({"torch_rng": state["torch_rng"]}, tmp_path / "training.pt")
    with pytest.raises(RecordError, match="by several learners"):
        load_training_state(tmp_path, other, restored)


def test_the_state_of_another_model_is_refused(folder, tmp_path):
    save_training_state(tmp_path, *trained(folder, 0))
    wider = torch.nn.Linear(5, 3)
    with pytest.raises(RecordError, match=r"exp_avg/weight has shape \[3, 2\], expected \[3, 5\]"):
        load_training_state(tmp_path, wider, torch.optim.AdamW(wider.parameters()))


def test_of_several_ranks_each_writes_its_rows_and_one_reads_them_all(folder, tmp_path):
    from safetensors.torch import save_file

    model, optimizer = trained(folder, 0)
    save_training_state(tmp_path, model, optimizer)
    whole = load_file(tmp_path / "training-00000.safetensors")
    # Of 3 rows two ranks have 2 and 1; a third and a fourth of four have 1 and none.
    for rank, (first, last) in enumerate([(0, 1), (1, 2), (2, 3), (3, 3)]):
        part = {key: value if key.startswith(("step", "torch")) else value[first:last] for key, value in whole.items()}
        save_file(part, tmp_path / f"training-{rank:05d}.safetensors")
    other, restored = trained(folder, 1)
    load_training_state(tmp_path, other, restored)
    for weight, own in zip(model.parameters(), other.parameters(), strict=True):
        assert all(torch.equal(value, restored.state[own][key]) for key, value in optimizer.state[weight].items())


def test_a_manifest_names_every_file(folder):
    path = save(folder, 1, Model(folder))
    named = json.loads((path / checkpoint.MANIFEST).read_text())["sha256"]
    assert sorted(named) == ["model/weights", "training-00000.safetensors"]
