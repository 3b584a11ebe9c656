"""What the driver records as trials of Tune end, without Ray's processes."""

from __future__ import annotations

import errno

import pytest
from ray.train._internal.storage import StorageContext
from ray.tune.experiment import Trial
from ray.tune.registry import register_trainable

from tepo_lab.execute.running.trainable import TrialTrainable
from tepo_lab.execute.running.tune_callback import TuneCallback
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory
from tepo_lab.records.lock import RunLock
from tests.leases import lease_of_another_node


def events(folder):
    return [event.event for event in RunHistory.read(folder).events]


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


@pytest.fixture
def folder(small_run):
    return small_run("tepo", "trainer.steps=1")[1]


def test_a_failure_is_recorded_when_it_happens_but_never_over_another_sessions_run(folder, failed):
    callback, trial = TuneCallback(), failed(folder)
    with RunLock(folder):
        callback.on_trial_error(trial=trial)
    callback.record_rest()
    assert events(folder) == []
    callback.on_trial_error(trial=trial)
    callback.record_rest()
    (event,) = RunHistory.read(folder).events
    assert (event.event, event.kind, event.error) == ("failed", "machine", "no memory left")


def test_a_process_that_died_on_another_node_has_failed_though_its_lease_is_fresh(folder, failed):
    for session, recorded in (("another", []), ("one", ["failed"])):
        lease_of_another_node(folder, age=1, session=session)
        TuneCallback().on_trial_error(trial=failed(folder))
        assert events(folder) == recorded


def test_several_learners_work_on_until_tune_has_ended_them(folder, failed):
    callback = TuneCallback(learners=2)
    callback.stopped(failed(folder), 2)
    assert events(folder) == []
    callback.record_rest()
    assert events(folder) == ["stopped"]


def test_what_a_full_disk_does_not_take_is_recorded_when_the_others_are_over(folder, failed, monkeypatch):
    callback, trial = TuneCallback(), failed(folder)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("tepo_lab.records.history.append_line", full)
        callback.on_trial_error(trial=trial)
        callback.stopped(trial, 2)
        with pytest.raises(OSError, match="No space left"):
            callback.record_rest()
    callback.record_rest()
    assert events(folder) == ["failed", "stopped"]


def test_the_driver_forgets_the_results_of_ended_trials(failed, tmp_path, capsys):
    """Tune itself stores some 20 kB of each as long as the sweep goes on."""
    callback, trials = TuneCallback(), []
    for name in ("one", "two"):
        trial = failed(RunFolder(tmp_path / name))
        trial.update_last_result({"trial_id": trial.trial_id, "training_iteration": 1, "step": 3, "time_total_s": 2.0})
        assert trial.run_metadata.metric_n_steps
        trials.append(trial)
    callback.on_trial_result(iteration=1, trials=trials, trial=trials[0], result=trials[0].last_result)
    callback.on_trial_complete(iteration=1, trials=trials, trial=trials[0])
    callback.on_trial_error(iteration=1, trials=trials, trial=trials[1])
    for trial in trials:
        assert (trial.run_metadata.metric_analysis, trial.run_metadata.metric_n_steps) == ({}, {})
        assert "step" not in trial.last_result
    assert capsys.readouterr().out == ""
