"""A session's scratch folder belongs to it as long as it lives."""

from __future__ import annotations

import os
import time

import pytest

from tepo_lab.execute.running.scratch import STALE_SECONDS, is_left_over, scratch_folder


def test_a_folder_is_in_use_until_its_session_ends(tmp_path):
    with scratch_folder(tmp_path, "panel-e") as folder, scratch_folder(tmp_path, "panel-e") as other:
        assert folder != other
        assert (folder.parent, is_left_over(folder)) == (tmp_path / "ray", False)
        dead = folder.with_name(f"{folder.name[:-8]}00000000")
        dead.mkdir()
        (dead / "session.lock").touch()
        assert is_left_over(dead)
    assert list((tmp_path / "ray").iterdir()) == [dead]


@pytest.mark.parametrize("name", ["panel-e-elsewhere-01234567", "panel-e"])
def test_a_folder_whose_lock_cannot_be_seen_is_left_over_when_it_is_old(name, tmp_path):
    folder = tmp_path / "ray" / name
    folder.mkdir(parents=True)
    assert not is_left_over(folder)
    old = time.time() - STALE_SECONDS - 1
    os.utime(folder, (old, old))
    assert is_left_over(folder)


def test_a_link_is_not_followed_to_a_lock(tmp_path):
    with scratch_folder(tmp_path, "panel-e") as folder:
        link = folder.with_name(f"{folder.name[:-8]}00000000")
        link.symlink_to(folder)
        assert not is_left_over(link)
        os.utime(link, (0, 0), follow_symlinks=False)
