from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from synthetic_runs import Lab

from tepo_lab.errors import ConfigError
from tepo_lab.track.state import run_state
from tepo_lab.track.thread import MirrorThread


def test_the_thread_shows_everything_by_the_time_it_stops(lab: Lab) -> None:
    folder, asked = lab.run("tepo"), threading.Event()

    def folders() -> list[object]:
        asked.set()
        return [folder]

    thread = MirrorThread(lab.home, None, "panel-e", folders, lab.problems.append, every_seconds=0.02)
    thread.start()
    lab.step(folder, 1)
    assert asked.wait(30)
    lab.step(folder, 2)
    lab.event(folder, "complete", 2)
    thread.log_table("| t |", {"t": 1})
    assert thread.stop("complete")
    shown = lab.shown()
    assert shown[folder.name]["values"] == run_state(folder, "panel-e").values
    assert shown[""]["artifacts"]["table.md"] == "| t |"
    assert {each["status"] for each in shown.values()} == {"FINISHED"}
    assert lab.problems == []


def test_mlflow_waits_until_a_run_has_come_further_than_its_beginning(lab: Lab) -> None:
    folder, looked, shown_at = lab.run("tepo"), threading.Semaphore(0), list[bool]()

    def folders() -> list[object]:
        shown_at.append((lab.home / "mlflow.db").exists())
        looked.release()
        return [folder]

    thread = MirrorThread(lab.home, None, "panel-e", folders, lab.problems.append, every_seconds=0.01)
    thread.start()
    assert all(looked.acquire(timeout=30) for _ in range(3))
    assert shown_at == [False] * len(shown_at)
    lab.step(folder, 1)
    assert thread.stop("complete")
    assert lab.shown()[folder.name]["values"]


def test_a_sweep_ends_without_its_mirror_when_mlflow_cannot_be_written(lab: Lab) -> None:
    (lab.home / "mlflow.db").write_bytes(b"not a database" * 100)
    thread = MirrorThread(lab.home, None, "panel-e", list, lab.problems.append, every_seconds=0.02)
    thread.start()
    assert not thread.stop("complete", timeout_seconds=0.5)
    assert "behind the records" in lab.problems[-1]
    assert "tepo-lab mirror --rebuild" in lab.problems[-1]


def test_a_wrong_address_is_refused_before_anything_starts(lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"'\./mlruns' cannot be used"):
        MirrorThread(lab.home, "./mlruns", "panel-e", list, lab.problems.append)


def test_the_package_is_light_and_switches_telemetry_off() -> None:
    code = (
        "import os, sys, tepo_lab.track.thread, tepo_lab.track.ui, tepo_lab.track.address\n"
        "print('mlflow' in sys.modules, os.environ['MLFLOW_DISABLE_TELEMETRY'], os.environ['DO_NOT_TRACK'])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "true", "true"]
