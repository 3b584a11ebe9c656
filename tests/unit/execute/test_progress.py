from __future__ import annotations

import io
import time
import tracemalloc

from rich.console import Console

from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.showing.progress import Standing, Watch, duration, refresh
from tepo_lab.records.files import append_line
from tepo_lab.registry.expand import planned


def watch_on(folder_entries, terminal):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, color_system=None)
    return Watch("a sweep", folder_entries, 2, console), stream


def step(folder, number, seconds=2.0):
    values = {"step": number, "reward/mean": 0.25, "actor/entropy": 0.125, "seconds/step": seconds}
    append_line(folder.metrics_file, values)


def test_a_look_at_a_long_run_reads_the_ends_of_its_records(small_run, tmp_path):
    spec, folder = small_run("tepo", "trainer.steps=20000")
    standing = Standing(entry(tmp_path, planned(spec)))
    line = '{"step": %d, "reward/mean": 0.25, "seconds/step": 2.0, "reward/standard_deviation": 0.125}\n'
    folder.metrics_file.write_text("".join(line % number for number in range(1, 20_001)))
    folder.events_file.write_text('{"time": 1.0, "event": "checkpoint", "step": 1}\n' * 20_000)
    tracemalloc.start()
    refresh(standing)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (standing.step, standing.state, standing.seconds_per_step) == (20_000, "evaluating", 2.0)
    assert peak < 200_000


def test_durations_are_said_for_people():
    assert [duration(each) for each in (0.4, 59, 61, 3599, 3661)] == [
        "0 s",
        "59 s",
        "1 min 1 s",
        "59 min 59 s",
        "1 h 1 min",
    ]


def test_plain_lines_tell_each_change_once(small_run, tmp_path):
    spec, folder = small_run("tepo", "trainer.steps=3")
    watch, stream = watch_on([entry(tmp_path, planned(spec))], terminal=False)
    watch(False)
    assert stream.getvalue() == ""
    append_line(folder.events_file, {"time": time.time(), "event": "started", "step": 0})
    watch(False)
    watch(False)
    assert stream.getvalue().count("tepo s1: training, step 0/3") == 1
    for number in (1, 2, 3):
        step(folder, number)
    append_line(folder.events_file, {"time": time.time(), "event": "checkpoint", "step": 3})
    watch(False)
    assert "tepo s1: evaluating, step 3/3, reward 0.250, entropy 0.125" in stream.getvalue()
    append_line(folder.events_file, {"time": time.time(), "event": "complete", "step": 3})
    watch(True)
    assert "[1/1] tepo s1: complete" in stream.getvalue().splitlines()[-1]


def test_a_step_without_an_entropy_is_told_without_one(small_run, tmp_path):
    spec, folder = small_run("tepo", "trainer.steps=3")
    watch, stream = watch_on([entry(tmp_path, planned(spec))], terminal=False)
    append_line(folder.metrics_file, {"step": 1, "reward/mean": 0.25, "actor/entropy": None, "seconds/step": 2.0})
    append_line(folder.events_file, {"time": time.time(), "event": "checkpoint", "step": 1})
    watch(False)
    assert "step 1/3, reward 0.250; about" in stream.getvalue()


def test_time_left_follows_the_measured_pace(small_run, tmp_path):
    entries = []
    for seed in (1, 2, 3):
        spec, _ = small_run("tepo", "trainer.steps=10", seed=seed)
        entries.append(entry(tmp_path, planned(spec)))
    watch, _ = watch_on(entries, terminal=False)
    for folder in (each.folder for each in entries):
        append_line(folder.events_file, {"time": time.time(), "event": "evaluated", "step": 0, "seconds": 5.0})
        step(folder, 4, seconds=3.0)
    watch(False)
    # Three runs of six steps at 3 s and an evaluation of 5 s each, two at a time.
    assert watch.seconds_left() == 3 * (6 * 3 + 5) / 2


def test_a_terminal_shows_every_run_with_its_reward_and_time_left(small_run, tmp_path):
    spec, folder = small_run("tepo", "trainer.steps=3")
    watch, stream = watch_on([entry(tmp_path, planned(spec))], terminal=True)
    append_line(folder.events_file, {"time": time.time(), "event": "started", "step": 0})
    step(folder, 1)
    watch(False)
    watch(True)
    shown = stream.getvalue()
    for text in ("a sweep", "tepo s1", "training", "1/3", "0.250", "0.125", "0 of 1 runs done"):
        assert text in shown


def test_grades_made_again_are_no_evaluation_to_judge_time_by(small_run, tmp_path):
    spec, folder = small_run("tepo", "trainer.steps=3")
    standing = Standing(entry(tmp_path, planned(spec)))
    append_line(folder.events_file, {"time": 1.0, "event": "evaluated", "step": 3, "seconds": 5.0})
    append_line(folder.events_file, {"time": 2.0, "event": "evaluated", "step": 3, "grades_changed": 1})
    refresh(standing)
    assert standing.evaluation_seconds == 5.0


def test_a_damaged_line_is_passed_over(small_run, tmp_path):
    spec, folder = small_run("tepo", "trainer.steps=3")
    watch, stream = watch_on([entry(tmp_path, planned(spec))], terminal=False)
    append_line(folder.events_file, {"time": time.time(), "event": "started", "step": 0})
    step(folder, 1, seconds=3.0)
    for damaged in ({"event": "complete", "step": 3}, {"time": None, "event": "complete", "step": 3}, {}):
        append_line(folder.events_file, damaged)
    for damaged in ({"step": 2, "reward/mean": 0.75}, {"step": 2, "reward/mean": 0.75, "seconds/step": None}, {}):
        append_line(folder.metrics_file, damaged)
    watch(False)
    (standing,) = watch.standings
    assert (standing.step, standing.reward, standing.seconds_per_step, standing.state) == (2, 0.75, 3.0, "training")
    assert stream.getvalue().startswith("[0/1] tepo s1: training, step 2/3, reward 0.750")
