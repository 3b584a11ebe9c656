from __future__ import annotations

import json
import shutil
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from synthetic_runs import START, Lab

from tepo_lab.errors import RecordError
from tepo_lab.track.mirror import Mirror, rebuild
from tepo_lab.track.state import run_state
from tepo_lab.track.store import open_client, own_address


def test_a_fresh_home_gets_a_database_whose_artifacts_lie_in_the_home(tmp_path: Path, fresh_database: Path) -> None:
    assert [path.name for path in fresh_database.parent.iterdir()] == ["mlflow.db"]
    lab = Lab(tmp_path / "home")
    assert lab.mirror().prepare()
    experiment = open_client(lab.home, own_address(lab.home)).get_experiment_by_name("panel-e")
    assert experiment.artifact_location == str(lab.home / "mlartifacts")
    assert lab.shown()[""]["status"] == "RUNNING"
    assert sorted(path.name for path in lab.home.iterdir()) == [".mlflow.lock", "mlflow.db"]


def test_mlflow_shows_what_the_records_say(lab: Lab) -> None:
    folder = lab.run("tepo")
    lab.sweep("panel-e", [folder])
    for step in (1, 2, 3):
        lab.step(folder, step)
    lab.evaluated(folder, 3)
    lab.event(folder, "complete", 3)
    mirror = lab.mirror()
    mirror.prepare()
    assert mirror.update([folder])

    shown = lab.shown()
    child, parent, state = shown[folder.name], shown[""], run_state(folder, "panel-e")
    assert child["values"] == state.values
    assert child["values"]["reward/mean", 2] == (2 / 7, int((START + 20.125) * 1000))
    assert child["params"] == state.params
    assert state.tags.items() <= child["tags"].items()
    assert (child["status"], child["ended"], child["parent"]) == ("FINISHED", state.ended, parent["id"])
    assert json.loads(child["artifacts"]["run.json"]) == folder.run()
    assert parent["tags"]["title"] == "Title of panel-e"
    assert json.loads(parent["artifacts"]["sweep.json"])["runs"] == [folder.name]


def test_new_steps_are_logged_once_and_in_batches(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[int] = []
    log_batch = MlflowClient.log_batch

    def counted(self: MlflowClient, run_id: str, metrics: Any = (), **others: Any) -> None:
        logged.append(len(metrics))
        log_batch(self, run_id, metrics, **others)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    folder, mirror = lab.run("tepo"), lab.mirror()
    for step in range(1, 601):
        lab.step(folder, step)
    mirror.update([folder])
    assert [count for count in logged if count] == [1000, 200]

    logged.clear()
    lab.step(folder, 601)
    mirror.update([folder])
    mirror.update([folder])
    assert [count for count in logged if count] == [2]


def test_after_a_restart_only_the_rest_is_logged(lab: Lab) -> None:
    folder = lab.run("tepo")
    lab.step(folder, 1)
    lab.mirror().update([folder])
    before = lab.shown()[folder.name]["id"]

    lab.step(folder, 2)
    lab.event(folder, "complete", 2)
    lab.mirror().update([folder])
    lab.mirror().update([folder])
    child = lab.shown()[folder.name]
    assert child["id"] == before
    assert child["values"] == run_state(folder, "panel-e").values


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("seen_while_cut", [False, True])
def test_a_history_cut_back_and_run_again_replaces_the_old_one(lab: Lab, restarted: bool, seen_while_cut: bool) -> None:
    folder, mirror = lab.run("tepo"), lab.mirror()
    for step in (1, 2, 3):
        lab.step(folder, step)
    mirror.update([folder])
    lab.cut_back(folder, 1)
    if seen_while_cut:
        mirror.update([folder])
        assert {step for _, step in lab.shown()[folder.name]["values"]} == {1}
    lab.event(folder, "resumed", 1)
    for step in (2, 3, 4):
        lab.step(folder, step, attempt=1)
    (lab.mirror() if restarted else mirror).update([folder])

    values = lab.shown()[folder.name]["values"]
    assert values == run_state(folder, "panel-e").values
    assert values["seconds/step", 1][0] == 1.5
    assert values["seconds/step", 2][0] == 2.5


def test_a_write_that_stopped_half_way_is_completed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, now = lab.run("tepo"), [0.0]
    mirror = lab.mirror(clock=lambda: now[0])
    for step in range(1, 601):
        lab.step(folder, step)
    log_batch = MlflowClient.log_batch

    def breaks(self: MlflowClient, run_id: str, metrics: Any = (), **others: Any) -> None:
        if len(metrics) == 200:
            raise OSError("No space left on device")
        log_batch(self, run_id, metrics, **others)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", breaks)
        assert not mirror.update([folder])
    assert len(lab.shown()[folder.name]["values"]) == 1000
    now[0] = 1.5
    assert mirror.update([folder])
    assert lab.shown()[folder.name]["values"] == run_state(folder, "panel-e").values
    assert len(lab.problems) == 1
    assert "No space left on device" in lab.problems[0]


def test_an_extended_run_shows_its_new_steps_and_its_new_params(lab: Lab) -> None:
    folder = lab.run("tepo", steps=1)
    lab.step(folder, 1)
    lab.event(folder, "complete", 1)
    lab.mirror().update([folder])
    lab.extend(folder, 2)
    lab.event(folder, "resumed", 1)
    lab.step(folder, 2)
    lab.event(folder, "complete", 2)
    lab.mirror().update([folder])

    child = lab.shown()[folder.name]
    assert child["params"]["trainer.steps"] == "2"
    assert child["values"] == run_state(folder, "panel-e").values


def test_a_failed_run_that_goes_on_loses_its_failure(lab: Lab) -> None:
    folder, mirror = lab.run("tepo"), lab.mirror()
    lab.event(folder, "failed", 0, kind="machine", error="out of memory")
    mirror.update([folder])
    failed = lab.shown()[folder.name]
    assert failed["status"] == "FAILED"
    assert (failed["tags"]["failure"], failed["tags"]["error"]) == ("machine", "out of memory")

    lab.event(folder, "resumed", 0)
    mirror.update([folder])
    running = lab.shown()[folder.name]
    assert (running["id"], running["status"]) == (failed["id"], "RUNNING")
    assert not {"outcome", "failure", "error"} & running["tags"].keys()


def test_a_run_of_two_sweeps_is_shown_in_both(lab: Lab) -> None:
    folder = lab.run("tepo")
    lab.step(folder, 1)
    for sweep in ("panel-e", "table3"):
        lab.mirror(sweep).update([folder])
    panel, table = lab.shown("panel-e"), lab.shown("table3")
    assert panel[folder.name]["values"] == table[folder.name]["values"] == run_state(folder, "x").values
    assert (panel[folder.name]["tags"]["sweep"], table[folder.name]["tags"]["sweep"]) == ("panel-e", "table3")
    assert panel[folder.name]["parent"] != table[folder.name]["parent"]


def test_finish_keeps_the_table_and_ends_the_sweep(lab: Lab) -> None:
    done, killed = lab.run("tepo"), lab.run("gspo")
    lab.event(done, "complete", 3)
    mirror = lab.mirror()
    mirror.update([done, killed])
    assert lab.shown()[killed.name]["status"] == "RUNNING"
    assert mirror.log_table("| a |", {"rows": [1]})
    assert mirror.finish("interrupted")

    shown = lab.shown()
    assert {name: each["status"] for name, each in shown.items()} == {
        "": "KILLED",
        done.name: "FINISHED",
        killed.name: "KILLED",
    }
    assert shown[""]["artifacts"]["table.md"] == "| a |"
    assert json.loads(shown[""]["artifacts"]["table.json"]) == {"rows": [1]}

    lab.event(killed, "complete", 3)
    again = lab.mirror()
    again.update([done, killed])
    assert lab.shown()[""]["status"] == "RUNNING"
    again.finish()
    assert {each["status"] for each in lab.shown().values()} == {"FINISHED"}


def test_a_server_that_is_down_is_told_once_and_asked_again_after_growing_waits(lab: Lab) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder, now, problems = lab.run("tepo"), [0.0], list[str]()
    uri = f"http://someone:secret@127.0.0.1:{port}"
    mirror = Mirror(lab.home, uri, "panel-e", problems.append, clock=lambda: now[0])
    waits = []
    for _ in range(8):
        assert not mirror.update([folder])
        waits.append(mirror._not_before - now[0])
        now[0] = mirror._not_before
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert len(problems) == 1
    assert f"http://someone:***@127.0.0.1:{port}" in problems[0]
    assert "secret" not in problems[0]
    assert "\n" not in problems[0]


def test_a_database_deleted_meanwhile_is_made_again_with_everything(lab: Lab) -> None:
    done, running, mirror = lab.run("tepo"), lab.run("gspo"), lab.mirror()
    lab.step(done, 1)
    lab.event(done, "complete", 1)
    lab.step(running, 1)
    mirror.update([done, running])
    (lab.home / "mlflow.db").unlink()
    lab.step(running, 2)
    assert mirror.update([done, running])
    shown = lab.shown()
    assert shown[done.name]["values"] == run_state(done, "panel-e").values
    assert {step for _, step in shown[running.name]["values"]} == {1, 2}
    assert lab.problems == []


def test_runs_deleted_in_mlflow_are_shown_again(lab: Lab) -> None:
    folder, now = lab.run("tepo"), [0.0]
    mirror = lab.mirror(clock=lambda: now[0])
    lab.step(folder, 1)
    mirror.update([folder])
    open_client(lab.home, own_address(lab.home)).delete_run(lab.shown()[folder.name]["id"])
    lab.step(folder, 2)
    mirror.update([folder])
    now[0] = 2.0
    assert mirror.update([folder])
    assert {step for _, step in lab.shown()[folder.name]["values"]} == {1, 2}


def test_a_foreign_database_stops_nothing_and_is_left_alone(lab: Lab) -> None:
    (lab.home / "mlflow.db").write_bytes(b"not a database" * 100)
    folder, mirror = lab.run("tepo"), lab.mirror()
    assert not mirror.update([folder])
    assert not mirror.finish("complete")
    assert len(lab.problems) == 1
    assert "file is not a database" in lab.problems[0]
    lab.sweep("panel-e", [folder])
    with pytest.raises(RecordError, match="move it away"):
        rebuild(lab.home)
    assert (lab.home / "mlflow.db").read_bytes() == b"not a database" * 100


def test_another_programs_database_is_left_alone_too(lab: Lab) -> None:
    database = lab.home / "mlflow.db"
    with sqlite3.connect(database) as other:
        other.execute("CREATE TABLE experiments (title TEXT)")
    before = database.read_bytes()
    folder, mirror = lab.run("tepo"), lab.mirror()
    assert not mirror.update([folder])
    assert len(lab.problems) == 1
    assert "mlflow.db is another program's database: move it away" in lab.problems[0]
    lab.sweep("panel-e", [folder])
    with pytest.raises(RecordError, match="move it away"):
        rebuild(lab.home)
    assert database.read_bytes() == before
    assert not (lab.home / "mlartifacts").exists()


def test_a_moved_home_is_told_how_to_mend_its_mirror(lab: Lab) -> None:
    folder = lab.run("tepo")
    lab.mirror().update([folder])
    moved = Lab(lab.home.with_name("moved"))
    shutil.move(lab.home, moved.home)
    assert not moved.mirror().update([])
    assert "was made for another place" in moved.problems[0]
    assert "tepo-lab mirror --rebuild" in moved.problems[0]
    assert not lab.home.exists()


def test_a_damaged_record_hides_its_run_and_no_other(lab: Lab) -> None:
    good, bad, mirror = lab.run("tepo"), lab.run("gspo"), lab.mirror()
    bad.run_file.write_text("{")
    assert mirror.update([bad, good])
    assert mirror.update([bad, good])
    assert lab.shown().keys() == {"", good.name}
    assert len(lab.problems) == 1
    assert "run.json is damaged" in lab.problems[0]


def test_a_folder_without_a_run_yet_is_passed_over(lab: Lab) -> None:
    folder = lab.run("tepo")
    folder.run_file.unlink()
    assert lab.mirror().update([folder])
    assert lab.shown().keys() == {""}
    assert lab.problems == []


def test_two_homes_on_one_store_keep_their_runs_apart(
    make_lab: Callable[[str], Lab], fresh_database: Path, tmp_path: Path
) -> None:
    first, second = make_lab("first"), make_lab("second")
    folders = [lab.run("tepo") for lab in (first, second)]
    first.step(folders[0], 1)
    second.step(folders[1], 1, attempt=1)
    uri = f"sqlite:///{shutil.copy(fresh_database, tmp_path / 'shared.db')}"
    for _ in range(2):
        for lab, folder in zip((first, second), folders, strict=True):
            assert Mirror(lab.home, uri, "panel-e", lab.problems.append).update([folder])
    client = open_client(first.home, uri)
    runs = client.search_runs([client.get_experiment_by_name("panel-e").experiment_id])
    seconds = sorted(run.data.metrics["seconds/step"] for run in runs if run.info.run_name == folders[0].name)
    assert seconds == [1.5, 2.5]
