"""Runs of two learners through Ray Train inside Tune: the same science, one after the other, through a death."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from tepo_lab.records.files import RunFolder
from tepo_lab.train.trial import run_trial
from tests.integration.faults import Bench, holder, wait_for

LEARNERS = ("resources.learners=2", "resources.cpus=2")


def spans(folders: list[RunFolder]) -> list[tuple[float, float]]:
    """When each run began and ended, in order."""
    times = [[event["time"] for event in folder.events()] for folder in folders]
    return sorted((each[0], each[-1]) for each in times)


def other_learners(first: int | None) -> list[int]:
    """The processes of a worker group besides its first one, by Ray's title for them and their common parent."""

    def about(pid: int) -> tuple[str, bool]:
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return parent, b"RayTrainWorker" in Path(f"/proc/{pid}/cmdline").read_bytes()

    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(path.name) != first and about(int(path.name)) == about(int(first or 0)):
                found.append(int(path.name))
    return found


def assert_like_one_learner(folder: RunFolder, alone: RunFolder) -> None:
    for step, reference in zip(folder.metrics(), alone.metrics(), strict=True):
        assert step["reward/mean"] == reference["reward/mean"]
        assert step["rollout/tokens"] == reference["rollout/tokens"]
        assert step["actor/grad_norm"] == pytest.approx(reference["actor/grad_norm"], rel=1e-3)
        assert step["actor/entropy"] == pytest.approx(reference["actor/entropy"], rel=1e-3)
    last = alone.evaluated_steps()[-1]
    ours, theirs = (pd.read_parquet(each.generations(last)) for each in (folder, alone))
    assert len(ours) == len(theirs)
    assert (ours["response"] == theirs["response"]).mean() > 0.9


def in_one_process(bench: Bench, home: Path) -> dict[str, RunFolder]:
    folders = {}
    for each in bench.runs:
        folder = RunFolder(home / each.spec.arm.name)
        run_trial(each.spec, folder)
        folders[each.spec.arm.name] = folder
    return folders


def test_two_learners_come_to_what_one_comes_to(tmp_path):
    bench = Bench(tmp_path / "bench", steps=2, arms=("tepo",))
    driver = bench.complete(tmp_path / "home", *LEARNERS)
    table = json.loads(driver.said[driver.said.index("{") : driver.said.rindex("}") + 1])
    assert table["rows"][0]["outcome"] == "complete"
    (folder,) = bench.folders(tmp_path / "home")
    assert [event["event"] for event in folder.events()] == ["started", "checkpoint", "evaluated", "complete"]
    assert not folder.lease_file.exists()
    assert_like_one_learner(folder, in_one_process(bench, tmp_path / "alone")["tepo"])


@pytest.mark.slow
def test_a_run_that_loses_a_learner_goes_on_from_its_checkpoint(tmp_path):
    bench = Bench(tmp_path / "bench", steps=12, arms=("tepo",))
    home = tmp_path / "home"
    driver = bench.start(home, *LEARNERS)
    (folder,) = bench.folders(home)
    assert wait_for(lambda: any(folder.checkpoints.glob("step-*")), driver), driver.said
    (victim,) = other_learners(holder(folder))
    os.kill(victim, signal.SIGKILL)
    killed = time.time()
    assert driver.wait() == 0, driver.said
    events = {event["event"]: event for event in folder.events()}
    assert "failed" not in events
    assert events["resumed"]["time"] > killed
    assert events["resumed"]["step"] >= 4
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
    assert driver.wait() == 1, driver.said
    folder = next((tmp_path / "home" / "runs").iterdir())
    events = RunFolder(folder).events()
    assert [event["event"] for event in events] == ["started", "failed"]
    assert (events[-1]["kind"], events[-1]["error_type"]) == ("user", "DataError")
    assert "raise trainer.max_generation_batches" in events[-1]["error"]
    assert "Traceback" in RunFolder(folder).log_file.read_text()
