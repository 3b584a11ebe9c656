"""Status, causes and the live display: views of histories."""

from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console

from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.execute.showing.progress import Progress
from tepo_lab.execute.showing.status import as_json, run_status, status_line, status_table, statuses, summary, watch
from tepo_lab.execute.showing.text import counted, duration
from tepo_lab.execute.showing.why import causes, causes_text
from tepo_lab.records.events import CheckpointSaved, Collapsed, Complete, Evaluated, Failed, Started, Tally
from tepo_lab.records.files import append_line
from tepo_lab.records.history import append_event
from tepo_lab.records.lock import RunLock
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned
from tests.generation_columns import write_evaluation


@pytest.fixture
def begun(tmp_path):
    """Makes a prepared run of four steps with its first `steps` recorded."""

    def make(seed=1, steps=0, *events):
        found = entry(tmp_path, planned(compose_run("tepo", "nano", ("trainer.steps=4",), seed=seed)))
        prepare_folder(found)
        append_event(found.folder, Started(event="started", step=0))
        for step in range(1, steps + 1):
            values = {"seconds/step": 2.0, "reward/mean": 0.25, "actor/entropy": 0.5, "time": time.time()}
            append_line(found.folder.metrics_file, {"step": step, **values})
        for event in events:
            append_event(found.folder, event)
        return found

    return make


def finish(found, step=4):
    suite = found.planned.spec.suite
    write_evaluation(found.folder, step, suite)
    graded = {name: Tally(correct=1, graded=each.problems * each.samples) for name, each in suite.benchmarks.items()}
    append_event(found.folder, Evaluated(step=step, benchmarks=graded, seconds=7.0))
    append_event(found.folder, Complete(step=step))


def test_a_status_has_step_reward_and_time_left(begun):
    found = begun(1, 2)
    with RunLock(found.folder):
        running = run_status(found.folder)
    assert (running.state, running.step, running.steps, running.reward, running.entropy) == ("running", 2, 4, 0.25, 0.5)
    # Two steps of two seconds, and an evaluation as the profile declares it.
    assert running.seconds_left == pytest.approx(2 * 2.0 + found.planned.spec.profile.estimates.evaluation_seconds)
    assert run_status(found.folder).state == "interrupted"
    finish(found)
    done = run_status(found.folder)
    assert (done.state, done.seconds_left, done.evaluation_seconds, done.is_over) == ("complete", None, 7.0, True)


def test_a_complete_run_that_is_asked_for_more_steps_goes_on(begun):
    found = begun(1, 2)
    finish(found, step=2)
    assert (run_status(found.folder).state, run_status(found.folder).steps) == ("interrupted", 4)


def test_statuses_as_json_lines_and_table(begun):
    failed = begun(2, 1, Failed(step=1, kind="user", error="a [bold]loss[/bold]"))
    damaged = begun(3)
    damaged.folder.run_file.write_text("{")
    found = statuses([begun(1, 2).folder, failed.folder, damaged.folder])
    values = as_json(found)
    assert values["states"] == {"interrupted": 1, "failed": 1, "damaged": 1}
    assert json.loads(json.dumps(values)) == values
    assert [*values["runs"][0]] == ["name", "state", "step", "steps", "reward", "seconds_left", "detail", "updated"]
    text = io.StringIO()
    Console(file=text, width=400, markup=True).print(status_table(found))
    for line in (text.getvalue(), *map(status_line, found[1:2])):
        assert "[bold]loss[/bold]" in line
    assert "run.json" in found[2].detail
    assert summary([]) != summary(found)


def test_watching_ends_when_all_runs_are_over(begun):
    found, waits = begun(1, 2), []
    text = io.StringIO()

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            finish(found)

    watch(lambda: statuses([found.folder]), Console(file=text, width=200), wait=wait)
    # One line for each change.
    assert len(waits) == 3
    assert [line.split()[1] for line in text.getvalue().splitlines()[:2]] == ["interrupted", "complete"]


def test_causes_are_grouped_and_name_the_fix(begun):
    wrong = [
        begun(seed, 1, Failed(step=1, kind="user", error="lr", error_type="ConfigError", fingerprint="f"))
        for seed in (1, 2)
    ]
    wrong[1].folder.log_file.write_text("first\n\x1b]52;c;secret\x07last\n")
    machine = begun(3, 1, Failed(step=1, kind="machine", error="No space left on device"))
    killed = begun(4, 2, CheckpointSaved(step=2))
    damaged = begun(5)
    damaged.folder.events_file.write_text("x\nx\n")
    collapsed = begun(6, 2, Collapsed(step=2, rule="r"))
    collapsed.folder.checkpoint(2).mkdir(parents=True)
    complete = begun(7, 4)
    finish(complete)
    found = causes(each.folder for each in (*wrong, machine, killed, damaged, collapsed, complete))
    by_kind = {cause.kind: cause for cause in found}
    assert [len(cause.runs) for cause in found] == [2, 2, 1, 1]
    assert by_kind["user"].runs == [each.folder.name for each in wrong]
    assert by_kind["user"].log[-1] == "]52;c;secretlast"
    # Killed, and collapsed without the evaluation there: the same command goes on.
    assert by_kind["stopped"].runs == [killed.folder.name, collapsed.folder.name]
    assert str(damaged.folder.events_file) in by_kind["damaged"].error
    assert all(cause.fix for cause in found)
    text = io.StringIO()
    Console(file=text, width=200).print(causes_text(found))
    assert all(cause.error in text.getvalue() for cause in found)


def test_the_live_display_shows_this_sessions_runs(begun):
    done, going, waiting = begun(1, 4), begun(2, 2), begun(3, 3)
    for folder in (waiting.folder,):
        lines = [json.loads(line) | {"time": 1.0} for line in folder.metrics_file.read_text().splitlines()]
        folder.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        events = [json.loads(line) | {"time": 1.0} for line in folder.events_file.read_text().splitlines()]
        folder.events_file.write_text("".join(json.dumps(line) + "\n" for line in events))
    finish(done)
    text = io.StringIO()
    progress = Progress("title", [done, going, waiting], 2, Console(file=text, width=200), began=time.time() - 60)
    progress(False)
    progress(True)
    lines = text.getvalue().splitlines()
    assert len(lines) == 2
    assert "complete" in lines[0]
    assert "[1/3] tepo s2: training, step 2/4, reward 0.250" in lines[1]
    estimate = going.planned.spec.profile.estimates
    left = (2 + 1) * 2.0 + 2 * 7.0
    assert progress.seconds_left() == pytest.approx(max(left / 2, 2 * 2.0 + 7.0))
    assert estimate.seconds_per_step != 2.0
    live = io.StringIO()
    shown = Progress("title", [done, going, waiting], 2, Console(file=live, width=120, force_terminal=True), began=1e9)
    shown(False)
    shown(True)
    assert "evaluating" not in live.getvalue()
    assert "1 of 3 runs done" in live.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (18_720, "5 h 12 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
    assert [counted(1, "run"), counted(1200, "run")] == ["1 run", "1,200 runs"]
