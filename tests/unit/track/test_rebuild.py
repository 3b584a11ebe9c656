"""The mirror of a home brought up to date, and made again from the records."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_mlflow import FakeMlflow
from filelock import FileLock
from mlflow.entities import Metric

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder
from tepo_lab.track import rebuild as module
from tepo_lab.track.rebuild import NO_SWEEP, mirror_home
from tests.mlflow_runs import complete, recorded_values, start_run, write_steps, write_sweep

pytestmark = pytest.mark.usefixtures("mlflow")


@pytest.fixture
def runs(tmp_path: Path) -> list[RunFolder]:
    """Runs of a home, of which the last is in no sweep, and the one before it is in the sweep no more."""
    folders = [start_run(tmp_path, arm) for arm in ("tepo", "gspo", "grpo", "dapo")]
    for folder in folders:
        write_steps(folder, range(1, 3))
    complete(folders[0], 2)
    complete(folders[1], 2)
    write_sweep(tmp_path, folders[:2], earlier=(folders[2].name, "removed-nano-s1-01234567"))
    (tmp_path / "sweeps/panel-e/table.md").write_text("| a |")
    return folders


@pytest.mark.parametrize("rebuild", [False, True])
def test_every_run_of_the_home_is_shown(
    tmp_path: Path, mlflow: FakeMlflow, runs: list[RunFolder], rebuild: bool
) -> None:
    problems: list[str] = []
    for _ in range(2):
        assert mirror_home(tmp_path, None, problems.append, rebuild=rebuild) == 4
        shown = mlflow.shown()
        assert shown.keys() == {"panel-e", *(folder.name for folder in runs[:3])}
        assert {name: run["values"] for name, run in shown.items() if name != "panel-e"} == {
            folder.name: recorded_values(folder) for folder in runs[:3]
        }
        # The earlier run, which was killed, does not count for the sweep's status.
        assert (shown[runs[2].name]["status"], shown["panel-e"]["status"]) == ("KILLED", "FINISHED")
        assert shown["panel-e"]["artifacts"]["table.md"] == "| a |"
        assert mlflow.shown(NO_SWEEP)[runs[3].name]["values"] == recorded_values(runs[3])
    assert len({run.info.run_id for run in mlflow.runs}) == (12 if rebuild else 6)
    assert problems == []


def test_rebuilding_replaces_what_others_changed_and_catching_up_trusts_it(
    tmp_path: Path, mlflow: FakeMlflow, runs: list[RunFolder]
) -> None:
    mirror_home(tmp_path, None, print)
    (run,) = (run for run in mlflow.runs if run.info.run_name == runs[0].name)
    mlflow.log_batch(run.info.run_id, metrics=[Metric("reward/mean", 9.0, 0, 7)])
    shutil.rmtree(runs[1].path)
    assert mirror_home(tmp_path, None, print) == 3
    assert mlflow.shown().keys() == {"panel-e", runs[0].name, runs[2].name}
    assert ("reward/mean", 7) in mlflow.shown()[runs[0].name]["values"]
    assert mirror_home(tmp_path, None, print, rebuild=True) == 3
    assert mlflow.shown()[runs[0].name]["values"] == recorded_values(runs[0])


@pytest.mark.parametrize("content", ["{", "[]", '{"runs": ["../../x"]}', '{"runs": [], "earlier_runs": 1}'])
def test_a_damaged_record_is_named_and_all_others_are_shown(
    tmp_path: Path, mlflow: FakeMlflow, runs: list[RunFolder], content: str
) -> None:
    (tmp_path / "sweeps/mine").mkdir()
    (tmp_path / "sweeps/mine/sweep.json").write_text(content)
    runs[1].run_file.write_text("{}")
    problems: list[str] = []
    assert mirror_home(tmp_path, None, problems.append) == 3
    assert [
        str(path) in problem
        for path, problem in zip((tmp_path / "sweeps/mine/sweep.json", runs[1].run_file), problems, strict=True)
    ] == [True, True]
    assert mlflow.shown().keys() == {"panel-e", runs[0].name, runs[2].name}


def test_a_server_that_is_down_is_an_error_without_its_secrets(
    tmp_path: Path, mlflow: FakeMlflow, runs: list[RunFolder]
) -> None:
    mlflow.is_down, mlflow.error = True, "no answer from postgresql://me:secret@db/lab"
    with pytest.raises(RecordError, match="http://tracker") as caught:
        mirror_home(tmp_path, "http://me:secret@tracker", print)
    assert "secret" not in str(caught.value)


def test_another_writer_is_an_error(
    tmp_path: Path, mlflow: FakeMlflow, runs: list[RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "one_writer", lambda home, wait_seconds: FileLock(home / "mlflow.lock", timeout=0.01))
    with FileLock(tmp_path / "mlflow.lock"), pytest.raises(RecordError, match="Another process"):
        mirror_home(tmp_path, None, print)


def test_an_empty_home_stays_empty(tmp_path: Path) -> None:
    assert mirror_home(tmp_path, None, print) == 0
    assert list(tmp_path.iterdir()) == []
