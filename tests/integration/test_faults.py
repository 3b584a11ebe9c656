"""Whatever dies or is damaged, the same command ends with the numbers of a run left in peace.

The long matrix (`pytest -m slow -s tests/integration/test_faults.py`) kills at more than thirty moments and prints what
happened at each.
"""

from __future__ import annotations

import errno
import json
import random
import shutil
import time
from pathlib import Path

import pytest

from tepo_lab.schema.record import RunFolder
from tests.integration.faults import (
    Bench,
    kill_process,
    newest_checkpoint,
    science,
    trial_process,
    truncate,
    wait_for,
    wait_until_free,
)

STEPS = 6


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("faults"), STEPS)


@pytest.fixture(scope="module")
def peaceful(bench):
    """A home whose runs nobody disturbed, two commands at once at work on it."""
    home = bench.root / "peaceful"
    first, second = bench.start(home), bench.start(home)
    assert (first.wait(), second.wait()) == (0, 0), first.log.read_text()
    return home


def rerun(bench, home):
    driver = bench.start(home)
    assert driver.wait() == 0, driver.log.read_text()[-3000:]
    return driver


def test_two_commands_at_once_do_not_run_the_same_run_twice(bench, peaceful):
    for folder in bench.folders(peaceful):
        events = [event["event"] for event in folder.events()]
        assert (events.count("started"), events.count("resumed"), events.count("complete")) == (1, 0, 1)
        assert [step["step"] for step in folder.metrics()] == list(range(1, STEPS + 1))


def test_ctrl_c_ends_cleanly_and_the_same_command_survives_every_kill(bench, peaceful):
    home = bench.root / "killed"
    folders = bench.folders(home)
    driver = bench.start(home)
    assert wait_for(lambda: any(folder.metrics() for folder in folders), driver)
    driver.interrupt()
    assert driver.wait(60) == 130
    said = driver.log.read_text()
    assert "tepo-lab: interrupted; the same command goes on from here." in said
    assert "Traceback" not in said
    # The driver in the middle of things, then Ray's raylet and a trial's process under one driver that goes on.
    driver = bench.start(home)
    assert wait_for(lambda: any(folder.checkpoint(2).exists() for folder in folders), driver)
    driver.kill()
    wait_until_free(folders)
    driver = bench.start(home)
    assert wait_for(lambda: trial_process(folders) is not None, driver)
    assert kill_process(driver.child("raylet"))
    # Ray is started again, unless the last run came to its end at that very moment.
    if wait_for(lambda: "Ray has died; it is started again." in driver.log.read_text(), driver):
        wait_until_free(folders)
        if wait_for(lambda: trial_process(folders) is not None, driver):
            kill_process(trial_process(folders))
    assert driver.wait() == 0, driver.log.read_text()[-3000:]
    assert bench.difference(home, peaceful) == ""
    assert sum(event["event"] == "resumed" for folder in folders for event in folder.events()) >= 2


def test_damaged_records_are_made_again_and_finished_runs_left_alone(bench, peaceful):
    """On copies of the finished home: what was damaged is made again, to the same bits."""
    home = bench.root / "damaged"
    shutil.copytree(peaceful, home)
    first, second = bench.folders(home)
    # One run as if killed at its end, its newest checkpoint cut off, garbage after its last metrics.
    cut_events(first, after=4)
    truncate(first.checkpoint(STEPS) / "model" / "model.safetensors")
    first.generations(STEPS).unlink()
    with first.metrics_file.open("ab") as stream:
        stream.write(b"\x00\x00{gar\n")
    # The other done, its evaluation and run.json damaged, the database gone.
    truncate(second.generations(STEPS))
    second.run_file.write_text('{"id": "')
    (home / "mlflow.db").unlink()
    rerun(bench, home)
    assert (home / "mlflow.db").exists()
    assert [event["event"] for event in first.events()].count("resumed") == 1
    complete = [event for event in second.events() if event["event"] == "complete"]
    assert len(complete) == 2
    assert second.run()["id"] == bench.runs[1].run_id
    for one, other in zip(bench.folders(home), bench.folders(peaceful), strict=True):
        assert one.generations(STEPS).read_bytes() == other.generations(STEPS).read_bytes()
    table = json.loads(json.dumps([each.metrics()[-1]["reward/mean"] for each in bench.folders(home)]))
    assert table == [each.metrics()[-1]["reward/mean"] for each in bench.folders(peaceful)]
    assert "resumed" not in [event["event"] for event in bench.folders(peaceful)[0].events()]


def finish(attempt) -> None:
    while not attempt.step()["done"]:
        pass


def cut_events(folder: RunFolder, after: int) -> None:
    """Drop the events past a step, and leave the last line half written."""
    kept = [event for event in folder.events() if event["step"] <= after and event["event"] != "complete"]
    folder.events_file.write_text("".join(json.dumps(event) + "\n" for event in kept) + '{"time": 1.0, "ev')


def test_a_full_disk_is_the_machines_failure_and_retried_with_growing_waits(small_run, monkeypatch):
    from tepo_lab.execute import trainable
    from tepo_lab.execute.trainable import TrialTrainable
    from tepo_lab.train import checkpoint, trial

    _, folder = small_run("tepo", "trainer.steps=2")
    waits: list[float] = []
    monkeypatch.setattr(trainable.time, "sleep", waits.append)
    full = OSError(errno.ENOSPC, "No space left on device")
    save = checkpoint.save
    left = [2]

    def no_space(*arguments, **options):
        if left[0] == 0:
            return save(*arguments, **options)
        left[0] -= 1
        raise full

    monkeypatch.setattr(trial.checkpoint, "save", no_space)
    config = {"folder": str(folder.path), "stop": [], "search": None, "session": "one"}
    for _ in range(2):
        attempt = TrialTrainable(dict(config))
        with pytest.raises(OSError, match="No space left"):
            finish(attempt)
        assert "failed" not in [event["event"] for event in folder.events()]
        assert not folder.lease_file.exists()
    finish(TrialTrainable(dict(config)))
    assert waits == [0, 2, 8]
    assert [step["step"] for step in folder.metrics()] == [1, 2]
    assert [event["event"] for event in folder.events()][-1] == "complete"
    assert not folder.attempt_file.exists()
    assert folder.log_file.read_text().count("No space left on device") == 2


def test_a_step_lost_from_the_metrics_is_made_again(small_run):
    from tepo_lab.execute.trainable import TrialTrainable
    from tepo_lab.train.trial import run_trial

    spec, folder = small_run("tepo", "trainer.steps=4")
    run_trial(spec, folder)
    whole = science(folder)
    lines = folder.metrics_file.read_bytes().splitlines(keepends=True)
    folder.metrics_file.write_bytes(b"".join(lines[:3]) + b"garbage\n")
    events = [event for event in folder.events() if event["event"] != "complete"]
    folder.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    finish(TrialTrainable({"folder": str(folder.path), "stop": [], "search": None, "session": "one"}))
    assert science(folder) == whole


#: (who is killed, when): a moment is named by what has just become true of the run's folders.
MOMENTS = (
    "begun",
    "held",
    "first step",
    "saving",
    "checkpoint",
    "later step",
    "all steps",
    "evaluated",
)
VICTIMS = ("driver", "trial", "raylet", "gcs_server")


def is_now(moment: str, folders: list[RunFolder], marks: dict[str, int]) -> bool:
    """Whether the moment has come; `marks` are the steps that each folder had when the driver was started."""
    if moment == "begun":
        return any(folder.run_file.exists() for folder in folders)
    if moment == "held":
        return trial_process(folders) is not None
    if moment == "saving":
        return any(True for folder in folders for _ in folder.checkpoints.glob(".*.partial"))
    if moment == "checkpoint":
        return any(len(folder.metrics()) > marks[folder.name] and newest_checkpoint(folder) for folder in folders)
    if moment in ("first step", "later step"):
        more = 1 if moment == "first step" else 3
        return any(len(folder.metrics()) >= marks[folder.name] + more for folder in folders)
    if moment == "all steps":
        return any(len(folder.metrics()) == LONG_STEPS for folder in folders)
    return any(folder.evaluated_steps() for folder in folders)


LONG_STEPS = 8
KILLS = 32


@pytest.mark.slow
def test_the_long_matrix_of_kills(tmp_path):
    """More than thirty kills, over as many homes as that takes; each home ends as if left in peace."""
    bench = Bench(tmp_path / "matrix", LONG_STEPS)
    peaceful = bench.root / "peaceful"
    rerun(bench, peaceful)
    choose = random.Random(0)
    points = [(victim, moment) for moment in MOMENTS for victim in VICTIMS]
    choose.shuffle(points)
    assert len(points) >= KILLS
    homes, killed = 0, 0
    while points:
        homes += 1
        home = bench.root / f"home-{homes}"
        folders = bench.folders(home)
        while not all(done(folder) for folder in folders):
            if not points:
                rerun(bench, home)
                break
            killed += kill_at(bench, home, points.pop(), killed + 1)
        assert bench.difference(home, peaceful) == ""
        tell(f"     home {homes}: metrics, generations and weights equal those of the undisturbed runs")
    assert killed >= 30


def kill_at(bench: Bench, home: Path, point: tuple[str, str], number: int) -> int:
    """Start the command, kill one of its processes at a moment, and wait for what becomes of it. Returns kills done."""
    victim, moment = point
    folders = bench.folders(home)
    marks = {folder.name: len(folder.metrics()) for folder in folders}
    driver = bench.start(home)
    came = wait_for(lambda: is_now(moment, folders, marks), driver)
    before = [len(folder.metrics()) for folder in folders]
    pid = {"driver": driver.process.pid, "trial": trial_process(folders)}.get(victim) or driver.child(victim)
    hit = came and kill_process(pid)
    began = time.monotonic()
    if victim == "driver" and hit:
        driver.process.wait()
        wait_until_free(folders)
        after = "the driver is gone; the same command is given again"
    else:
        code = driver.wait()
        after = f"the command ended with {code} {time.monotonic() - began:.0f} s later"
        assert code == 0 or hit, driver.log.read_text()[-3000:]
    steps = [len(folder.metrics()) for folder in folders]
    tell(f"{number:4} {victim:10} at {moment:10} steps {before}: {after if hit else 'came too late'}, steps {steps}")
    return int(hit)


def tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def done(folder: RunFolder) -> bool:
    events = folder.events()
    return bool(events) and events[-1]["event"] == "complete"
