"""Whatever dies or is damaged, the same command ends with the numbers of a run left in peace: the short version.

The long one, with more than forty points, is test_fault_matrix_processes.py and test_fault_matrix_storage.py.
"""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory, State
from tepo_lab.records.processes import descendants
from tests.integration.faults import (
    TINY,
    Bench,
    flip,
    kill_process,
    science,
    standings,
    trial_process,
    truncate,
    wait_for,
    wait_until_free,
)
from tests.integration.sockets import LOOPBACK, listening
from tests.trial_config import trial_config

STEPS = 12


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("faults"), STEPS)


class Shared(NamedTuple):
    """A home on which two commands were at work at once, and the addresses that they and theirs listened on."""

    home: Path
    listened: set[str]


@pytest.fixture(scope="module")
def shared(bench):
    home = bench.root / "shared"
    commands = [bench.start(home) for _ in range(2)]
    assert wait_for(lambda: any(folder.metrics() for folder in bench.folders(home)), commands[0])
    listened = listening({each.pid for command in commands for each in descendants(command.process.pid)})
    assert [command.wait() for command in commands] == [0, 0], "".join(command.said for command in commands)
    return Shared(home, listened)


def test_two_commands_at_once_do_not_run_the_same_run_twice(bench, shared, peaceful):
    for folder in bench.folders(shared.home):
        events = [event["event"] for event in folder.events()]
        assert (events.count("started"), events.count("resumed"), events.count("complete")) == (1, 0, 1)
    assert bench.difference(shared.home, peaceful) == ""


def test_what_a_sweep_opens_can_be_reached_from_this_machine_alone(shared):
    assert shared.listened
    assert shared.listened <= LOOPBACK


def test_ctrl_c_ends_cleanly_and_the_same_command_survives_every_kill(bench, peaceful):
    # One run: each start is an import less, and what dies is the same.
    bench = Bench(bench.root / "alone", STEPS, arms=("tepo",))
    home = bench.root / "killed"
    folders = bench.folders(home)
    driver = bench.start(home)
    assert wait_for(lambda: any(folder.metrics() for folder in folders), driver)
    driver.interrupt()
    assert driver.wait(60) == 130
    assert "tepo-lab: interrupted; the same command goes on from here." in driver.said
    assert "Traceback" not in driver.said
    # The driver in the middle of things, then Ray's raylet and a trial's process under one driver that goes on.
    driver = bench.start(home)
    assert wait_for(lambda: any(folder.checkpoint(4).exists() for folder in folders), driver)
    driver.kill()
    wait_until_free(folders)
    before = standings(folders)
    driver = bench.start(home)
    assert wait_for(lambda: trial_process(folders) is not None, driver)
    assert kill_process(driver.child("raylet"))
    # Ray is started again, unless the last run came to its end at that very moment.
    if wait_for(lambda: "Ray has died; it is started again." in driver.said, driver):
        wait_until_free(folders)
        if wait_for(lambda: trial_process(folders) is not None, driver):
            kill_process(trial_process(folders))
    assert driver.wait() == 0, driver.said[-3000:]
    assert all(before[folder.name].repeated(folder) <= 4 for folder in folders)
    assert bench.difference(home, peaceful) == ""
    assert sum(event["event"] == "resumed" for folder in folders for event in folder.events()) >= 2


def test_damaged_records_are_made_again_and_finished_runs_left_alone(bench, shared, peaceful):
    """On a copy of the finished home: what was damaged is made again, to the same bits."""
    home = bench.root / "damaged"
    shutil.copytree(shared.home, home)
    first, second = bench.folders(home)
    # One run as if killed at its end, its newest checkpoint cut off, garbage after its last metrics.
    cut_events(first, after=8)
    truncate(first.checkpoint(STEPS) / "model" / "model.safetensors")
    first.generations(STEPS).unlink()
    with first.metrics_file.open("ab") as stream:
        stream.write(b"\x00\x00{gar\n")
    # The other done, a bit of its evaluation and its run.json damaged, the database gone.
    flip(second.generations(STEPS), 0.05)
    second.run_file.write_text('{"id": "')
    (home / "mlflow.db").unlink()
    bench.complete(home)
    assert (home / "mlflow.db").exists()
    assert [event["event"] for event in first.events()].count("resumed") == 1
    assert [event["event"] for event in second.events()][-3:] == ["resumed", "evaluated", "complete"]
    assert second.run()["id"] == bench.runs[1].run_id
    assert bench.difference(home, peaceful, completions=2) == ""


def finish(attempt) -> None:
    while not attempt.step()["done"]:
        pass


def cut_events(folder: RunFolder, after: int) -> None:
    """Drop the events past a step, and leave the last line half written."""
    kept = [event for event in folder.events() if event["step"] <= after and event["event"] != "complete"]
    folder.events_file.write_text("".join(json.dumps(event) + "\n" for event in kept) + '{"time": 1.0, "ev')


def test_a_full_disk_is_the_machines_failure_and_retried_with_growing_waits(small_run, monkeypatch):
    from tepo_lab.execute.running.trainable import TrialTrainable
    from tepo_lab.train import checkpoint, trial

    spec, folder = small_run("tepo", "trainer.steps=2")
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    full = OSError(errno.ENOSPC, "No space left on device")
    save = checkpoint.save
    left = [2]

    def no_space(*arguments, **options):
        if left[0] == 0:
            return save(*arguments, **options)
        left[0] -= 1
        raise full

    monkeypatch.setattr(trial.checkpoint, "save", no_space)
    config = trial_config(spec, folder)
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
    from tepo_lab.execute.running.trainable import TrialTrainable
    from tepo_lab.train.trial import run_trial

    spec, folder = small_run("tepo", "trainer.steps=4")
    run_trial(spec, folder)
    whole = science(folder)
    lines = folder.metrics_file.read_bytes().splitlines(keepends=True)
    folder.metrics_file.write_bytes(b"".join(lines[:3]) + b"garbage\n")
    events = [event for event in folder.events() if event["event"] != "complete"]
    folder.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    finish(TrialTrainable(trial_config(spec, folder)))
    assert science(folder) == whole


STOP = [{"when": "reward/mean <= 1", "for": 2}]


def test_a_collapsed_run_whose_evaluation_is_damaged_is_evaluated_again_without_training(small_run):
    from tepo_lab.execute.running.trainable import TrialTrainable

    spec, folder = small_run("tepo", "trainer.steps=6", *TINY)
    config = trial_config(spec, folder, stop=STOP)
    finish(TrialTrainable(config))
    assert folder.events()[-1]["event"] == "collapsed"
    assert folder.events()[-1]["step"] == 2
    whole, metrics = folder.generations(2).read_bytes(), folder.metrics_file.read_bytes()
    folder.generations(2).write_bytes(whole[:-100])
    assert RunHistory.read(folder).state is State.INTERRUPTED
    # By a command whose sweep has no stop rules.
    finish(TrialTrainable(config | {"stop": []}))
    later = [(event["event"], event["step"]) for event in folder.events()][-3:]
    assert later == [("resumed", 2), ("evaluated", 2), ("collapsed", 2)]
    assert folder.events()[-1]["rule"] == "reward/mean <= 1"
    assert folder.generations(2).read_bytes() == whole
    assert folder.metrics_file.read_bytes() == metrics
    assert RunHistory.read(folder).state is State.COLLAPSED


def test_a_loss_that_is_not_finite_ends_a_run_by_the_users_fault_or_by_a_stop_rule(small_run):
    from tepo_lab.execute.running.trainable import TrialTrainable
    from tepo_lab.execute.showing.why import causes
    from tepo_lab.registry.expand import load_sweep

    # More than a number of single precision holds.
    infinite = ("trainer.steps=4", "objective.penalty.coef=1e39", *TINY)
    runs = [small_run(arm, *infinite) for arm in ("tepo_kl_1", "tepo_kl_1_k1", "tepo")]
    folders = [folder for _, folder in runs]
    own = [rule.model_dump(by_alias=True) for rule in load_sweep("panel-e")[0].stop]
    rules = [[], [], own]
    for run, stop in zip(runs, rules, strict=True):
        finish(TrialTrainable(trial_config(*run, stop=stop)))
    assert [folder.events()[-1]["event"] for folder in folders] == ["failed", "failed", "collapsed"]
    assert [folder.events()[-1].get("kind") for folder in folders] == ["user", "user", None]
    assert folders[2].events()[-1]["rule"] == "actor/grad_norm is not finite"
    assert not any(folder.evaluated_steps() for folder in folders[:2])
    (cause,) = causes(folders)
    assert cause.runs == [folder.name for folder in folders[:2]]
    assert "is not finite" in cause.error
    assert "lower trainer.learning_rate" in cause.error


def test_a_bug_in_a_grader_is_the_users_and_does_not_end_the_process(small_run, monkeypatch):
    from tepo_lab.execute.running.trainable import TrialTrainable
    from tepo_lab.tasks.grading import Grading

    runs = [small_run(arm, "trainer.steps=1", *TINY) for arm in ("tepo", "gspo")]
    broken, whole = (folder for _, folder in runs)
    trainable = TrialTrainable(trial_config(*runs[0]))
    with monkeypatch.context() as patched:
        patched.setattr(Grading, "add", lambda *arguments: 1 / 0)
        finish(trainable)
    failed = [event for event in broken.events() if event["event"] == "failed"]
    assert [(event["kind"], event["error_type"]) for event in failed] == [("user", "ZeroDivisionError")]
    assert not broken.attempt_file.exists()
    trainable.reset_config(trial_config(*runs[1]))
    finish(trainable)
    assert whole.events()[-1]["event"] == "complete"
