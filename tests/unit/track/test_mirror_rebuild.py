"""The mirror made again from the records, whole or caught up."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import START, Lab

from tepo_lab.errors import RecordError
from tepo_lab.track.mirror import rebuild
from tepo_lab.track.state import run_state
from tepo_lab.track.store import open_client, own_address


def without_ids(shown: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {key: each[key] for key in each if key not in {"id", "parent"}} for name, each in shown.items()}


def a_sweep_with_a_history(lab: Lab) -> None:
    folders = [lab.run("tepo"), lab.run("gspo"), lab.run("grpo_dapo")]
    lab.sweep("panel-e", folders)
    mirror = lab.mirror()
    mirror.prepare()
    for step in (1, 2, 3):
        for folder in folders:
            lab.step(folder, step)
        mirror.update(folders)
    lab.cut_back(folders[0], 2)
    lab.event(folders[0], "resumed", 2)
    lab.step(folders[0], 3, attempt=1)
    lab.evaluated(folders[0], 3)
    lab.event(folders[0], "complete", 3)
    lab.event(folders[1], "collapsed", 3, rule="reward/mean < 0.02")
    mirror.update(folders)
    for name, content in (("table.md", "| table |"), ("table.json", '{\n "rows": []\n}\n')):
        (lab.home / "sweeps/panel-e" / name).write_text(content)
    mirror.log_table("| table |", {"rows": []})
    mirror.finish()


def test_a_rebuilt_mirror_equals_the_live_one(lab: Lab) -> None:
    a_sweep_with_a_history(lab)
    live = lab.shown()
    assert {each["status"] for each in live.values()} == {"FINISHED", "KILLED"}
    (lab.home / "mlflow.db").unlink()
    shutil.rmtree(lab.home / "mlartifacts")
    assert rebuild(lab.home) == 3
    rebuilt = lab.shown()
    again = lab.shown()
    # A sweep ends no earlier than it was begun; only the live one was begun after these records' times.
    assert live[""].pop("ended") > rebuilt[""].pop("ended") == int((START + 35) * 1000)
    assert without_ids(rebuilt) == without_ids(live)
    assert rebuild(lab.home) == 3
    assert lab.shown() == again


@pytest.mark.parametrize("name", ["table.md", "table.json", "page.html"])
def test_a_damaged_table_alone_is_left_out(lab: Lab, name: str) -> None:
    a_sweep_with_a_history(lab)
    (lab.home / "mlflow.db").unlink()
    (lab.home / "sweeps/panel-e" / name).write_bytes(b"\xff{")
    told: list[str] = []
    assert rebuild(lab.home, on_problem=told.append) == 3
    assert "table.md" not in lab.shown()[""]["artifacts"]
    assert len(told) == 1
    assert told[0].startswith("MLflow does not show the table of sweep panel-e: ")
    assert f"{name} is damaged" in told[0]


def test_rebuilding_mends_what_others_changed(lab: Lab) -> None:
    a_sweep_with_a_history(lab)
    right = lab.shown()
    client = open_client(lab.home, own_address(lab.home))
    tepo, gone = (name for name in right if name.startswith(("tepo", "gspo")))
    client.log_metric(right[tepo]["id"], "reward/mean", 99.0, step=2)
    shutil.rmtree(lab.home / "runs" / gone)
    rebuild(lab.home)
    mended = lab.shown()
    assert mended.keys() == right.keys() - {gone}
    assert mended[tepo]["values"] == right[tepo]["values"]


def test_rebuilding_without_sweeps_makes_nothing(tmp_path: Path) -> None:
    assert rebuild(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["{}", "[]", '{"id": "', '{"id": "x", "family": "f", "spec": {"seed": 1}}'])
def test_a_damaged_record_is_named_and_all_others_are_mirrored_again(lab: Lab, content: str) -> None:
    bad, good, other = lab.run("tepo"), lab.run("gspo"), lab.run("grpo_dapo")
    lab.sweep("panel-a", [bad])
    lab.sweep("panel-e", [bad, good, other])
    (lab.home / "sweeps" / "mine").mkdir()
    (lab.home / "sweeps" / "mine" / "sweep.json").write_text('{"runs": ["../../x"]}')
    bad.run_file.write_text(content)
    lab.step(other, 1)
    with other.metrics_file.open("a") as stream:
        stream.write('{"step": 2, "rew')
    with pytest.raises(RecordError, match=r"sweep\.json is damaged"):
        rebuild(lab.home)
    assert rebuild(lab.home, on_problem=lab.problems.append) == 2
    assert lab.shown("panel-e").keys() == {"", good.name, other.name}
    assert [("sweep.json is damaged" in each, "run.json is damaged" in each) for each in lab.problems] == [
        (True, False),
        (False, True),
        (False, True),
    ]


def test_catching_up_mends_what_the_records_say_and_trusts_what_was_done(lab: Lab) -> None:
    done, going_on = lab.run("tepo"), lab.run("gspo")
    lab.step(done, 1)
    lab.event(done, "complete", 1)
    lab.sweep("panel-e", [done, going_on])
    rebuild(lab.home, verify=False)
    client = open_client(lab.home, own_address(lab.home))
    client.log_metric(lab.shown()[done.name]["id"], "reward/mean", 9.0, step=7)
    lab.step(going_on, 1)
    assert rebuild(lab.home, verify=False) == 2
    assert lab.shown()[going_on.name]["values"] == run_state(going_on, "panel-e").values
    assert ("reward/mean", 7) in lab.shown()[done.name]["values"]
    assert rebuild(lab.home) == 2
    assert lab.shown()[done.name]["values"] == run_state(done, "panel-e").values
