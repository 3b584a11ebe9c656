"""Where runs stand, told from the ends of their records."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from tepo_lab.errors import ConfigError
from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.planning.named_runs import chosen_folders
from tepo_lab.execute.running.prepare import prepare_folder, write_sweep
from tepo_lab.execute.showing.status import (
    Status,
    as_json,
    status_line,
    status_of,
    status_table,
    statuses,
    summary,
    watch,
)
from tepo_lab.execute.showing.why import causes
from tepo_lab.records.files import append_line, tail, write_json
from tepo_lab.records.lock import RunLock
from tepo_lab.registry.expand import expand, load_sweep
from tests.generation_columns import write_evaluation
from tests.leases import lease_of_another_machine

TWO_ARMS = ("arms=[tepo_no_kl,tepo]", "seeds=[1,2]", "base=false")


@pytest.fixture
def expansion():
    return expand(*load_sweep("panel-e", TWO_ARMS))


@pytest.fixture
def folders(tmp_path, expansion):
    """The sweep's four runs, begun or not."""
    return [entry(tmp_path, each).folder for each in expansion.runs]


def begin(home, expansion, number, steps=4, seconds=3.0):
    found = entry(home, expansion.runs[number])
    prepare_folder(found)
    append_line(found.folder.events_file, {"time": 1.0, "event": "started", "step": 0})
    for step in range(1, steps + 1):
        values = {"step": step, "reward/mean": step / 10, "seconds/step": seconds, "time": 1.0 + step}
        append_line(found.folder.metrics_file, values)
    return found.folder


def test_every_state_is_told_with_step_reward_and_time_left(tmp_path, expansion):
    spec = expansion.runs[0].spec
    folder = begin(tmp_path, expansion, 0)
    told = status_of(folder)
    left = (spec.steps - 4) * 3.0 + spec.profile.estimates.evaluation_seconds
    assert told == Status(
        folder.name, "interrupted", 4, spec.steps, 0.4, left, "the command that ran it goes on from here", 5.0
    )
    append_line(folder.events_file, {"time": 8.0, "event": "evaluated", "step": 4, "seconds": 7.0})
    assert status_of(folder).seconds_left == (spec.steps - 4) * 3.0 + 7.0
    with RunLock(folder):
        assert status_of(folder).state == "running"
    write_evaluation(folder, 4, spec.suite)
    # Complete at as many steps as it was asked for before.
    append_line(folder.events_file, {"time": 9.0, "event": "complete", "step": 4})
    gone = (
        f"complete at step 4, asked for {spec.steps}, and its checkpoint to go on from is gone; remove {folder.path} to"
    )
    assert (status_of(folder).state, status_of(folder).detail) == ("blocked", f"{gone} run it anew")
    folder.checkpoint(4).mkdir(parents=True)
    assert (status_of(folder).state, status_of(folder).is_over) == ("interrupted", False)
    write_evaluation(folder, spec.steps, spec.suite)
    for event, details, said in (
        ("complete", {"step": spec.steps}, "metrics.jsonl ends at step 4"),
        ("collapsed", {"rule": "reward/mean < 0.02"}, "reward/mean < 0.02"),
        ("stopped", {"by": "asha"}, "by the search (asha)"),
        ("failed", {"kind": "user", "error": "no such model"}, "user: no such model"),
    ):
        append_line(folder.events_file, {"time": 9.0, "event": event, "step": 4} | details)
        told = status_of(folder)
        assert (told.state, told.detail, told.seconds_left, told.is_over) == (event, said, None, True)


def test_metrics_that_a_finished_run_has_lost_are_told(tmp_path, expansion):
    steps = expansion.runs[0].spec.steps
    folder = begin(tmp_path, expansion, 0, steps=steps)
    write_evaluation(folder, steps, expansion.runs[0].spec.suite)
    append_line(folder.events_file, {"time": 9.0, "event": "complete", "step": steps})
    assert (status_of(folder).detail, causes([folder])) == ("", [])
    lines = folder.metrics_file.read_bytes().splitlines(keepends=True)
    folder.metrics_file.write_bytes(b"".join(lines)[:-9])
    (cause,) = causes([folder])
    assert status_of(folder).detail == f"metrics.jsonl ends at step {steps - 1}"
    assert cause.error == f"{folder.metrics_file} has the first {steps - 1} of its {steps} steps"
    assert cause.mend == f"put the file back, or remove {folder.path} to run it anew."
    folder.metrics_file.write_bytes(b"".join([lines[0], *lines[2:]]))
    (cause,) = causes([folder])
    assert (cause.kind, cause.error) == ("damaged", f"{folder.metrics_file} has step 3 in the place of step 2")


def test_a_run_that_has_not_begun_is_pending_and_a_damaged_one_says_the_mend(tmp_path, expansion, folders):
    assert status_of(folders[0]) == Status(folders[0].name, "pending")
    folder = begin(tmp_path, expansion, 1)
    folder.run_file.write_text("{")
    assert status_of(folder).state == "damaged"
    assert "the command that ran it writes it anew" in status_of(folder).detail
    folder.run_file.write_text('{"spec": {}}')
    assert "is damaged (it has no id)" in status_of(folder).detail
    begin(tmp_path, expansion, 1)
    run = folder.run()
    for profile in (None, {}, {"estimates": {"seconds_per_step": None}}):
        write_json(folder.run_file, run | {"spec": run["spec"] | {"profile": profile}})
        assert (status_of(folder).state, "is damaged" in status_of(folder).detail) == ("damaged", True)


def test_a_run_that_lost_its_evaluation_and_its_checkpoints_is_blocked(tmp_path, expansion):
    folder, steps = begin(tmp_path, expansion, 0), expansion.runs[0].spec.steps
    append_line(folder.events_file, {"time": 9.0, "event": "complete", "step": steps})
    told = status_of(folder)
    assert (told.state, told.is_over) == ("blocked", True)
    assert told.detail.endswith(f"and so are its checkpoints; remove {folder.path} to run it anew")
    cause = causes([folder])[0]
    assert (cause.kind, cause.runs, cause.mend) == ("damaged", [folder.name], f"remove {folder.path} to run it anew.")
    folder.checkpoint(steps).mkdir(parents=True)
    assert status_of(folder).state == "interrupted"
    assert [each.kind for each in causes([folder])] == ["stopped"]


def test_an_evaluation_not_graded_in_full_is_told_before_the_sweep_is_run_again(tmp_path, expansion):
    folder, spec = begin(tmp_path, expansion, 0), expansion.runs[0].spec
    append_line(folder.events_file, {"time": 9.0, "event": "complete", "step": spec.steps})
    write_evaluation(folder, spec.steps, spec.suite)
    assert status_of(folder).state == "complete"
    write_evaluation(folder, spec.steps, spec.suite, ungraded=3)
    told = status_of(folder)
    assert (told.state, told.is_over) == ("blocked", True)
    assert told.detail.endswith(f"; tepo-lab regrade {folder.name} gives it the grades that it lacks")
    assert [each.runs for each in causes([folder])] == [[folder.name]]
    folder.checkpoint(spec.steps).mkdir(parents=True)
    told = status_of(folder)
    assert (told.state, told.is_over) == ("interrupted", False)
    assert told.seconds_left == spec.profile.estimates.evaluation_seconds + (0 if told.step == spec.steps else None)
    fault = "its evaluation is damaged, not graded in full, or gone"
    assert told.detail == f"{fault}; the same command again makes it anew"
    (cause,) = causes([folder])
    assert (cause.kind, cause.error) == ("stopped", fault)
    assert cause.mend == "the same command again makes it anew."


def test_the_evaluation_of_a_run_asked_for_more_steps_is_not_said_to_be_made_anew(tmp_path, expansion):
    folder, spec = begin(tmp_path, expansion, 0), expansion.runs[0].spec
    append_line(folder.events_file, {"time": 9.0, "event": "complete", "step": 4})
    folder.checkpoint(4).mkdir(parents=True)
    write_evaluation(folder, 4, spec.suite, ungraded=3)
    told = status_of(folder)
    assert (told.state, told.detail) == ("interrupted", "the command that ran it goes on from here")
    assert causes([folder]) == []


def test_runs_to_be_evaluated_again_are_told_apart_from_those_that_died(tmp_path, expansion):
    died, *lacking = (begin(tmp_path, expansion, number) for number in range(3))
    for folder in lacking:
        append_line(folder.events_file, {"time": 9.0, "event": "collapsed", "step": 4, "rule": "reward/mean < 0.02"})
        folder.checkpoint(4).mkdir(parents=True)
    assert [(each.kind, len(each.runs), each.mend) for each in causes([died, *lacking])] == [
        ("stopped", 2, "the same command again makes it anew."),
        ("stopped", 1, "give the same command again; it goes on from the newest checkpoint."),
    ]


def test_only_the_end_of_a_long_log_is_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "{"x" * 200}": 0.5}}\n' for step in range(1, 5001)))
    lines = tail(path)
    assert [each["step"] for each in lines] == list(range(4981, 5001))
    assert [each["step"] for each in tail(path, 3)] == [4998, 4999, 5000]
    # As far back as a fixed number of bytes go, whatever the number of lines asked for.
    assert 60 < len(tail(path, 5000)) < 80
    path.write_text('{"step": 1}\n{"step": 2}\nnot json\n[3]\n{"step": 4')
    assert tail(path) == [{"step": 1}, {"step": 2}]
    assert tail(tmp_path / "nowhere") == []


def test_runs_are_chosen_by_sweep_by_run_and_by_the_beginning_of_either(tmp_path, expansion, folders):
    begun = [begin(tmp_path, expansion, number) for number in (0, 3)]
    assert [each.name for each in chosen_folders(tmp_path)] == sorted(each.name for each in begun)
    # As the registry has the sweep with these overrides, then as it was last run here.
    wanted = [each.name for each in folders]
    assert [each.name for each in chosen_folders(tmp_path, ["panel-e", *TWO_ARMS])] == wanted
    write_sweep(tmp_path, expansion, folders[:3])
    assert [each.name for each in chosen_folders(tmp_path, ["panel-e"])] == wanted[:3]
    assert chosen_folders(tmp_path, [begun[0].name]) == [begun[0]]
    assert chosen_folders(tmp_path, [begun[1].name.rpartition("-")[2][:6]]) == [begun[1]]
    assert chosen_folders(tmp_path, ["tepo_no_kl", begun[0].name]) == [begun[0]]
    with pytest.raises(ConfigError, match="Did you mean 'panel-e'"):
        chosen_folders(tmp_path, ["panel-f"])
    with pytest.raises(ConfigError, match="name the sweep too"):
        chosen_folders(tmp_path, ["seeds=[1]"])


def test_states_are_counted_and_printed_as_lines_table_and_json(tmp_path, expansion, folders):
    begin(tmp_path, expansion, 0)
    found = statuses(folders)
    assert summary(found) == "4 runs: 3 pending, 1 interrupted"
    assert summary([]).startswith("No runs here yet")
    assert status_line(found[0]).startswith(f"{folders[0].name}  interrupted  step 4/20  reward 0.400  ")
    assert status_line(found[1]) == f"{folders[1].name}  pending"
    values = json.loads(json.dumps(as_json(found)))
    assert values["states"] == {"interrupted": 1, "pending": 3}
    assert [each["state"] for each in values["runs"]] == ["interrupted", "pending", "pending", "pending"]
    stream = io.StringIO()
    Console(file=stream, width=160).print(status_table(found, most=1))
    assert folders[0].name in stream.getvalue()
    assert "(3 more not shown)" in stream.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_watching_tells_each_change_and_ends_when_all_runs_are_over(terminal):
    looks = [
        [Status("one", "running", 1, 3), Status("two", "pending")],
        [Status("one", "running", 1, 3), Status("two", "running", 0, 3)],
        [Status("one", "complete", 3, 3), Status("two", "failed", 0, 3)],
    ]
    left = list(looks)
    waited = []
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, height=30, color_system=None)
    watch(lambda: left.pop(0), console, wait=waited.append)
    assert (left, len(waited)) == ([], 2)
    lines = stream.getvalue().splitlines()
    if terminal:
        assert "2 runs: 1 complete, 1 failed" in stream.getvalue()
    else:
        assert [line.split()[:2] for line in lines[:-1]] == [
            ["one", "running"],
            ["two", "pending"],
            ["two", "running"],
            ["one", "complete"],
            ["two", "failed"],
        ]
        assert lines[-1] == "2 runs: 1 complete, 1 failed"


def test_a_dead_owners_run_is_not_running(tmp_path, expansion):
    folder = begin(tmp_path, expansion, 0)
    lease_of_another_machine(folder, age=3600)
    assert status_of(folder).state == "interrupted"
