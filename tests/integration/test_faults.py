"""Whatever dies, the same command ends with the numbers of an undisturbed run: the short version.

The long one, with more than forty points, is test_fault_matrix_processes.py and test_fault_matrix_storage.py.
"""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tepo_lab.execute.running.trainable import TrialTrainable
from tepo_lab.execute.showing.why import causes
from tepo_lab.records.events import Collapsed, Failed
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory, State, read_events
from tepo_lab.registry.expand import load_sweep
from tepo_lab.train import checkpoint, trial
from tepo_lab.train.trial import run_trial
from tests.integration.faults import (
    TINY,
    Bench,
    event_names,
    kill_process,
    positions,
    reproducible_metrics,
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
    processes = [psutil.Process(command.process.pid) for command in commands]
    listened = listening({one.pid for process in processes for one in (process, *process.children(recursive=True))})
    assert [command.wait() for command in commands] == [0, 0], "".join(command.output for command in commands)
    return Shared(home, listened)


def test_two_commands_at_once_do_not_run_the_same_run_twice(bench, shared, undisturbed):
    for folder in bench.folders(shared.home):
        events = event_names(folder)
        assert (events.count("started"), events.count("resumed"), events.count("complete")) == (1, 0, 1)
    assert bench.difference(shared.home, undisturbed) == ""


def test_what_a_sweep_opens_can_be_reached_from_this_machine_alone(shared):
    assert shared.listened
    assert shared.listened <= LOOPBACK


def test_ctrl_c_ends_cleanly_and_the_same_command_survives_every_kill(bench, undisturbed):
    # One run: each start is an import less, and what dies is the same.
    bench = Bench(bench.root / "alone", STEPS, arms=("tepo",))
    home = bench.root / "killed"
    folders = bench.folders(home)
    driver = bench.start(home)
    assert wait_for(lambda: any(folder.metrics() for folder in folders), driver)
    driver.interrupt()
    assert driver.wait(60) == 130
    assert "tepo-lab: interrupted; the same command goes on from here." in driver.output
    assert "Traceback" not in driver.output
    # The driver in the middle of things, then Ray's raylet and a trial's process under one driver that goes on.
    driver = bench.start(home)
    assert wait_for(lambda: any(folder.checkpoint(4).exists() for folder in folders), driver)
    driver.kill()
    wait_until_free(folders)
    before = positions(folders)
    driver = bench.start(home)
    assert wait_for(lambda: trial_process(folders) is not None, driver)
    assert kill_process(driver.child("raylet"))
    # Ray is started again, unless the last run came to its end at that very moment.
    if wait_for(lambda: "Ray has died; it is started again." in driver.output, driver):
        wait_until_free(folders)
        if wait_for(lambda: trial_process(folders) is not None, driver):
            kill_process(trial_process(folders))
    assert driver.wait() == 0, driver.output[-3000:]
    assert all(before[folder.name].repeated(folder) <= 4 for folder in folders)
    assert bench.difference(home, undisturbed) == ""
    assert sum(event_names(folder).count("resumed") for folder in folders) >= 2


def test_what_a_kill_cut_off_is_made_again_to_the_same_bits(bench, shared, undisturbed):
    """On a copy of the finished home."""
    home = bench.root / "cut-off"
    shutil.copytree(shared.home, home)
    first, second = bench.folders(home)
    # One run as if killed at its end, its newest checkpoint cut off, garbage after its last metrics.
    cut_events(first, after=8)
    truncate(first.checkpoint(STEPS) / "model" / "model.safetensors")
    first.generations(STEPS).unlink()
    with first.metrics_file.open("ab") as stream:
        stream.write(b"\x00\x00{gar\n")
    # The other complete, its evaluation cut off, the database deleted.
    truncate(second.generations(STEPS))
    (home / "mlflow.db").unlink()
    bench.complete(home)
    assert (home / "mlflow.db").exists()
    assert event_names(first).count("resumed") == 1
    assert event_names(second)[-3:] == ["resumed", "evaluated", "complete"]
    assert bench.difference(home, undisturbed, completions=2) == ""


def finish(attempt) -> None:
    while not attempt.step()["done"]:
        pass


def cut_events(folder: RunFolder, after: int) -> None:
    """Drop the events past a step, and leave the last line half written."""
    lines = [event.line() for event in read_events(folder) if event.step <= after and event.event != "complete"]
    folder.events_file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"time": 1.0, "ev')


def test_a_full_disk_is_the_machines_failure_and_retried_with_growing_waits(small_run, monkeypatch):
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
        assert "failed" not in event_names(folder)
        assert not folder.lease_file.exists()
    finish(TrialTrainable(dict(config)))
    assert waits == [0, 2, 8]
    assert [step["step"] for step in folder.metrics()] == [1, 2]
    assert event_names(folder)[-1] == "complete"
    assert not folder.attempt_file.exists()
    assert folder.log_file.read_text().count("No space left on device") == 2


def test_a_step_lost_from_the_metrics_is_made_again(small_run):
    spec, folder = small_run("tepo", "trainer.steps=4")
    run_trial(spec, folder)
    undisturbed = reproducible_metrics(folder)
    lines = folder.metrics_file.read_bytes().splitlines(keepends=True)
    folder.metrics_file.write_bytes(b"".join(lines[:3]) + b"garbage\n")
    cut_events(folder, after=4)
    finish(TrialTrainable(trial_config(spec, folder)))
    assert reproducible_metrics(folder) == undisturbed


def test_a_collapsed_run_whose_evaluation_is_cut_off_is_evaluated_again_without_training(small_run):
    spec, folder = small_run("tepo", "trainer.steps=6", *TINY)
    config = trial_config(spec, folder, stop=[{"when": "reward/mean <= 1", "for": 2}])
    finish(TrialTrainable(config))
    assert RunHistory.read(folder).collapsed_at == 2
    content, metrics = folder.generations(2).read_bytes(), folder.metrics_file.read_bytes()
    folder.generations(2).write_bytes(content[:-100])
    assert RunHistory.read(folder).state is State.INTERRUPTED
    # By a command whose sweep has no stop rules.
    finish(TrialTrainable(config | {"stop": []}))
    history = RunHistory.read(folder)
    assert [(event.event, event.step) for event in history.events][-3:] == [
        ("resumed", 2),
        ("evaluated", 2),
        ("collapsed", 2),
    ]
    assert isinstance(history.outcome, Collapsed)
    assert (history.outcome.rule, history.state) == ("reward/mean <= 1", State.COLLAPSED)
    assert (folder.generations(2).read_bytes(), folder.metrics_file.read_bytes()) == (content, metrics)


def test_a_loss_that_is_not_finite_ends_a_run_by_the_users_fault_or_by_a_stop_rule(small_run):
    # More than a number of single precision holds.
    infinite = ("trainer.steps=4", "objective.penalty.coef=1e39", *TINY)
    runs = [small_run(arm, *infinite) for arm in ("tepo_kl_1", "tepo_kl_1_k1", "tepo")]
    folders = [folder for _, folder in runs]
    own = [rule.model_dump(by_alias=True) for rule in load_sweep("panel-e")[0].stop]
    for run, stop in zip(runs, [[], [], own], strict=True):
        finish(TrialTrainable(trial_config(*run, stop=stop)))
    histories = [RunHistory.read(folder) for folder in folders]
    assert [history.state for history in histories] == [State.FAILED, State.FAILED, State.COLLAPSED]
    assert not any(history.evaluations for history in histories[:2])
    assert [type(history.outcome) for history in histories] == [Failed, Failed, Collapsed]
    assert getattr(histories[2].outcome, "rule", None) == "actor/grad_norm is not finite"
    (cause,) = causes(folders)
    assert (cause.kind, cause.runs) == ("user", [folder.name for folder in folders[:2]])
    assert "trainer.learning_rate" in cause.error
