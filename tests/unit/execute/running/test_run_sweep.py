"""The rounds of a sweep, with an executor that starts no Ray."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from tepo_lab.execute.planning.plan import make_plan
from tepo_lab.execute.running import run_sweep as module
from tepo_lab.execute.running.cluster import Cluster
from tepo_lab.execute.running.executor import ClusterLostError
from tepo_lab.execute.running.failures import record_user_failure
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.execute.running.run_sweep import CLUSTER_RETRIES, STARTS, run_sweep
from tepo_lab.execute.showing.session import ConsoleObserver, opening, other_rules
from tepo_lab.records.events import Collapsed, Complete, Started
from tepo_lab.records.history import State, append_event
from tepo_lab.records.lock import RunLock
from tepo_lab.registry.expand import expand, load_sweep
from tests.unit.execute.running.stub_trial import complete


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Two runs in an empty home, and the rounds in which they were started; `work` is done with each run's entry."""
    expansion = expand(*load_sweep("panel-e", ("arms=[tepo]", "seeds=[1,2]", "base=false", "trainer.steps=4")))
    state = SimpleNamespace(
        home=tmp_path,
        expansion=expansion,
        rounds=[],
        work=lambda entry: finish(entry),
        console=Console(file=io.StringIO(), width=100),
        starts=0,
        # Folders of runs that another session has begun first.
        taken=set(),
    )
    state.observer = ConsoleObserver(expansion, state.console, lambda: setattr(state, "starts", state.starts + 1))

    class StubExecutor:
        def __init__(self, home, meter, *, address=None):
            self.cluster = Cluster(((4.0, 0.0),))
            self.meter = meter

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def run(self, expansion, pending, watch):
            state.rounds.append([entry.planned.spec.seed for entry in pending])
            for entry in pending:
                state.work(entry)
                self.meter.begun |= {entry.folder.name} - state.taken

    monkeypatch.setattr(module, "Executor", StubExecutor)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return state


def finish(entry):
    prepare_folder(entry)
    append_event(entry.folder, Started())
    complete(entry.folder, entry.planned.spec)


def run(sweep):
    return run_sweep(sweep.home, sweep.expansion, sweep.observer)


def states(result):
    return [entry.history.state for entry in result.entries]


def test_a_session_claims_the_cost_of_the_runs_that_it_began(sweep):
    first, _ = make_plan(sweep.home, [sweep.expansion]).entries
    sweep.taken.add(first.folder.name)
    assert run(sweep).cost.runs == 1


def test_pending_runs_are_run_once_and_nothing_is_started_again(sweep):
    result = run(sweep)
    assert (states(result), result.failed, sweep.rounds, sweep.starts) == ([State.COMPLETE] * 2, [], [[1, 2]], 1)
    cost = json.loads((sweep.home / "sweeps" / "panel-e" / "cost.json").read_text())
    assert (result.cost.runs, cost["runs"], cost["wall_seconds"] > 0) == (2, 2, True)
    recorded = json.loads((sweep.home / "sweeps" / "panel-e" / "sweep.json").read_text())
    assert recorded["runs"] == [entry.folder.name for entry in result.entries]
    again = run(sweep)
    assert (again.cost, again.failed, len(sweep.rounds), sweep.starts) == (None, [], 1, 1)


def test_a_run_that_ends_without_recording_an_end_is_started_again_a_few_times(sweep):
    sweep.work = lambda entry: finish(entry) if entry.planned.spec.seed == 1 else None
    result = run(sweep)
    assert sweep.rounds == [[1, 2], *[[2]] * (STARTS - 1)]
    assert [entry.planned.spec.seed for entry in result.failed] == [2]


def test_a_run_that_failed_is_not_tried_again_by_this_session(sweep):
    def fail(entry):
        prepare_folder(entry)
        record_user_failure(entry.folder, [ValueError("no")])

    sweep.work = fail
    result = run(sweep)
    assert (states(result), sweep.rounds) == ([State.FAILED] * 2, [[1, 2]])
    sweep.work = finish
    assert states(run(sweep)) == [State.COMPLETE] * 2


def test_a_run_that_another_process_owns_is_waited_for_and_taken_over(sweep, monkeypatch):
    first, second = make_plan(sweep.home, [sweep.expansion]).entries
    finish(first)
    prepare_folder(second)
    append_event(second.folder, Started())
    lock = RunLock(second.folder).__enter__()
    waits = []

    def dies_later(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            lock.__exit__()

    monkeypatch.setattr("time.sleep", dies_later)
    result = run(sweep)
    assert (states(result), sweep.rounds, waits) == ([State.COMPLETE] * 2, [[2]], [1, 1])
    # Nothing was pending when the command was given.
    assert result.cost is None


def test_a_ray_of_our_own_that_dies_is_started_again_a_few_times(sweep):
    def die(entry):
        raise ClusterLostError("dead")

    def die_once(entry):
        sweep.work = finish
        raise ClusterLostError("dead")

    sweep.work = die_once
    assert states(run(sweep)) == [State.COMPLETE] * 2
    assert (sweep.rounds, sweep.starts) == ([[1, 2], [1, 2]], 1)
    sweep.rounds.clear()
    sweep.home /= "other"
    sweep.work = die
    with pytest.raises(ClusterLostError):
        run(sweep)
    assert len(sweep.rounds) == 1 + CLUSTER_RETRIES


def test_a_damaged_run_is_named_counted_apart_and_does_not_stop_the_other(sweep):
    damaged, _ = make_plan(sweep.home, [sweep.expansion]).entries
    prepare_folder(damaged)
    append_event(damaged.folder, Complete(step=4))
    result = run(sweep)
    assert (states(result), sweep.rounds) == ([State.DAMAGED, State.COMPLETE], [[2]])
    assert opening(result.plan, sweep.expansion).endswith(": 1 run to do, 1 blocked.")
    sweep.observer.ended(result)
    text = sweep.console.file.getvalue()
    assert text.count(f"Not done: {damaged.folder.name}: {damaged.folder.generations(4)}") == 1
    assert f"remove {damaged.folder.path} to run it again." in text


def test_a_run_that_collapsed_by_another_sweeps_rule_is_named(sweep):
    entry, _ = make_plan(sweep.home, [sweep.expansion]).entries
    prepare_folder(entry)
    complete(entry.folder, entry.planned.spec)
    for rule, lines in (("reward/mean < 0.9", 1), (sweep.expansion.sweep.stop[0].when, 0)):
        append_event(entry.folder, Collapsed(step=4, rule=rule))
        named = list(other_rules(make_plan(sweep.home, [sweep.expansion]), sweep.expansion))
        assert len(named) == lines
        assert all(entry.folder.name in line and rule in line for line in named)
