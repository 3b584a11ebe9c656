"""A save that fails takes no room; nor does what an earlier one left."""

from __future__ import annotations

import pytest
import torch

from tepo_lab.schema.record import RunFolder
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


def save(folder, step, parts):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    return checkpoint.save(folder, Position(step, step), parts, Parts(folder), optimizer)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def test_a_save_that_fails_leaves_the_checkpoints_as_they_were(folder):
    save(folder, 1, Parts(folder))
    with pytest.raises(RuntimeError, match="failed writing"):
        save(folder, 2, Parts(folder, full=True))
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000001"]
    found = checkpoint.newest(folder)
    assert found is not None
    assert found[1] == Position(1, 1)


def test_what_a_killed_save_left_makes_room_before_the_next_writes(folder):
    leftover = folder.checkpoints / ".step-000001.123.partial"
    leftover.mkdir(parents=True)
    model = Parts(folder)
    save(folder, 2, model)
    assert leftover.name not in model.found
    assert [path.name for path in folder.checkpoints.iterdir()] == ["step-000002"]
