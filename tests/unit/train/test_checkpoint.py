"""A save that fails takes no room; nor does what an earlier one left. What cannot be read just now is not damaged."""

from __future__ import annotations

import errno

import pytest
import torch

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder
from tepo_lab.train import checkpoint
from tepo_lab.train.checkpoint import Position


class Parts:
    """A model and a tokenizer that write one file, or find the disk full after it."""

    def __init__(self, folder, *, full=False):
        self.folder, self.full = folder, full

    def save_pretrained(self, path):
        self.found = sorted(each.name for each in self.folder.checkpoints.iterdir())
        (path / "weights").write_text("weights")
        if self.full:
            raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")


def save(folder, step, parts, **settings):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    return checkpoint.save(folder, Position(step, step), parts, Parts(folder), optimizer, **settings)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def test_a_save_that_fails_leaves_the_checkpoints_as_they_were(folder):
    save(folder, 1, Parts(folder))
    with pytest.raises(RuntimeError, match="failed writing"):
        save(folder, 2, Parts(folder, full=True))
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000001"]
    found = checkpoint.newest(folder, 99)
    assert found is not None
    assert found[1] == Position(1, 1)


def test_what_a_killed_save_left_makes_room_before_the_next_writes(folder):
    leftover = folder.checkpoints / ".step-000001.123.partial"
    leftover.mkdir(parents=True)
    model = Parts(folder)
    save(folder, 2, model)
    assert leftover.name not in model.found
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000002"]


def test_one_who_may_not_write_any_more_removes_what_is_its_own_alone(folder):
    save(folder, 1, Parts(folder))
    other = folder.checkpoints / ".step-000002.0123abcd.7.partial"
    asked = []

    def guard():
        asked.append(sorted(path.name for path in folder.checkpoints.iterdir()))
        if len(asked) == 2:
            # Another has taken the run over meanwhile, and saves the same step.
            other.mkdir()
            raise RecordError("taken over")

    with pytest.raises(RecordError, match="taken over"):
        save(folder, 2, Parts(folder), guard=guard)
    assert asked[0] == ["step-000001"]
    assert len(asked[1]) == 2
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == [other.name, "step-000001"]


@pytest.mark.parametrize(
    ("number", "is_damaged"),
    [(errno.ENOENT, True), (errno.EIO, True)]
    + [(number, False) for number in (errno.EMFILE, errno.ENOMEM, errno.ESTALE, errno.EACCES)],
)
def test_only_what_is_lost_is_passed_over_and_not_what_cannot_be_read_just_now(folder, monkeypatch, number, is_damaged):
    for step in (1, 2):
        save(folder, step, Parts(folder))
    digest = checkpoint.file_sha256

    def read(path):
        if folder.checkpoint(2) in path.parents:
            raise OSError(number, "said by the system", str(path))
        return digest(path)

    monkeypatch.setattr(checkpoint, "file_sha256", read)
    if is_damaged:
        found = checkpoint.newest(folder, 99)
        assert found is not None
        assert found[1] == Position(1, 1)
    else:
        with pytest.raises(OSError, match="said by the system"):
            checkpoint.newest(folder, 99)


@pytest.mark.parametrize("content", ["[]", '{"step": 2', '{"step": 2, "data": 0, "sha256": []}', '{"sha256": {}}'])
def test_a_checkpoint_with_a_broken_manifest_is_damaged(folder, content):
    (save(folder, 2, Parts(folder)) / checkpoint.MANIFEST).write_text(content)
    assert checkpoint.newest(folder, 99) is None


def test_later_checkpoints_are_removed_whatever_is_left_of_them(folder):
    for step in (1, 2):
        save(folder, step, Parts(folder))
    folder.checkpoint(3).write_text("a file in its place")
    checkpoint.remove_after(folder, 1)
    assert folder.checkpoint_steps() == [1]
