from __future__ import annotations

import json
from pathlib import Path

import pytest

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory
from tepo_lab.track.view import VALUE_LIMIT, RunView, metric_name, run_view
from tests.leases import lease_of_another_node
from tests.mlflow_runs import START, evaluate, event, recorded_values, start_run, write_steps


def view(folder: RunFolder) -> RunView:
    return run_view(RunHistory.read(folder), "panel-e")


def ms(seconds: float) -> int:
    return int((START + seconds) * 1000)


def test_params_are_flat_and_long_values_cut(tmp_path: Path) -> None:
    params = view(start_run(tmp_path)).params
    expected = {
        "objective.penalty.coef": "1.0",
        "objective.ratio": "sequence",
        "arm.parent": "null",
        "arm.varies": '["objective.penalty"]',
        "objective.note": "n" * (VALUE_LIMIT - 1) + "…",
    }
    assert {key: params[key] for key in expected} == expected
    assert not any(key.startswith("arm.sources") for key in params)


def test_tags_name_the_run(tmp_path: Path) -> None:
    folder = start_run(tmp_path, seed=3)
    assert view(folder).tags == {
        "arm": "tepo",
        "seed": "3",
        "profile": "nano",
        "run_id": json.loads(folder.run_file.read_text())["id"],
        "commit": "abc123",
        "changed_tree": "no",
        "sweep": "panel-e",
    }


def test_scores_are_percent_and_the_average_counts_generations(tmp_path: Path) -> None:
    folder = start_run(tmp_path)
    evaluate(folder, 20)
    scores = {"k3": 75.0, "k8": 62.5, "average": 65.0}
    assert recorded_values(folder) == {(f"score/{name}", 20): (score, ms(205)) for name, score in scores.items()}
    folder.generations(20).unlink()
    assert recorded_values(folder) == {}


def test_points_are_of_what_comes_after_what_is_shown(tmp_path: Path) -> None:
    folder = start_run(tmp_path)
    write_steps(folder, range(1, 4), **{"actor/grad_norm": None})
    evaluate(folder, 1)
    evaluate(folder, 3)
    points = run_view(RunHistory.read(folder), "panel-e", events=2, steps=2).points
    # A value that was not finite is a gap.
    names = {"reward/mean", "actor/entropy", "seconds/step", "score/k3", "score/k8", "score/average"}
    assert {(point.name, point.step) for point in points} == {(name, 3) for name in names}


@pytest.mark.parametrize(
    ("kind", "details", "status", "progress"),
    [
        ("complete", {}, "FINISHED", {"outcome": "complete"}),
        (
            "collapsed",
            {"rule": "reward/mean < 0.02"},
            "FINISHED",
            {"outcome": "collapsed", "rule": "reward/mean < 0.02"},
        ),
        ("stopped", {"by": "asha"}, "FINISHED", {"outcome": "stopped"}),
        ("failed", {"kind": "user", "error": "x"}, "FAILED", {"outcome": "failed", "failure": "user", "error": "x"}),
        ("resumed", {}, "KILLED", {}),
    ],
)
def test_the_status_is_that_of_the_history(
    tmp_path: Path, kind: str, details: dict[str, str], status: str, progress: dict[str, str]
) -> None:
    folder = start_run(tmp_path)
    write_steps(folder, range(1, 4))
    evaluate(folder, 3)
    event(folder, kind, 3, **{"time": START + 50, **details})
    shown = view(folder)
    assert (shown.status, shown.progress) == (status, {"events": "3", "steps": "3", **progress})
    assert (shown.started, shown.ended) == (ms(0), ms(50))


def test_a_run_is_running_while_it_is_locked_and_killed_after_it(tmp_path: Path) -> None:
    folder = start_run(tmp_path)
    write_steps(folder, range(1, 3))
    lease_of_another_node(folder)
    assert (view(folder).status, view(folder).ended) == ("RUNNING", None)
    lease_of_another_node(folder, age=3600)
    assert (view(folder).status, view(folder).ended) == ("KILLED", ms(20.125))


def test_damaged_metrics_are_refused_with_their_line(tmp_path: Path) -> None:
    folder = start_run(tmp_path)
    write_steps(folder, range(1, 2))
    write_steps(folder, range(5, 6))
    with pytest.raises(RecordError, match=r"metrics\.jsonl:2"):
        view(folder)


@pytest.mark.parametrize(
    ("name", "shown"),
    [("reward/mean", "reward/mean"), ("score/AIME'24", "score/AIME_24"), ("../x", ".._x"), ("a//b", "a__b")],
)
def test_characters_that_mlflow_refuses_are_replaced(name: str, shown: str) -> None:
    assert metric_name(name) == shown
