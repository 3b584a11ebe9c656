from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.running.session_cost import CpuMeter, process_began, session_cost
from tepo_lab.records.files import append_line
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned


@pytest.fixture
def ran(tmp_path):
    """A run that began at 110 s, trained two steps of 10 s from 120 s on, was evaluated and regraded until 150 s."""
    found = entry(tmp_path, planned(compose_run("tepo", "nano", ("resources.cpus=2",), seed=1)))
    found.folder.path.mkdir(parents=True)
    old = {"step": 1, "time": 90.0, "seconds/step": 10.0, "rollout/tokens": 7.0}
    append_line(found.folder.metrics_file, old)
    for step, at in ((2, 130.0), (3, 140.0)):
        values = {"step": step, "time": at, "seconds/step": 10.0, "seconds/cpu": 8.0, "rollout/tokens": 100.0}
        append_line(found.folder.metrics_file, values)
    for event in (
        {"time": 50.0, "event": "started", "step": 0},
        {"time": 110.0, "event": "resumed", "step": 1},
        {"time": 149.0, "event": "evaluated", "step": 3, "seconds": 5.0, "cpu_seconds": 4.0},
        {"time": 149.5, "event": "evaluated", "step": 3, "benchmarks": {}, "grades_changed": 0},
        {"time": 150.0, "event": "complete", "step": 3},
    ):
        append_line(found.folder.events_file, event)
    return [found]


def test_the_cost_is_what_the_records_since_the_session_began_say(ran):
    cost = session_cost(ran, began=100.0, cores=4.0, cpu_seconds=40.0)
    assert (cost.runs, cost.trial_seconds, cost.tokens) == (1, 25.0, 200.0)
    assert cost.first_step_seconds == 30.0
    # 20 CPU seconds in steps and evaluations, of 4 cores within 40 s and of 40 CPU seconds in all.
    assert cost.busy_share == pytest.approx(20 / (40 * 4))
    assert cost.overhead_share == pytest.approx(0.5)
    assert "30 s until the first training step was done; cores 12% busy" in str(cost)
    assert cost.as_json()["overhead_share"] == pytest.approx(0.5)


def test_what_nothing_tells_is_left_out(ran):
    cost = session_cost(ran, began=200.0, cores=None, cpu_seconds=None)
    assert (cost.first_step_seconds, cost.busy_share, cost.overhead_share) == (None, None, None)
    assert "busy" not in str(cost)


def test_lines_that_lack_what_is_counted_and_damaged_ones_end_nothing(ran, capsys):
    (each,) = ran
    append_line(each.folder.metrics_file, {"step": 4})
    append_line(each.folder.metrics_file, {"step": 5, "time": 145.0, "seconds/step": None})
    append_line(each.folder.events_file, {"event": "started", "step": 5})
    cost = session_cost(ran, began=100.0, cores=4.0, cpu_seconds=40.0)
    assert (cost.trial_seconds, cost.tokens, cost.busy_share) == (25.0, 200.0, pytest.approx(20 / (40 * 4)))
    with each.folder.events_file.open("a") as stream:
        stream.write("[]\n{}\n")
    damaged = session_cost(ran, began=100.0, cores=4.0, cpu_seconds=40.0)
    assert (damaged.runs, damaged.trial_seconds, damaged.first_step_seconds) == (1, 0.0, None)
    assert f"run {each.folder.name} is passed over: " in capsys.readouterr().err


def test_the_meter_keeps_what_a_process_that_has_ended_used():
    meter = CpuMeter()
    child = subprocess.Popen([sys.executable, "-c", "sum(range(10**7)); input()"], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not any(pid == child.pid and used > 0.1 for (pid, _), used in meter.seen.items()):
            assert time.monotonic() < deadline
            meter.sample()
            time.sleep(0.02)
    finally:
        child.communicate(b"\n")
    before = meter.seconds
    meter.sample()
    assert meter.seconds >= before > 0.1


def test_this_process_began_before_now():
    assert 0 < time.time() - process_began() < 24 * 3600
