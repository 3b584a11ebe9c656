"""Records that cannot be opened: the run is damaged, no reader waits, and other runs are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tepo_lab.errors import RecordError
from tepo_lab.execute.showing.why import log_tail
from tepo_lab.records.files import RunFolder, is_inside, read_record, run_folders, tail
from tepo_lab.records.generations import read_generations
from tepo_lab.records.history import RunHistory, State, read_histories
from tepo_lab.records.lock import is_locked
from tests.unit.records.test_history import END, EVALUATED, NAME, START, make

#: What may be in a file's place. A pipe without a writer would be waited for.
INSTEAD: dict[str, Callable[[Path], None]] = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "loop": lambda path: path.symlink_to(path.name),
}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A complete run, beside another one."""
    other = make(tmp_path, [START, EVALUATED, END])
    other.path.rename(tmp_path / "runs" / "tepo-nano-s1-0123abcd.copy")
    return make(tmp_path, [START, EVALUATED, END])


@pytest.mark.parametrize("kind", INSTEAD)
@pytest.mark.parametrize("name", ["run.json", "events.jsonl"])
def test_a_record_that_is_no_file_damages_its_run_alone(folder: RunFolder, name: str, kind: str) -> None:
    path = folder.path / name
    path.unlink()
    INSTEAD[kind](path)
    states = {history.name: (history.state, history.damage) for history in read_histories(folder.home)}
    assert states.pop(NAME)[0] is State.DAMAGED
    assert str(path) in (RunHistory.read(folder).damage or "")
    assert [state for state, _ in states.values()] == [State.COMPLETE]


@pytest.mark.parametrize("kind", INSTEAD)
def test_other_files_that_are_none_are_no_reason_to_wait(folder: RunFolder, kind: str) -> None:
    folder.metrics_file.touch()
    for path in (folder.metrics_file, folder.log_file, folder.lease_file, folder.generations(4)):
        path.unlink(missing_ok=True)
        INSTEAD[kind](path)
    history = RunHistory.read(folder)
    assert (history.state, history.complete_evaluations) == (State.INTERRUPTED, ())
    assert (tail(folder.metrics_file), log_tail(folder), is_locked(folder)) == ([], [], False)
    with pytest.raises(RecordError, match=r"metrics\.jsonl"):
        history.metrics()
    with pytest.raises(RecordError, match=r"step-000004\.parquet"):
        read_generations(folder.generations(4))


@pytest.mark.parametrize("kind", ["pipe", "loop"])
def test_a_run_folder_that_is_none_is_damaged(folder: RunFolder, kind: str) -> None:
    folder.path.rename(folder.home / "moved")
    INSTEAD[kind](folder.path)
    assert RunHistory.read(folder).state is State.DAMAGED


def test_a_record_of_another_user_damages_its_run(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(RecordError, match=r"run\.json cannot be read \(Permission denied\)"):
        read_record(folder.run_file)
    assert RunHistory.read(folder).state is State.DAMAGED
    assert len(run_folders(folder.home)) == 2


def test_runs_behind_a_link_to_another_disk_are_in_the_home(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "runs").rename(tmp_path / "disk")
    home = tmp_path / "home"
    home.mkdir()
    (home / "runs").symlink_to(tmp_path / "disk")
    (home / "elsewhere").symlink_to(tmp_path)
    assert is_inside(home / "runs" / NAME / "run.json", home)
    assert not is_inside(home / "elsewhere" / "x", home)
