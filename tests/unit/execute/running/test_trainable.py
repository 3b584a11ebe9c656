"""A run's process as Tune uses it, without Ray's processes and without training."""

from __future__ import annotations

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError

from tepo_lab.execute.running.trainable import TrialTrainable
from tepo_lab.records.events import Failed
from tepo_lab.records.history import RunHistory, State
from tepo_lab.records.lock import is_locked
from tepo_lab.tasks.hub_data import HubUnreachableError
from tests.trial_config import trial_config


class NoSuchModelError(RepositoryNotFoundError):
    def __init__(self):
        Exception.__init__(self, "no such model")


@pytest.fixture
def hub_raises(monkeypatch):
    """Makes the hub answer every question with an error, whatever connection the machine has."""

    def answer_with(error):
        def answer(*arguments, **settings):
            raise error

        monkeypatch.setattr(HfApi, "model_info", answer)
        monkeypatch.setattr("tepo_lab.execute.running.attempt.WAITS", ())

    return answer_with


@pytest.fixture
def config(small_run, stub):
    spec, folder = small_run("tepo", "trainer.steps=2")
    return trial_config(spec, folder), folder


def finish(trainable):
    while not trainable.train()["done"]:
        pass


def test_a_process_that_only_started_has_not_touched_its_run(config):
    values, folder = config
    slow, quick = TrialTrainable(values), TrialTrainable(values)
    assert not is_locked(folder)
    assert RunHistory.read(folder).state is State.PENDING
    # The run is given to another process before the first one's first step.
    finish(quick)
    events = folder.events_file.read_bytes()
    assert slow.train()["done"]
    assert (folder.events_file.read_bytes(), is_locked(folder)) == (events, False)


def test_one_process_serves_one_run_after_another(config, small_run):
    values, first = config
    second_spec, second = small_run("gspo", "trainer.steps=1")
    trainable = TrialTrainable(values)
    finish(trainable)
    assert trainable.reset_config(trial_config(second_spec, second))
    finish(trainable)
    assert [RunHistory.read(folder).state for folder in (first, second)] == [State.COMPLETE] * 2


def test_a_users_failure_ends_the_run_and_the_process_goes_on(config, stub, small_run):
    values, folder = config

    def fail():
        raise ZeroDivisionError("in a grader")

    stub.hooks.append(fail)
    trainable = TrialTrainable(values)
    assert trainable.train()["done"]
    outcome = RunHistory.read(folder).outcome
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.error_type) == ("user", "ZeroDivisionError")
    assert "Traceback" in folder.log_file.read_text()
    assert (is_locked(folder), folder.attempt_file.exists()) == (False, False)
    stub.hooks.clear()
    spec, other = small_run("gspo", "trainer.steps=1")
    trainable.reset_config(trial_config(spec, other))
    finish(trainable)
    assert RunHistory.read(other).state is State.COMPLETE


@pytest.mark.parametrize("error", [MemoryError("none left"), OSError(28, "No space left on device")])
def test_a_failure_of_the_machine_is_tunes_to_try_again(error, config, stub):
    values, folder = config

    def fail():
        raise error

    stub.hooks.append(fail)
    with pytest.raises(type(error)):
        TrialTrainable(values).train()
    assert (RunHistory.read(folder).state, is_locked(folder)) == (State.INTERRUPTED, False)
    assert folder.attempt_file.exists()


def test_a_model_that_the_hub_does_not_know_is_the_users_failure(small_run, hub_raises):
    hub_raises(NoSuchModelError())
    spec, folder = small_run("tepo", "trainer.steps=1", "model.path=nowhere", "model.sha256=null")
    assert TrialTrainable(trial_config(spec, folder)).train()["done"]
    outcome = RunHistory.read(folder).outcome
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.error_type) == ("user", "ModelError")
    assert "model.path=nowhere" in outcome.error


def test_a_hub_that_cannot_be_reached_is_tunes_to_try_again(small_run, hub_raises):
    hub_raises(ConnectionError("name or service not known"))
    spec, folder = small_run("tepo", "trainer.steps=1", "model.path=nowhere", "model.sha256=null")
    with pytest.raises(HubUnreachableError):
        TrialTrainable(trial_config(spec, folder)).train()
    assert (RunHistory.read(folder).state, is_locked(folder)) == (State.PENDING, False)
