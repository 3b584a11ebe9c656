"""A run's process as Tune uses it, without Ray's processes."""

from __future__ import annotations

import errno

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from ray.train._internal.storage import StorageContext
from ray.tune.experiment import Trial
from ray.tune.registry import register_trainable

from tepo_lab.execute.running.trainable import Ends, TrialTrainable
from tepo_lab.records.files import RunFolder
from tepo_lab.records.lock import RunLock, is_locked
from tepo_lab.tasks.hub_data import HubUnreachableError
from tests.leases import lease_of_another_node
from tests.trial_config import trial_config


def asked(monkeypatch, error):
    """The hub's answer to every question is this error, whatever connection the machine has."""

    def answer(api, name, **settings):
        raise error

    monkeypatch.setattr(HfApi, "model_info", answer)
    monkeypatch.setattr("tepo_lab.execute.running.attempt.WAITS", ())


class NoSuchModelError(RepositoryNotFoundError):
    def __init__(self):
        Exception.__init__(self, "no such model")


@pytest.fixture
def config(small_run):
    spec, folder = small_run("tepo", "trainer.steps=2")
    return trial_config(spec, folder), folder


@pytest.fixture
def failed(tmp_path, monkeypatch):
    """Makes the trial of a run, as Tune has it when it has failed for the last time."""
    monkeypatch.setattr(StorageContext, "_get_session_path", lambda storage: str(tmp_path / "session"))
    register_trainable("trial", TrialTrainable)

    def make(folder):
        storage = StorageContext(str(tmp_path / "storage"), "sweep", trial_dir_name=folder.name)
        trial = Trial("trial", config={"folder": str(folder.path), "session": "one"}, storage=storage)
        trial.init_local_path()
        trial.handle_error(RuntimeError("The actor died.\nno memory left"))
        return trial

    return make


def test_a_failure_is_recorded_when_it_happens_but_never_over_another_sessions_run(small_run, failed):
    _, folder = small_run("tepo", "trainer.steps=1")
    ends, trial = Ends(), failed(folder)
    with RunLock(folder):
        ends.on_trial_error(trial=trial)
        ends.tell_rest()
    assert folder.events() == []
    ends.on_trial_error(trial=trial)
    (told,) = folder.events()
    assert (told["event"], told["kind"], told["error"]) == ("failed", "machine", "no memory left")
    ends.tell_rest()
    assert len(folder.events()) == 1


def test_a_process_that_died_on_another_node_has_failed_though_its_lease_is_fresh(small_run, failed):
    _, folder = small_run("tepo", "trainer.steps=1")
    trial = failed(folder)
    for session in ("another", "one"):
        lease_of_another_node(folder, age=1, session=session)
        Ends().on_trial_error(trial=trial)
        assert len(folder.events()) == (session == "one")


def test_damaged_events_do_not_end_the_other_runs(small_run, failed):
    _, folder = small_run("tepo", "trainer.steps=1")
    folder.events_file.write_bytes(b"garbage\n{}\n")
    Ends().on_trial_error(trial=failed(folder))
    assert folder.events_file.read_bytes() == b"garbage\n{}\n"


def test_several_learners_work_on_until_tune_has_ended_them(small_run, failed):
    _, folder = small_run("tepo", "trainer.steps=1")
    ends = Ends(learners=2)
    ends.stopped(failed(folder), 2)
    assert folder.events() == []
    ends.tell_rest()
    assert [event["event"] for event in folder.events()] == ["stopped"]


def test_what_a_full_disk_does_not_take_is_recorded_when_the_others_are_over(small_run, failed, monkeypatch):
    _, folder = small_run("tepo", "trainer.steps=1")
    ends, trial = Ends(), failed(folder)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("tepo_lab.execute.running.failures.append_line", full)
        patched.setattr("tepo_lab.execute.running.trainable.append_line", full)
        ends.on_trial_error(trial=trial)
        ends.stopped(trial, 2)
        with pytest.raises(OSError, match="No space left"):
            ends.tell_rest()
    ends.tell_rest()
    assert [event["event"] for event in folder.events()] == ["failed", "stopped"]


def test_the_driver_forgets_the_results_of_ended_trials(failed, tmp_path, capsys):
    """Tune itself keeps some 20 kB of each as long as the sweep goes on."""
    ends, trials = Ends(), []
    for name in ("one", "two"):
        trial = failed(RunFolder(tmp_path / name))
        trial.update_last_result({"trial_id": trial.trial_id, "training_iteration": 1, "step": 3, "time_total_s": 2.0})
        assert trial.run_metadata.metric_n_steps
        trials.append(trial)
    ends.on_trial_result(iteration=1, trials=trials, trial=trials[0], result=trials[0].last_result)
    ends.on_trial_complete(iteration=1, trials=trials, trial=trials[0])
    ends.on_trial_error(iteration=1, trials=trials, trial=trials[1])
    for trial in trials:
        assert (trial.run_metadata.metric_analysis, trial.run_metadata.metric_n_steps) == ({}, {})
        assert "step" not in trial.last_result
    assert capsys.readouterr().out == ""


def test_a_process_that_only_started_has_not_touched_its_run(config):
    values, folder = config
    trainable = TrialTrainable(values)
    assert not is_locked(folder)
    assert folder.events() == []
    trainable.stop()


def test_a_run_given_to_another_process_before_its_first_step_is_run_by_that_one(config):
    values, folder = config
    slow, quick = TrialTrainable(values), TrialTrainable(values)
    while not quick.train()["done"]:
        assert is_locked(folder)
    assert not is_locked(folder)
    assert slow.train()["done"]
    assert [event["event"] for event in folder.events()] == ["started", "checkpoint", "evaluated", "complete"]
    for each in (slow, quick):
        each.stop()


def test_one_process_serves_one_run_after_another(config, small_run):
    values, first = config
    second_spec, second = small_run("gspo", "trainer.steps=1")
    trainable = TrialTrainable(values)
    while not trainable.train()["done"]:
        pass
    assert trainable.reset_config(trial_config(second_spec, second))
    while not trainable.train()["done"]:
        pass
    assert [folder.events()[-1]["event"] for folder in (first, second)] == ["complete", "complete"]
    trainable.stop()


def test_a_failure_of_the_users_making_ends_the_run_and_says_why(small_run, monkeypatch):
    asked(monkeypatch, NoSuchModelError())
    spec, folder = small_run("tepo", "trainer.steps=1", "model.path=nowhere", "model.sha256=null")
    trainable = TrialTrainable(trial_config(spec, folder))
    assert trainable.train()["done"]
    last = folder.events()[-1]
    assert (last["event"], last["kind"]) == ("failed", "user")
    assert "model.path=nowhere: cannot be loaded (no such model)" in last["error"]
    assert "Traceback" in folder.log_file.read_text()
    assert not is_locked(folder)
    trainable.stop()


def test_a_hub_that_cannot_be_reached_is_left_to_tune_to_try_again(small_run, monkeypatch):
    asked(monkeypatch, ConnectionError("name or service not known"))
    spec, folder = small_run("tepo", "trainer.steps=1", "model.path=nowhere", "model.sha256=null")
    trainable = TrialTrainable(trial_config(spec, folder))
    with pytest.raises(HubUnreachableError, match="name or service not known"):
        trainable.train()
    assert (folder.events(), is_locked(folder)) == ([], False)
    trainable.stop()
