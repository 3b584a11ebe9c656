from __future__ import annotations

import json

import pytest
from tepo_lab.records.repair import set_aside_damaged

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.actions import damaged_seeds, entry, families, find_folder
from tepo_lab.execute.planning.plan import make_plan
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.records.files import RunFolder, append_line
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import Expansion, expand, load_sweep, planned
from tests.generation_columns import write_evaluation


@pytest.fixture
def run():
    return planned(compose_run("tepo", "nano", ("trainer.steps=4",), seed=1))


def add(found, event, step, **details):
    append_line(found.folder.events_file, {"time": 1.0, "event": event, "step": step, **details})


def evaluated(found, step):
    write_evaluation(found.folder, step, found.planned.spec.suite)


@pytest.mark.parametrize("fault", [{"ungraded": 1}, {"lacking": 1}])
def test_an_evaluation_not_graded_in_full_counts_for_nothing(tmp_path, run, fault):
    found = completed(tmp_path, run)
    write_evaluation(found.folder, 4, run.spec.suite, **fault)
    blocked = entry(tmp_path, run)
    assert (blocked.state, blocked.action) == ("damaged", "blocked")
    mend = f"tepo-lab regrade {found.folder.name} gives it" if "ungraded" in fault else f"remove {found.folder.path} to"
    assert mend in blocked.reason
    found.folder.checkpoint(4).mkdir(parents=True)
    again = make_plan(tmp_path, [Expansion(load_sweep("panel-e")[0], (run,))])
    assert [(each.action, each.steps_done) for each in again.entries] == [("resume", 4)]
    assert again.seconds_left(again.entries[0]) == run.spec.profile.estimates.evaluation_seconds


def completed(home, run):
    """The run as it stands, complete and evaluated at step 4."""
    found = entry(home, run)
    prepare_folder(found)
    add(found, "complete", 4)
    evaluated(found, 4)
    return found


def test_every_state_follows_from_the_records(tmp_path, run):
    found = entry(tmp_path, run)
    assert (found.state, found.action) == ("pending", "run")
    prepare_folder(found)
    add(found, "started", 0)
    add(found, "checkpoint", 2)
    found = entry(tmp_path, run)
    assert (found.state, found.action, found.steps_done) == ("interrupted", "resume", 2)
    add(found, "failed", 3, kind="user", error="no such thing")
    assert (entry(tmp_path, run).state, entry(tmp_path, run).action) == ("failed", "retry")
    assert entry(tmp_path, run).reason == "failed (user): no such thing"
    add(found, "resumed", 2)
    add(found, "complete", 4)
    assert (entry(tmp_path, run).state, entry(tmp_path, run).action) == ("damaged", "blocked")
    assert "its evaluation at step 4 is damaged or gone, and so are its checkpoints" in entry(tmp_path, run).reason
    found.folder.checkpoint(2).mkdir(parents=True)
    assert (entry(tmp_path, run).state, entry(tmp_path, run).action) == ("interrupted", "resume")
    assert "damaged, not graded in full, or gone; the same command again makes it anew" in entry(tmp_path, run).reason
    evaluated(found, 4)
    assert (entry(tmp_path, run).state, entry(tmp_path, run).action) == ("complete", "skip")


def test_a_run_made_from_other_files_than_those_that_lie_there_now_is_blocked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.jsonl"
    own.write_text('{"problem": "1+2=", "answer": "3"}\n')
    run = planned(compose_run("tepo", "nano", ("trainer.steps=4", "data=gsm8k", "data.path=own.jsonl"), seed=1))
    completed(tmp_path, run)
    assert entry(tmp_path, run).state == "complete"
    own.write_text('{"problem": "1+2=", "answer": "7"}\n')
    blocked = entry(tmp_path, run)
    assert (blocked.state, blocked.action, blocked.steps_done) == ("other files", "blocked", 4)
    assert blocked.reason.startswith("made with other files of training data; restore the files")
    own.unlink()
    assert entry(tmp_path, run).state == "complete"


def test_a_run_that_has_made_nothing_begins_anew_with_the_files_mended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.jsonl"
    own.write_text('{"problem": "1+2=", "answer": ""}\n')
    run = planned(compose_run("tepo", "nano", ("trainer.steps=4", "data=gsm8k", "data.path=own.jsonl"), seed=1))
    found = entry(tmp_path, run)
    prepare_folder(found)
    add(found, "failed", 0, kind="user", error="no such thing")
    own.write_text('{"problem": "1+2=", "answer": "3"}\n')
    again = entry(tmp_path, run)
    assert (again.state, again.action) == ("failed", "retry")
    prepare_folder(again)
    assert "earlier_provenance" not in again.folder.run()


def test_asking_for_more_steps_extends_a_complete_run(tmp_path, run):
    completed(tmp_path, run).folder.checkpoint(4).mkdir(parents=True)
    longer = planned(compose_run("tepo", "nano", ("trainer.steps=9",), seed=1))
    assert longer.run_id == run.run_id
    assert entry(tmp_path, longer).action == "extend"
    shorter = planned(compose_run("tepo", "nano", ("trainer.steps=4",), seed=1))
    assert entry(tmp_path, shorter).action == "skip"


def test_a_complete_run_without_the_checkpoint_of_its_end_is_not_gone_on_with(tmp_path, run):
    folder = completed(tmp_path, run).folder
    longer = planned(compose_run("tepo", "nano", ("trainer.steps=9",), seed=1))
    for left in ([], [2]):
        for step in left:
            folder.checkpoint(step).mkdir(parents=True)
        plan = make_plan(tmp_path, [Expansion(load_sweep("panel-e")[0], (longer,))])
        assert [(each.action, each.steps_done) for each in plan.entries] == [("blocked", 4)]
        said = "complete at step 4, asked for 9, and its checkpoint to go on from is gone"
        assert plan.entries[0].reason == f"{said}; remove {folder.path} to run it anew"
        assert plan.seconds_left(plan.entries[0]) == 0
    # Nothing is lost where the evaluation is not whole: it is made again on the way.
    write_evaluation(folder, 4, run.spec.suite, lacking=1)
    assert entry(tmp_path, longer).action == "extend"
    write_evaluation(folder, 4, run.spec.suite)
    assert (entry(tmp_path, run).state, entry(tmp_path, longer).action) == ("complete", "blocked")


def test_a_collapsed_run_is_a_result_and_not_run_again(tmp_path, run):
    found = entry(tmp_path, run)
    prepare_folder(found)
    add(found, "collapsed", 3, rule="reward/mean < 0.02")
    found.folder.checkpoint(3).mkdir(parents=True)
    assert entry(tmp_path, run).action == "resume"
    assert "collapsed at step 3; its evaluation is damaged, not graded in full, or gone" in entry(tmp_path, run).reason
    evaluated(found, 3)
    found = entry(tmp_path, run)
    assert (found.action, found.reason) == ("skip", "collapsed at step 3 (reward/mean < 0.02)")


def test_a_damaged_line_among_the_events_blocks_that_run_alone_and_names_the_mend(tmp_path, run):
    found = entry(tmp_path, run)
    prepare_folder(found)
    add(found, "started", 0)
    found.folder.events_file.write_text("garbage\n" + found.folder.events_file.read_text())
    found = entry(tmp_path, run)
    assert (found.state, found.action) == ("damaged", "blocked")
    assert "events.jsonl:1 cannot be read" in found.reason


def test_a_run_made_under_another_name_is_found_by_its_id(tmp_path, run):
    found = entry(tmp_path, run)
    prepare_folder(found)
    other = tmp_path / "runs" / f"renamed-nano-s1-{run.run_id[:8]}"
    found.folder.path.rename(other)
    assert find_folder(tmp_path, run).path == other


def test_a_damaged_run_file_is_passed_over_named_and_known_by_its_folder(tmp_path, run, capsys):
    found = entry(tmp_path, run)
    prepare_folder(found)
    other = planned(compose_run("tepo", "nano", ("trainer.steps=4",), seed=2))
    prepare_folder(entry(tmp_path, other))
    assert families(tmp_path) == {run.family}
    assert (damaged_seeds(tmp_path, run), capsys.readouterr().err) == ((), "")
    found.folder.run_file.write_text('{"id": ')
    assert families(tmp_path) == {run.family}
    said = capsys.readouterr().err
    assert said.startswith(f"tepo-lab: note: run {run.folder} is passed over: ")
    assert said.endswith("the command that ran it writes it anew.\n")
    assert said.count("\n") == 1
    assert damaged_seeds(tmp_path, other) == (1,)
    # One that is another run's says nothing of this one; nor does one that is gone.
    run_file = RunFolder(tmp_path / "runs" / other.folder).run_file
    found.folder.run_file.write_bytes(run_file.read_bytes())
    with pytest.raises(RecordError, match=r"it is of seed 2 and id .*, its folder of seed 1"):
        found.folder.run()
    assert damaged_seeds(tmp_path, other) == (1,)
    found.folder.run_file.unlink()
    assert damaged_seeds(tmp_path, other) == ()
    add(found, "started", 0)
    assert damaged_seeds(tmp_path, other) == (1,)
    assert damaged_seeds(tmp_path, planned(compose_run("tepo", "nano", ("trainer.learning_rate=1e-3",), seed=1))) == ()


def test_a_plan_counts_shared_runs_once_and_costs_only_what_is_left(tmp_path):
    expansions = [expand(*load_sweep("panel-e", ["seeds=[1]"])), expand(*load_sweep("panel-e", ["seeds=[1,2]"]))]
    plan = make_plan(tmp_path, expansions)
    assert (plan.training_runs, plan.base_evaluations) == (8, 1)
    spec = plan.entries[1].planned.spec
    whole = plan.seconds_left(plan.entries[1])
    assert whole == spec.steps * spec.profile.estimates.seconds_per_step + spec.profile.estimates.evaluation_seconds
    prepare_folder(plan.entries[1])
    add(plan.entries[1], "checkpoint", 10)
    halfway = make_plan(tmp_path, expansions)
    assert halfway.seconds_left(halfway.entries[1]) == whole - 10 * spec.profile.estimates.seconds_per_step
    assert json.loads(json.dumps(plan.as_json()))["runs"][0]["arm"] == "base"


def test_no_state_of_a_run_lets_a_shorter_request_go_back_on_it(tmp_path, run):
    shorter = planned(compose_run("tepo", "nano", ("trainer.steps=2",), seed=1))
    found = entry(tmp_path, run)
    prepare_folder(found)
    found.folder.checkpoint(4).mkdir(parents=True)
    reason = "at step 4, past 2 without an evaluation there"
    for event, details in (
        ("checkpoint", {}),
        ("collapsed", {"rule": "reward/mean < 0.02"}),
        ("complete", {}),
        ("failed", {"kind": "user", "error": "no such thing"}),
    ):
        add(found, event, 4, **details)
        assert (entry(tmp_path, shorter).state, entry(tmp_path, shorter).reason) == ("past", reason), event
    found.folder.run_file.write_text('{"id": ')
    assert (entry(tmp_path, shorter).action, entry(tmp_path, shorter).reason) == ("blocked", reason)
    evaluated(found, 2)
    assert (
        entry(tmp_path, shorter).reason == "at step 4, past 2, and not whole; ask for trainer.steps=4 to go on with it"
    )
    assert (entry(tmp_path, run).state, entry(tmp_path, run).action) == ("interrupted", "resume")
    found.folder.run_file.unlink()
    assert entry(tmp_path, shorter).action == "blocked"


def evaluated_on_the_way(home):
    """A run asked for evaluations at 2 and 4, whose first was made and is gone."""
    both = planned(compose_run("tepo", "nano", ("trainer.steps=4", "trainer.evaluate_at=[2]"), seed=1))
    found = entry(home, both)
    prepare_folder(found)
    add(found, "evaluated", 2)
    return both, found


def test_a_finished_run_does_not_wait_for_an_evaluation_on_the_way_that_was_lost(tmp_path):
    both, found = evaluated_on_the_way(tmp_path)
    add(found, "evaluated", 4)
    add(found, "complete", 4)
    evaluated(found, 4)
    assert (entry(tmp_path, both).state, entry(tmp_path, both).action) == ("complete", "skip")
    shorter = planned(compose_run("tepo", "nano", ("trainer.steps=2",), seed=1))
    assert (entry(tmp_path, shorter).state, entry(tmp_path, shorter).action) == ("past", "blocked")


def test_a_marked_evaluation_without_a_checkpoint_blocks_its_run_until_a_whole_file_is_put_in_its_place(tmp_path, run):
    found = completed(tmp_path, run)
    damaged = bytearray(found.folder.generations(4).read_bytes())
    damaged[40:49] = bytes(9)
    found.folder.generations(4).write_bytes(damaged)
    # The end of the file does not tell.
    assert entry(tmp_path, run).state == "complete"
    assert set_aside_damaged(found.folder) == []
    blocked = entry(tmp_path, run)
    assert (blocked.state, blocked.action) == ("damaged", "blocked")
    assert blocked.reason.endswith(f"remove {found.folder.path} to run it anew")
    evaluated(found, 4)
    assert entry(tmp_path, run).state == "complete"


def test_what_is_asked_for_now_is_not_waited_for_because_a_later_end_was_lost(tmp_path, run):
    shorter = planned(compose_run("tepo", "nano", ("trainer.steps=2",), seed=1))
    found = completed(tmp_path, run)
    evaluated(found, 2)
    found.folder.generations(4).unlink()
    assert (entry(tmp_path, run).state, entry(tmp_path, shorter).state) == ("damaged", "complete")


def test_an_evaluation_on_the_way_that_no_run_makes_again_costs_nothing(tmp_path):
    both, found = evaluated_on_the_way(tmp_path)
    add(found, "checkpoint", 3)
    plan = make_plan(tmp_path, [Expansion(load_sweep("panel-e")[0], (both,))])
    declared = both.spec.profile.estimates
    assert plan.seconds_left(plan.entries[0]) == declared.seconds_per_step + declared.evaluation_seconds
