from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_runs import START, Lab

from tepo_lab.errors import RecordError
from tepo_lab.track.state import PARAM_LIMIT, metric_name, run_state, signature
from tests.leases import lease_of_another_node


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_params_are_flat_and_long_values_cut(lab: Lab) -> None:
    params = run_state(lab.run("tepo"), "panel-e").params

    assert params["objective.penalty.coef"] == "1.0"
    assert params["objective.ratio"] == "sequence"
    assert params["arm.parent"] == "null"
    assert params["arm.varies"] == '["objective.penalty"]'
    assert params["objective.note"] == "n" * (PARAM_LIMIT - 1) + "…"
    assert not any(key.startswith("arm.sources") for key in params)


def test_tags_name_the_run(lab: Lab) -> None:
    tags = run_state(lab.run("tepo", seed=3), "panel-e").tags
    expected = {"arm": "tepo", "seed": "3", "profile": "nano", "commit": "abc123", "sweep": "panel-e"}
    assert {key: tags[key] for key in expected} == expected
    assert tags["run_id"] == lab.home.joinpath("runs").iterdir().__next__().name[-8:] + "0003"


def test_scores_are_percent_and_the_average_counts_generations(lab: Lab) -> None:
    folder = lab.run("tepo")
    lab.evaluated(folder, 20)
    values = run_state(folder, "panel-e").values
    time = int((START + 205) * 1000)
    assert values == {
        ("score/k3", 20): (75.0, time),
        ("score/k8", 20): (62.5, time),
        ("score/average", 20): (65.0, time),
    }


def test_an_evaluation_repeated_alike_keeps_its_time_and_a_different_one_replaces_it(lab: Lab) -> None:
    folder = lab.run("tepo")
    lab.evaluated(folder, 20)
    first = run_state(folder, "panel-e").values
    counts = folder.events()[-1]["benchmarks"]
    lab.event(folder, "evaluated", 20, benchmarks=counts, time=START + 999)
    assert run_state(folder, "panel-e").values == first

    lab.evaluated(folder, 20, correct=4)
    assert run_state(folder, "panel-e").values["score/k3", 20][0] == 100.0


def test_a_value_that_was_not_finite_is_a_gap(lab: Lab) -> None:
    folder = lab.run("tepo")
    lab.step(folder, 1, **{"actor/grad_norm": None})
    names = {name for name, _ in run_state(folder, "panel-e").values}
    assert names == {"reward/mean", "seconds/step"}


@pytest.mark.parametrize(
    ("event", "status", "outcome"),
    [
        ("complete", "FINISHED", "complete"),
        ("collapsed", "FINISHED", "collapsed"),
        ("failed", "FAILED", "failed"),
        ("resumed", "RUNNING", None),
    ],
)
def test_the_last_turning_point_gives_the_status(lab: Lab, event: str, status: str, outcome: str | None) -> None:
    folder = lab.run("tepo")
    details = {"collapsed": {"rule": "reward/mean < 0.02"}, "failed": {"kind": "user", "error": "x"}}
    lab.event(folder, event, 3, **details.get(event, {}))
    lab.evaluated(folder, 3)
    state = run_state(folder, "panel-e")
    assert (state.status, state.tags.get("outcome")) == (status, outcome)
    assert state.ended == (None if outcome is None else int((START + 35) * 1000))


def test_an_unfinished_run_was_killed_once_the_sweep_is_over_unless_somebody_holds_it(lab: Lab) -> None:
    folder = lab.run("tepo")
    lab.step(folder, 2)
    killed = run_state(folder, "panel-e", over=True)
    assert (killed.status, killed.ended) == ("KILLED", int((START + 20.125) * 1000))
    assert run_state(folder, "panel-e").status == "RUNNING"

    lease_of_another_node(folder)
    assert run_state(folder, "panel-e", over=True).status == "RUNNING"
    # What its owner left when it was killed.
    lease_of_another_node(folder, age=3600)
    assert run_state(folder, "panel-e", over=True) == killed


def test_equal_records_have_equal_digests_and_any_change_another(lab: Lab) -> None:
    folder = lab.run("tepo")
    lab.step(folder, 1)
    before = run_state(folder, "panel-e")
    assert run_state(folder, "panel-e").digest == before.digest
    lab.step(folder, 2)
    assert run_state(folder, "panel-e").digest != before.digest


def test_a_heartbeat_does_not_change_the_signature(lab: Lab) -> None:
    folder = lab.run("tepo")
    lease_of_another_node(folder, age=10)
    before = signature(folder)
    lease_of_another_node(folder, note="renewed")
    assert signature(folder) == before
    # Its owner has died.
    lease_of_another_node(folder, age=3600)
    assert signature(folder) != before
    lease_of_another_node(folder)
    lab.step(folder, 1)
    assert signature(folder) != before


def test_a_record_without_what_it_must_have_is_named(lab: Lab) -> None:
    folder = lab.run("tepo")
    folder.metrics_file.write_text('{"step": 1, "reward/mean": 0.5}\n')
    with pytest.raises(RecordError, match=r"tepo-nano-s1-.*'time'"):
        run_state(folder, "panel-e")


@pytest.mark.parametrize(
    ("name", "shown"),
    [("reward/mean", "reward/mean"), ("score/AIME'24", "score/AIME_24"), ("../x", ".._x"), ("a//b", "a__b")],
)
def test_names_that_mlflow_refuses_are_mended(name: str, shown: str) -> None:
    assert metric_name(name) == shown
