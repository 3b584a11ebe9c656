"""What a session cost, from the records made since it began and from the clocks of its processes."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.running.session_cost import CpuMeter, session_cost
from tepo_lab.records.files import append_line
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned
from tests.unit.execute.running.stub_trial import complete


@pytest.fixture
def ran(small_run):
    """A run that began at 110 s, trained two steps of 10 s from 120 s on, was evaluated and regraded until 150 s."""
    spec, folder = small_run("tepo", "trainer.steps=3")
    old = {"step": 1, "time": 90.0, "seconds/step": 10.0, "rollout/tokens": 7.0}
    append_line(folder.metrics_file, old)
    for step, at in ((2, 130.0), (3, 140.0)):
        values = {"step": step, "time": at, "seconds/step": 10.0, "seconds/cpu": 8.0, "rollout/tokens": 100.0}
        append_line(folder.metrics_file, values)
    for event in (
        {"time": 50.0, "event": "started", "step": 0},
        {"time": 110.0, "event": "resumed", "step": 1},
        {"time": 149.0, "event": "evaluated", "step": 3, "seconds": 5.0, "cpu_seconds": 4.0},
        {"time": 149.5, "event": "evaluated", "step": 3, "benchmarks": {}, "grades_changed": 0},
        {"time": 150.0, "event": "failed", "step": 3, "kind": "machine", "error": "x"},
    ):
        append_line(folder.events_file, event)
    return entry(folder.home, planned(spec))


def test_the_cost_is_of_the_records_since_the_session_began(ran):
    cost = session_cost([ran], began=100.0, cores=4.0, cpu_seconds=40.0)
    assert (cost.runs, cost.trial_seconds, cost.tokens, cost.first_step_seconds) == (1, 25.0, 200.0, 30.0)
    # 20 CPU seconds in steps and evaluations, of 4 cores within 40 s and of 40 CPU seconds in all.
    assert cost.busy_share == pytest.approx(20 / (40 * 4))
    assert cost.overhead_share == pytest.approx(0.5)
    assert cost.as_json() | {"wall_seconds": 0} == {
        "runs": 1,
        "wall_seconds": 0,
        "trial_seconds": 25.0,
        "tokens": 200.0,
        "first_step_seconds": 30.0,
        "busy_share": cost.busy_share,
        "overhead_share": cost.overhead_share,
    }


def test_records_that_a_changed_clock_dates_outside_the_session_do_not_count(ran, monkeypatch):
    monkeypatch.setattr("tepo_lab.execute.running.session_cost.time.time", lambda: 125.0)
    early = session_cost([ran], began=100.0, cores=4.0, cpu_seconds=40.0)
    assert (early.wall_seconds, early.trial_seconds, early.first_step_seconds, early.busy_share) == (
        25.0,
        0,
        None,
        None,
    )
    monkeypatch.setattr("tepo_lab.execute.running.session_cost.time.time", lambda: 45.0)
    late = session_cost([ran], began=100.0, cores=4.0, cpu_seconds=40.0)
    assert (late.wall_seconds, late.trial_seconds, late.overhead_share) == (0.0, 0, None)


def test_what_was_not_measured_is_none(ran):
    cost = session_cost([ran], began=200.0, cores=None, cpu_seconds=None)
    assert (cost.first_step_seconds, cost.busy_share, cost.overhead_share) == (None, None, None)


@pytest.mark.parametrize("log", ["events_file", "metrics_file"])
def test_a_damaged_run_adds_nothing_and_the_others_count(log, ran, small_run):
    spec, other = small_run("gspo", "trainer.steps=1")
    complete(other, spec)
    append_line(other.metrics_file, {"step": 1, "time": 145.0, "seconds/step": 3.0})
    with getattr(ran.folder, log).open("a") as stream:
        stream.write("[]\n{}\n")
    runs = [ran, entry(other.home, planned(compose_run("tepo", "nano", seed=9))), entry(other.home, planned(spec))]
    cost = session_cost(runs, began=100.0, cores=4.0, cpu_seconds=40.0)
    assert (cost.runs, cost.trial_seconds, cost.first_step_seconds) == (3, 3.0, 45.0)


def test_the_meter_keeps_what_a_process_that_has_ended_used():
    meter = CpuMeter()
    code = "import time\nwhile time.process_time() < 0.05: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        # Its clock has passed 0.05 s when it writes a line.
        child.stdout.readline()
        key = (child.pid, psutil.Process(child.pid).create_time())
        meter.sample()
        used = meter.seen[key]
        child.communicate(b"\n")
    assert used >= 0.04
    meter.sample()
    assert meter.seen[key] == used
    assert meter.seconds >= used
