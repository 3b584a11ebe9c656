from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_mlflow import FakeMlflow

from tepo_lab.errors import ConfigError
from tepo_lab.records.files import RunFolder
from tepo_lab.track import thread as module
from tepo_lab.track.thread import MirrorThread
from tests.mlflow_runs import complete, recorded_values, start_run, write_steps


def test_nothing_is_sent_before_a_run_has_results_and_everything_by_the_time_it_stops(
    tmp_path: Path, mlflow: FakeMlflow
) -> None:
    folder, looked, problems, sent = start_run(tmp_path), threading.Semaphore(0), list[str](), list[int]()

    class Folders(list[RunFolder]):
        def __iter__(self) -> Iterator[RunFolder]:
            sent.append(mlflow.calls.total())
            looked.release()
            return super().__iter__()

    thread = MirrorThread(tmp_path, None, "panel-e", Folders([folder]), problems.append, every_seconds=0.01)
    thread.start()
    assert all(looked.acquire(timeout=30) for _ in range(3))
    assert sent[:3] == [0, 0, 0]
    write_steps(folder, range(1, 3))
    complete(folder, 2)
    assert thread.stop()
    shown = mlflow.shown()
    assert shown[folder.name]["values"] == recorded_values(folder)
    assert {run["status"] for run in shown.values()} == {"FINISHED"}
    assert problems == []


def test_a_sweep_ends_without_its_mirror_when_mlflow_cannot_be_written(tmp_path: Path, mlflow: FakeMlflow) -> None:
    mlflow.is_down = True
    problems: list[str] = []
    thread = MirrorThread(tmp_path, "http://me:secret@tracker", "panel-e", [], problems.append, every_seconds=0.02)
    thread.start()
    assert not thread.stop(timeout_seconds=0.5)
    assert "tepo-lab mirror" in problems[-1]
    assert not any("secret" in problem for problem in problems)


def test_an_address_that_does_not_answer_is_reported_before_any_run_has_results(
    tmp_path: Path, mlflow: FakeMlflow
) -> None:
    mlflow.is_down = True
    problems, reported = list[str](), threading.Event()
    thread = MirrorThread(
        tmp_path,
        "http://tracker",
        "panel-e",
        [start_run(tmp_path)],
        lambda problem: (problems.append(problem), reported.set()),
        every_seconds=0.01,
    )
    thread.start()
    assert reported.wait(30)
    assert "http://tracker" in problems[0]
    assert not thread.stop(timeout_seconds=0.1)


def test_an_address_that_never_answers_is_not_waited_for(
    tmp_path: Path, mlflow: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ended = threading.Event(), threading.Event()

    def unanswered(name: str) -> None:
        asked.set()
        ended.wait(60)
        raise TimeoutError

    monkeypatch.setattr(mlflow, "get_experiment_by_name", unanswered)
    monkeypatch.setattr(module, "OUTAGE_SECONDS", 0.05)
    thread = MirrorThread(tmp_path, "http://tracker", "panel-e", [], print, every_seconds=0.01)
    thread.start()
    assert asked.wait(30)
    began = time.monotonic()
    assert not thread.stop(timeout_seconds=60)
    assert time.monotonic() - began < 30
    ended.set()


def test_a_wrong_address_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'\./mlruns'"):
        MirrorThread(tmp_path, "./mlruns", "panel-e", [], print)


def test_the_package_is_light_and_switches_telemetry_off() -> None:
    code = (
        "import os, sys, tepo_lab.track.thread, tepo_lab.track.ui, tepo_lab.track.address, tepo_lab.track.view\n"
        "print('mlflow' in sys.modules, os.environ['MLFLOW_DISABLE_TELEMETRY'], os.environ['DO_NOT_TRACK'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "true", "true"]
