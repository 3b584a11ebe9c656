from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_mlflow import FakeMlflow

from tepo_lab.records.files import RunFolder, run_folders
from tepo_lab.records.history import RunHistory
from tepo_lab.track.mirror import Mirror
from tepo_lab.track.view import run_view
from tests.leases import lease_of_another_node
from tests.mlflow_runs import (
    START,
    complete,
    evaluate,
    event,
    extend,
    recorded_values,
    resume,
    run_again,
    start_run,
    write_steps,
    write_sweep,
)


class Sweep:
    """Two runs of a home and their mirror, whose clock stands still."""

    def __init__(self, home: Path) -> None:
        self.home, self.now, self.problems = home, 0.0, list[str]()
        self.run, self.other = start_run(home, "tepo"), start_run(home, "gspo")
        write_sweep(home, [self.run, self.other])
        self.mirror = self.another()

    def another(self, uri: str | None = None) -> Mirror:
        return Mirror(self.home, uri, "panel-e", self.problems.append, clock=lambda: self.now)

    def update(self, **options: bool) -> bool:
        return self.mirror.update(run_folders(self.home), **options)


@pytest.fixture
def sweep(tmp_path: Path, mlflow: FakeMlflow) -> Sweep:
    return Sweep(tmp_path)


def from_scratch(sweep: Sweep, monkeypatch: pytest.MonkeyPatch, **options: bool) -> dict[str, Any]:
    """What MLflow shows where it is given all the records at once."""
    server = FakeMlflow()
    with monkeypatch.context() as patch:
        patch.setattr("tepo_lab.track.mirror.open_client", lambda home, uri: server)
        assert sweep.another().update(run_folders(sweep.home), **options)
    return server.shown()


def test_mlflow_shows_what_the_records_contain(sweep: Sweep, mlflow: FakeMlflow) -> None:
    write_steps(sweep.run, range(1, 4))
    complete(sweep.run, 3)
    (sweep.home / "sweeps/panel-e/table.md").write_text("| a |")
    assert sweep.update()
    shown = mlflow.shown()
    assert shown.keys() == {"panel-e", sweep.run.name, sweep.other.name}
    run, view = shown[sweep.run.name], run_view(RunHistory.read(sweep.run), "panel-e")
    assert run["values"] == recorded_values(sweep.run)
    assert len(run["values"]) == 3 * 3 + 3
    assert run["params"] == view.params
    assert (view.tags | view.progress).items() <= run["tags"].items()
    assert (run["status"], run["times"]) == ("FINISHED", (view.started, view.ended))
    assert json.loads(run["artifacts"]["run.json"])["id"] == run["tags"]["run_id"]
    assert shown["panel-e"]["status"] == "RUNNING"
    assert shown["panel-e"]["tags"]["title"] == "Token-level KL"
    assert shown["panel-e"]["artifacts"]["table.md"] == "| a |"
    assert mlflow.experiments["panel-e"].artifact_location == str(sweep.home / "mlartifacts")

    (sweep.home / "sweeps/panel-e/table.md").write_text("| a later one |")
    assert sweep.update(over=True)
    assert mlflow.shown()["panel-e"]["artifacts"]["table.md"] == "| a later one |"


def test_only_what_is_new_is_sent(sweep: Sweep, mlflow: FakeMlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    write_steps(sweep.run, range(1, 101))
    assert sweep.update()
    mlflow.calls.clear()
    assert sweep.update()
    assert mlflow.calls.total() == 0
    sent: list[Any] = []
    log_batch = mlflow.log_batch
    monkeypatch.setattr(
        mlflow,
        "log_batch",
        lambda run_id, metrics=(), **others: (sent.extend(metrics), log_batch(run_id, metrics, **others)),
    )
    write_steps(sweep.run, range(101, 102))
    assert sweep.update()
    assert [(point.step, point.key) for point in sent] == [
        (101, name) for name in ("reward/mean", "actor/entropy", "seconds/step")
    ]


def cut_back(folder: RunFolder) -> None:
    resume(folder, 1)
    write_steps(folder, range(2, 4), attempt=1)


def extended(folder: RunFolder) -> None:
    complete(folder, 3)
    extend(folder, 40)
    resume(folder, 3)


def graded_again(folder: RunFolder) -> None:
    complete(folder, 3)
    evaluate(folder, 3, correct=4)


#: What may happen to a run of three steps, of which the second was evaluated, each as functions applied one by one.
LATER: dict[str, list[Callable[[RunFolder], None]]] = {
    "more steps, then complete": [lambda folder: write_steps(folder, range(4, 6)), lambda folder: complete(folder, 5)],
    "cut back, seen while cut": [lambda folder: resume(folder, 1), lambda folder: write_steps(folder, range(2, 4))],
    "cut back, made again unseen": [cut_back],
    "extended": [extended, lambda folder: write_steps(folder, range(4, 5))],
    "failed, then resumed": [
        lambda folder: event(folder, "failed", 3, kind="machine", error="out of memory"),
        lambda folder: resume(folder, 3),
    ],
    "graded again": [lambda folder: complete(folder, 3), lambda folder: evaluate(folder, 3, correct=4)],
    "graded again unseen": [graded_again],
    "removed and run again": [run_again],
}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("changes", LATER.values(), ids=LATER)
def test_whatever_happens_to_a_run_mlflow_shows_its_records_and_nothing_else(
    sweep: Sweep,
    mlflow: FakeMlflow,
    monkeypatch: pytest.MonkeyPatch,
    changes: list[Callable[[RunFolder], None]],
    restarted: bool,
) -> None:
    write_steps(sweep.run, range(1, 4))
    evaluate(sweep.run, 2)
    assert sweep.update()
    for change in changes:
        change(sweep.run)
        sweep.mirror = sweep.another() if restarted else sweep.mirror
        assert sweep.update()
        assert mlflow.shown() == from_scratch(sweep, monkeypatch)
    assert mlflow.shown()[sweep.run.name]["values"] == recorded_values(sweep.run)
    assert sweep.problems == []


def test_an_update_that_is_cut_off_at_any_call_is_completed_by_the_next(
    tmp_path: Path, mlflow: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is cut back to a checkpoint before the next one, as it is when the driver was killed in the middle."""
    for fails_at in count(1):
        vars(mlflow).update(vars(FakeMlflow(fails_at=fails_at)))
        sweep = Sweep(tmp_path / str(fails_at))
        write_steps(sweep.run, range(1, 4))
        evaluate(sweep.run, 3)
        succeeded = sweep.update()
        write_steps(sweep.run, range(4, 5))
        succeeded = sweep.update(at_once=True) and succeeded
        cut_back(sweep.run)
        succeeded = sweep.update(over=True, at_once=True) and succeeded
        mlflow.fails_at = None
        assert sweep.update(over=True, at_once=True)
        assert mlflow.shown() == from_scratch(sweep, monkeypatch, over=True)
        if succeeded:
            break
    assert fails_at > 25


def test_problems_are_reported_once_an_outage_without_secrets_and_tried_again_after_growing_waits(
    sweep: Sweep, mlflow: FakeMlflow
) -> None:
    address = "http://someone:pass@word@tracker:5000"
    mirror, mlflow.error = sweep.another(address), f"no answer from {address}/api/2.0/mlflow?token=secret\nTraceback"
    mlflow.is_down = True
    for waits in ([1, 2, 4, 8, 16, 32, 60, 60], [1]):
        for wait in waits:
            assert not mirror.update([sweep.run])
            calls = mlflow.calls.total()
            sweep.now += wait - 0.1
            assert not mirror.update([sweep.run])
            assert mlflow.calls.total() == calls
            sweep.now += 0.1
        mlflow.is_down = False
        assert mirror.update([sweep.run])
        mlflow.is_down = True
        write_steps(sweep.run, range(1, 2))
    assert len(sweep.problems) == 2
    for problem in sweep.problems:
        assert "http://tracker:5000" in problem
        assert not any(word in problem for word in ("someone", "pass", "word", "secret", "\n"))


def test_two_mirrors_of_one_home_repeat_nothing(sweep: Sweep, mlflow: FakeMlflow) -> None:
    mirrors = [sweep.mirror, sweep.another()]
    for mirror in mirrors:
        assert mirror.update(run_folders(sweep.home))
    late = start_run(sweep.home, "grpo")
    for step in range(1, 4):
        write_steps(late, range(step, step + 1))
        for mirror in mirrors:
            assert mirror.update(run_folders(sweep.home))
    cut_back(late)
    for mirror in reversed(mirrors):
        assert mirror.update(run_folders(sweep.home))
    assert mlflow.shown()[late.name]["values"] == recorded_values(late)
    assert sweep.problems == []


def test_homes_that_share_a_server_keep_their_runs_apart(tmp_path: Path, mlflow: FakeMlflow) -> None:
    homes = [Sweep(tmp_path / name) for name in ("first", "second")]
    for attempt, home in enumerate(homes):
        write_steps(home.run, range(1, 2), attempt=attempt)
        home.mirror = home.another("http://tracker:5000")
        assert home.update()
        assert home.update()
    runs = [run for run in mlflow.runs if run.info.run_name == homes[0].run.name]
    assert [{value for name, _, value, _ in run.data.metrics if name == "seconds/step"} for run in runs] == [
        {1.5},
        {2.5},
    ]


def test_a_sweep_ends_as_its_runs_do(sweep: Sweep, mlflow: FakeMlflow) -> None:
    def statuses() -> tuple[str, str]:
        sweep.mirror = sweep.another()
        assert sweep.update(over=True)
        shown = mlflow.shown()
        return shown[sweep.other.name]["status"], shown["panel-e"]["status"]

    for folder in (sweep.run, sweep.other):
        write_steps(folder, range(1, 4))
    complete(sweep.run, 3)
    lease_of_another_node(sweep.other)
    assert statuses() == ("RUNNING", "RUNNING")
    lease_of_another_node(sweep.other, age=3600)
    assert statuses() == ("KILLED", "KILLED")
    event(sweep.other, "failed", 0, kind="user", error="x")
    assert statuses() == ("FAILED", "FAILED")
    resume(sweep.other, 3)
    complete(sweep.other, 3, time=START + 50)
    assert statuses() == ("FINISHED", "FINISHED")
    assert mlflow.shown()["panel-e"]["times"] == (1000 * START, 1000 * (START + 50))


def test_runs_of_an_earlier_release_are_made_again_and_a_users_own_left_alone(sweep: Sweep, mlflow: FakeMlflow) -> None:
    mlflow.create_experiment("panel-e", str(sweep.home / "mlartifacts"), {})
    old = mlflow.create_run("panel-e", 0, {"sweep": "panel-e", "mlflow.parentRunId": "x"}, sweep.run.name)
    own = mlflow.create_run("panel-e", 0, {}, sweep.other.name)
    assert sweep.update()
    assert (old.info.lifecycle_stage, own.info.lifecycle_stage) == ("deleted", "active")
    assert [run.info.run_name for run in mlflow.runs[2:]] == [sweep.other.name, sweep.run.name, "panel-e"]


def test_a_damaged_record_hides_its_run_and_no_other(sweep: Sweep, mlflow: FakeMlflow) -> None:
    sweep.run.run_file.write_text("{")
    assert sweep.update()
    assert sweep.update()
    assert mlflow.shown().keys() == {"panel-e", sweep.other.name}
    assert len(sweep.problems) == 1
    assert str(sweep.run.run_file) in sweep.problems[0]


def test_a_run_that_has_not_begun_is_not_shown(sweep: Sweep, mlflow: FakeMlflow) -> None:
    sweep.run.events_file.unlink()
    assert sweep.update()
    assert mlflow.shown().keys() == {"panel-e", sweep.other.name}
    assert sweep.problems == []


def test_a_home_that_was_moved_is_reported_with_its_former_place(sweep: Sweep, mlflow: FakeMlflow) -> None:
    mlflow.experiments["panel-e"] = SimpleNamespace(artifact_location="/elsewhere/mlartifacts")
    assert not sweep.update()
    assert "/elsewhere/mlartifacts" in sweep.problems[0]
    assert mlflow.runs == []
