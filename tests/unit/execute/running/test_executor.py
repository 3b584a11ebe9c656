"""The watch over a session's runs, without Ray."""

from __future__ import annotations

import signal
import time

import pytest

from tepo_lab.execute.planning.plan import make_plan
from tepo_lab.execute.running import executor as module
from tepo_lab.execute.running.executor import ClusterLostError, Executor
from tepo_lab.execute.running.session_cost import CpuMeter
from tepo_lab.registry.expand import expand, load_sweep


def test_a_display_that_cannot_be_written_to_hides_no_dead_ray(tmp_path, monkeypatch):
    expansion = expand(*load_sweep("panel-e", ("arms=[tepo]", "seeds=[1]", "base=false")))
    calls: list[bool] = []

    def closed_pipe(final: bool) -> None:
        calls.append(final)
        raise BrokenPipeError

    def without_end(*given: object) -> None:
        while True:
            time.sleep(0.02)

    monkeypatch.setattr(module, "_has_node", lambda: len(calls) < 2)
    monkeypatch.setattr(module, "_run_group", without_end)
    executor = Executor(tmp_path, CpuMeter())
    executor._processes, executor.cluster = [], None
    # As in a command that a script has put into the background.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(ClusterLostError):
            executor.run(expansion, make_plan(tmp_path, [expansion]).pending, closed_pipe)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (calls[:2], calls[-1]) == ([False, False], True)
    assert not list(tmp_path.glob("ray/*"))
