"""Runs of two learners through Ray Train inside Tune: the numbers of one learner, also through a death."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest

from tepo_lab.records.events import Failed
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory
from tepo_lab.train.trial import run_trial
from tests.integration.faults import Bench, event_names, owner, wait_for

LEARNERS = ("resources.learners=2", "resources.cpus=2")


def spans(folders: list[RunFolder]) -> list[tuple[float, float]]:
    """When each run began and ended, in order."""
    events = [RunHistory.read(folder).events for folder in folders]
    return sorted((run[0].time, run[-1].time) for run in events)


def other_learners(first: int | None) -> list[int]:
    """The processes of a worker group besides its first one, by Ray's title for them and their common parent."""
    parent = psutil.Process(first).parent()
    assert parent is not None
    workers = [child for child in parent.children() if "RayTrainWorker" in " ".join(child.cmdline())]
    return [worker.pid for worker in workers if worker.pid != first]


def assert_like_one_learner(folder: RunFolder, alone: RunFolder) -> None:
    for step, reference in zip(folder.metrics(), alone.metrics(), strict=True):
        assert step["reward/mean"] == reference["reward/mean"]
        assert step["rollout/tokens"] == reference["rollout/tokens"]
        assert step["actor/grad_norm"] == pytest.approx(reference["actor/grad_norm"], rel=1e-3)
        assert step["actor/entropy"] == pytest.approx(reference["actor/entropy"], rel=1e-3)
    last = alone.generation_steps()[-1]
    ours, theirs = (pd.read_parquet(run.generations(last)) for run in (folder, alone))
    assert len(ours) == len(theirs)
    assert (ours["response"] == theirs["response"]).mean() > 0.9


def in_one_process(bench: Bench, home: Path) -> dict[str, RunFolder]:
    folders = {}
    for run in bench.runs:
        folder = RunFolder(home / run.spec.arm.name)
        run_trial(run.spec, folder)
        folders[run.spec.arm.name] = folder
    return folders


def test_two_learners_come_to_what_one_comes_to(tmp_path):
    bench = Bench(tmp_path / "bench", steps=2, arms=("tepo",))
    driver = bench.complete(tmp_path / "home", *LEARNERS)
    table = json.loads(driver.output[driver.output.index("{") : driver.output.rindex("}") + 1])
    assert table["rows"][0]["outcome"] == "complete"
    (folder,) = bench.folders(tmp_path / "home")
    assert event_names(folder) == ["started", "checkpoint", "evaluated", "complete"]
    assert not folder.lease_file.exists()
    assert_like_one_learner(folder, in_one_process(bench, tmp_path / "alone")["tepo"])


@pytest.mark.slow
def test_a_run_that_loses_a_learner_goes_on_from_its_checkpoint(tmp_path):
    bench = Bench(tmp_path / "bench", steps=12, arms=("tepo",))
    home = tmp_path / "home"
    driver = bench.start(home, *LEARNERS)
    (folder,) = bench.folders(home)
    assert wait_for(lambda: any(folder.checkpoints.glob("step-*")), driver), driver.output
    (victim,) = other_learners(owner(folder))
    os.kill(victim, signal.SIGKILL)
    killed = time.time()
    assert driver.wait() == 0, driver.output
    events = {event.event: event for event in RunHistory.read(folder).events}
    assert "failed" not in events
    assert events["resumed"].time > killed
    assert events["resumed"].step >= 4
    assert_like_one_learner(folder, in_one_process(bench, tmp_path / "alone")["tepo"])


@pytest.mark.slow
def test_two_runs_that_each_need_the_whole_machine_take_turns(tmp_path):
    bench = Bench(tmp_path / "bench", steps=1, arms=("tepo", "gspo"))
    bench.complete(tmp_path / "home", *LEARNERS)
    (_, end), (begin, _) = spans(bench.folders(tmp_path / "home"))
    assert end <= begin


@pytest.mark.slow
def test_a_failure_of_the_users_making_ends_the_run_and_says_why(tmp_path):
    bench = Bench(tmp_path / "bench", steps=1, arms=("tepo",))
    too_few = ("trainer.dynamic_sampling=refill", "trainer.max_generation_batches=1")
    driver = bench.start(tmp_path / "home", *LEARNERS, *too_few)
    assert driver.wait() == 1, driver.output
    folder = RunFolder(next((tmp_path / "home" / "runs").iterdir()))
    assert event_names(folder) == ["started", "failed"]
    outcome = RunHistory.read(folder).outcome
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.error_type) == ("user", "DataError")
    assert "trainer.max_generation_batches" in outcome.error
    assert "Traceback" in folder.log_file.read_text()
