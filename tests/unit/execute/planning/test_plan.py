"""What a plan says: actions with reasons, costs measured or declared, wall time for a cluster."""

from __future__ import annotations

import json

import pytest

from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.planning.plan import make_plan
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.records.events import Complete, Evaluated, Tally
from tepo_lab.records.files import append_line
from tepo_lab.records.history import append_event
from tepo_lab.registry.expand import expand, load_sweep
from tests.generation_columns import write_evaluation

TWO_ARMS = ("arms=[tepo_no_kl,tepo]", "seeds=[1,2]", "base=false")


def plan_of(home, *overrides, name="panel-e"):
    return make_plan(home, [expand(*load_sweep(name, [*TWO_ARMS, *overrides]))])


def finish(home, planned, *, steps=20, seconds=2.0, evaluated=(20,)):
    """Records of a run that ended at `steps`, without having trained."""
    found = entry(home, planned)
    prepare_folder(found)
    folder = found.folder
    for step in range(1, steps + 1):
        append_line(folder.metrics_file, {"step": step, "seconds/step": seconds})
    for step in evaluated:
        write_evaluation(folder, step, planned.spec.suite)
        graded = {
            name: Tally(correct=0, graded=benchmark.problems * benchmark.samples)
            for name, benchmark in planned.spec.suite.benchmarks.items()
        }
        append_event(folder, Evaluated(step=step, seconds=10.0, benchmarks=graded))
    append_event(folder, Complete(step=steps))


def actions(plan):
    return [(each.planned.spec.arm.name, each.planned.spec.seed, each.action) for each in plan.entries]


def test_nothing_run_yet_costs_what_the_profile_declares(tmp_path):
    plan = plan_of(tmp_path)
    estimates = plan.entries[0].planned.spec.profile.estimates
    expected = 20 * estimates.seconds_per_step + estimates.evaluation_seconds
    assert [plan.seconds_left(each) for each in plan.entries] == [pytest.approx(expected)] * 4
    assert {each.action for each in plan.entries} == {"run"}
    assert plan.costs.of(plan.entries[0].planned.spec).basis == "declared"
    assert list(tmp_path.iterdir()) == []


def test_finished_runs_of_the_same_arm_and_profile_give_measured_costs(tmp_path):
    first = plan_of(tmp_path).entries[1].planned
    assert (first.spec.arm.name, first.spec.seed) == ("tepo", 1)
    finish(tmp_path, first, seconds=3.0)
    plan = plan_of(tmp_path)
    assert actions(plan)[1] == ("tepo", 1, "skip")
    left = {(each.planned.spec.arm.name, each.planned.spec.seed): plan.seconds_left(each) for each in plan.entries}
    assert left["tepo", 1] == 0
    assert left["tepo", 2] == pytest.approx(20 * 3.0 + 10.0)
    assert plan.as_json()["runs"][3]["basis"] == "measured (1 runs)"
    assert plan.as_json()["runs"][2]["basis"] == "declared"
    other = plan_of(tmp_path, "resources.gpus=1")
    assert other.costs.of(other.entries[1].planned.spec).basis == "declared"


def test_costs_pass_over_a_damaged_run(tmp_path):
    first, second = (plan_of(tmp_path).entries[index].planned for index in (1, 3))
    for each, seconds in ((first, 3.0), (second, 5.0)):
        finish(tmp_path, each, seconds=seconds)
    (tmp_path / "runs" / first.folder / "run.json").write_text('{"id": ')
    plan = plan_of(tmp_path)
    assert plan.costs.of(first.spec).basis == "measured (1 runs)"
    assert plan.costs.of(first.spec).seconds_per_step == 5.0


def test_more_steps_extend_a_finished_run_and_fewer_are_blocked(tmp_path):
    for each in plan_of(tmp_path).entries:
        finish(tmp_path, each.planned, seconds=1.0)
        each.folder.checkpoint(20).mkdir(parents=True)
    longer = plan_of(tmp_path, "trainer.steps=30")
    assert {each.action for each in longer.entries} == {"extend"}
    assert longer.seconds_left(longer.entries[0]) == pytest.approx(10 * 1.0 + 10.0)
    shorter = plan_of(tmp_path, "trainer.steps=5")
    assert {each.action for each in shorter.entries} == {"blocked"}
    assert shorter.pending == []


def test_a_run_past_the_steps_asked_for_is_done_if_it_was_evaluated_there(tmp_path):
    for each in plan_of(tmp_path).entries:
        finish(tmp_path, each.planned, evaluated=(5, 20))
    assert {each.action for each in plan_of(tmp_path, "trainer.steps=5").entries} == {"skip"}


def test_wall_time_follows_the_cluster(tmp_path):
    plan = plan_of(tmp_path)
    one = plan.seconds_left(plan.entries[0])
    assert plan.wall_seconds(cpus=1) == pytest.approx(4 * one)
    assert plan.wall_seconds(cpus=2) == pytest.approx(2 * one)
    assert plan.wall_seconds(cpus=3) == pytest.approx(2 * one)
    assert plan.wall_seconds(cpus=64) == pytest.approx(one)
    paper = make_plan(tmp_path, [expand(*load_sweep("table2"))])
    assert paper.wall_seconds(cpus=128, gpus=4) is None
    assert paper.wall_seconds(cpus=128, gpus=16) < paper.wall_seconds(cpus=128, gpus=8)


def test_gpus_come_with_the_cores_that_their_runs_take(tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    paper = make_plan(tmp_path, [expand(*load_sweep("table3", ["profile=qwen2.5-7b"]))])
    assert paper.wall_seconds(gpus=64) == paper.wall_seconds(gpus=64, cpus=128)
    assert paper.wall_seconds(gpus=64) < paper.wall_seconds(gpus=8) / 6
    assert paper.wall_seconds(gpus=64, cpus=16) == paper.wall_seconds(gpus=8) == paper.wall_seconds()
    assert (paper.as_json(gpus=64)["cpus"], paper.as_json()["cpus"], paper.as_json()["gpus"]) == (128, 16, 8)
    assert plan_of(tmp_path).as_json()["cpus"] == 2


def test_shared_runs_are_counted_once_and_hours_are_of_gpus(tmp_path):
    plan = make_plan(tmp_path, [expand(*load_sweep(f"table{number}")) for number in (1, 2, 3, 4)])
    values = plan.as_json()
    assert (values["training_runs"], values["base_evaluations"], len(values["runs"])) == (36, 5, 41)
    assert values["gpu_hours"] == pytest.approx(sum(run["gpu_hours"] for run in values["runs"]))
    grpo = next(run for run in values["runs"] if (run["arm"], run["seed"], run["steps"]) == ("grpo_dapo", 1, 132))
    assert grpo["gpu_hours"] == pytest.approx(8 * (132 * 350 + 2 * 1800) / 3600)
    assert set(grpo) >= {"id", "arm", "profile", "seed", "steps", "action", "reason", "gpu_hours"}
    assert json.loads(json.dumps(values)) == values
