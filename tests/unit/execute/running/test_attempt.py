"""Sessions that want the same run, for as many steps or for others: the one that carries it out asks."""

from __future__ import annotations

import shutil

import pytest

from tepo_lab.execute.planning import hub_commits
from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.planning.made_with import hardware
from tepo_lab.execute.running.attempt import Attempt
from tepo_lab.execute.running.prepare import request_of, write_requests
from tepo_lab.records.files import write_json
from tepo_lab.records.history import RunHistory, State
from tepo_lab.records.lock import is_locked
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned
from tepo_lab.schema.profile import DatasetData
from tests.trial_config import trial_config


def finish(attempt):
    """Carry an attempt out. Whether there was anything to do."""
    has_worked = False
    while not attempt.is_over and attempt.advance() is not None:
        has_worked = True
    attempt.close()
    return has_worked


def session(spec, folder, name):
    return Attempt(trial_config(spec, folder, session=name))


def test_the_trial_is_opened_at_the_commits_recorded_with_the_nodes_hardware(tmp_path, monkeypatch, stub):
    spec = compose_run("tepo", "nano", seed=1)
    spec = spec.model_copy(update={"data": DatasetData(kind="dataset", hub="some/problems")})
    folder = entry(tmp_path, planned(spec)).folder
    monkeypatch.setattr(hub_commits, "_COMMITS", {("data set", "some/problems", None, None): "c" * 40})
    assert finish(session(spec, folder, "one"))
    ((used, given),) = stub.opened
    assert (used.data.revision, used.model, given["hardware"]) == ("c" * 40, spec.model, hardware())
    # What is asked for, and with it the run's identity, is as it was.
    history = RunHistory.read(folder)
    assert (history.spec["data"]["revision"], history.id) == (None, planned(spec).run_id)


def test_a_run_is_locked_from_the_first_advance_to_its_end(small_run, stub):
    spec, folder = small_run("tepo", "trainer.steps=2")
    attempt = session(spec, folder, "one")
    assert not is_locked(folder)
    stub.hooks.append(lambda: seen.append(is_locked(folder)))
    seen: list[bool] = []
    assert finish(attempt)
    assert (seen, is_locked(folder), folder.attempt_file.exists()) == ([True], False, False)
    assert RunHistory.read(folder).state is State.COMPLETE


def test_what_another_session_has_finished_is_left_to_it(small_run, stub):
    spec, folder = small_run("tepo", "trainer.steps=2")
    longer, _ = small_run("tepo", "trainer.steps=4")
    waits, goes = session(spec, folder, "waits"), session(longer, folder, "goes")
    assert finish(goes)
    before = folder.events_file.read_bytes(), folder.run_file.read_bytes()
    assert not finish(waits)
    assert not finish(session(longer, folder, "late"))
    assert (folder.events_file.read_bytes(), folder.run_file.read_bytes()) == before


def test_a_run_that_is_taken_over_is_left_without_a_failure(small_run, stub):
    spec, folder = small_run("tepo", "trainer.steps=2")
    attempt = session(spec, folder, "one")

    def take_over():
        write_json(folder.lease_file, {"host": "elsewhere", "pid": 1, "token": "another"})
        raise ValueError("what the other process does to the records")

    stub.hooks.append(take_over)
    assert attempt.advance() is None
    assert folder.lease_file.exists()
    assert RunHistory.read(folder).outcome is None


def test_an_attempt_whose_session_is_over_does_nothing(small_run, stub):
    spec, folder = small_run("tepo", "trainer.steps=2")
    attempt = session(spec, folder, "over")
    shutil.rmtree(folder.home / "ray")
    assert not finish(attempt)
    assert (stub.opened, folder.lease_file.exists(), folder.attempt_file.exists()) == ([], False, False)


def test_a_request_becomes_the_run_file_of_a_run_that_has_none(small_run):
    spec, folder = small_run("tepo", "trainer.steps=4")
    asked = entry(folder.home, planned(spec))
    folder.run_file.write_bytes(b"{}")
    write_requests([asked], folder.home / "requests")
    assert folder.run_file.read_bytes() == b"{}"
    folder.run_file.unlink()
    write_requests([asked], folder.home / "requests")
    history = RunHistory.read(folder)
    assert (history.id, history.asked_steps) == (planned(spec).run_id, 4)
    assert history.run["spec"] == request_of(asked)["spec"]


@pytest.mark.integration
def test_each_session_gets_the_steps_that_it_asks_for(small_run):
    spec, folder = small_run("tepo", "trainer.steps=2")
    longer, _ = small_run("tepo", "trainer.steps=4")
    for asked, steps, evaluated in ((spec, 2, {2}), (longer, 4, {2, 4})):
        assert finish(session(asked, folder, f"for {steps}"))
        history = RunHistory.read(folder)
        assert (history.asked_steps, len(history.metrics()), set(history.evaluations)) == (steps, steps, evaluated)
    assert not finish(session(spec, folder, "third"))
