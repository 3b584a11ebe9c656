"""Sessions that want the same run, for as many steps or for others: the one that carries it out asks."""

from __future__ import annotations

import shutil

import pytest

from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.running.attempt import Attempt
from tepo_lab.execute.running.prepare import prepare
from tepo_lab.registry.expand import planned


def session(home, spec, name):
    """What a session that wants a run writes before it begins, and its trial."""
    each = entry(home, planned(spec))
    prepare([each], home / name)
    config = {"folder": str(each.folder.path), "drafts": str(home / name), "stop": [], "search": None, "session": name}
    return Attempt(config)


def finish(attempt):
    """Carry an attempt out. Whether there was anything to do."""
    did = False
    while not attempt.is_over and attempt.advance() is not None:
        did = True
    attempt.close()
    return did


def steps_and_evaluations(folder):
    evaluated = [event["step"] for event in folder.events() if event["event"] == "evaluated"]
    return [step["step"] for step in folder.metrics()], evaluated


@pytest.fixture
def shorter_and_longer(small_run):
    """One run as two sessions want it, for 2 steps and for 4; its folder and the home."""
    spec, folder = small_run("tepo", "trainer.steps=2")
    longer, _ = small_run("tepo", "trainer.steps=4")
    return spec, longer, folder, folder.path.parent.parent


def test_each_session_gets_the_steps_that_it_asks_for(shorter_and_longer):
    spec, longer, folder, home = shorter_and_longer
    first, second = session(home, spec, "first"), session(home, longer, "second")
    assert finish(first)
    assert folder.run()["spec"]["trainer"]["steps"] == 2
    assert steps_and_evaluations(folder) == ([1, 2], [2])
    assert finish(second)
    assert steps_and_evaluations(folder) == ([1, 2, 3, 4], [2, 4])
    assert not finish(session(home, spec, "third"))


def test_a_run_that_another_session_has_taken_past_what_is_asked_is_left_to_it(shorter_and_longer):
    spec, longer, folder, home = shorter_and_longer
    waits, goes = session(home, spec, "waits"), session(home, longer, "goes")
    assert finish(goes)
    before = folder.events_file.read_bytes(), folder.run_file.read_bytes()
    assert not finish(waits)
    assert (folder.events_file.read_bytes(), folder.run_file.read_bytes()) == before
    assert entry(home, planned(spec)).state == "past"


def test_a_run_file_is_written_before_the_run_begins_where_there_is_none(small_run):
    longer, folder = small_run("tepo", "trainer.steps=4")
    each = entry(folder.path.parent.parent, planned(longer))
    folder.run_file.write_bytes(b"{}")
    prepare([each], folder.path / "drafts")
    assert folder.run_file.read_bytes() == b"{}"
    folder.run_file.unlink()
    prepare([each], folder.path / "drafts")
    assert folder.run()["spec"]["trainer"]["steps"] == 4
    assert (folder.run()["id"], folder.run()["created"] > 0) == (each.planned.run_id, True)


@pytest.mark.parametrize("damage", [lambda path: path.write_text('{"id": '), lambda path: path.unlink()])
def test_a_run_that_lacks_nothing_but_its_run_file_is_done(small_run, damage):
    spec, folder = small_run("tepo", "trainer.steps=1")
    home = folder.path.parent.parent
    assert finish(session(home, spec, "first"))
    before = folder.events_file.read_bytes()
    damage(folder.run_file)
    assert not finish(session(home, spec, "second"))
    assert folder.events_file.read_bytes() == before
    assert folder.run()["id"] == planned(spec).run_id


def test_a_trial_whose_session_is_over_does_nothing(small_run):
    spec, folder = small_run("tepo", "trainer.steps=2")
    attempt = session(folder.path.parent.parent, spec, "over")
    shutil.rmtree(folder.path.parent.parent / "over")
    assert not finish(attempt)
    assert (folder.events(), folder.lease_file.exists(), folder.attempt_file.exists()) == ([], False, False)
