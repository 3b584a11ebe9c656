"""The main job as a user gives it: a process of its own, real Ray, real MLflow. What dies is in test_faults.py."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from tepo_lab.records.files import RunFolder, run_folders
from tepo_lab.records.history import RunHistory, State
from tepo_lab.registry.expand import expand, load_sweep
from tests.conftest import SMALL
from tests.integration.faults import command, event_names


def run(*arguments: str, check: bool = True, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, cwd=cwd)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def planned(*overrides: str) -> list:
    return list(expand(*load_sweep("panel-e", [*SMALL, *overrides])).runs)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home in which a small panel E has been run."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def first_run(home):
    return run("run", "panel-e", *SMALL, "trainer.steps=3", "seeds=[1]", "--home", str(home), "--format", "json")


def test_a_sweep_is_trained_and_ends_with_its_table(first_run, home):
    table = json.loads(first_run.stdout)
    assert (table["table"], table["profile"]) == ("table3", "nano")
    assert [row["arm"] for row in table["rows"]] == ["tepo_no_kl", "tepo_kl_negative_rising", "tepo_kl_both", "tepo"]
    assert {row["outcome"] for row in table["rows"]} == {"complete"}
    assert [benchmark["name"] for benchmark in table["benchmarks"]] == [
        "sum6",
        "mix8",
        "times8",
        "sum3",
        "mix4",
        "mix6",
        "mix7",
    ]
    for asked_run in planned("trainer.steps=3", "seeds=[1]"):
        rows = pd.read_parquet(RunFolder(home / "runs" / asked_run.folder).generations(asked_run.spec.steps))
        shown = next((row for row in table["rows"] if row["arm"] == asked_run.spec.arm.name), table["base"])
        counted = rows.groupby("benchmark")["correct"].agg(["sum", "count"])
        for name, cell in shown["cells"].items():
            assert (cell["correct"], cell["graded"]) == tuple(counted.loc[name])
    for part in ("Results: ", "Cost: ", "tepo-lab report table3 --panel e", "tepo-lab ui"):
        assert part in first_run.stderr


def test_a_second_call_starts_nothing_and_prints_the_same_table(first_run, home):
    before = {path: path.stat().st_mtime_ns for path in (home / "runs").rglob("*") if path.is_file()}
    second = run("run", "panel-e", *SMALL, "trainer.steps=3", "seeds=[1]", "--home", str(home), "--format", "json")
    assert json.loads(second.stdout) == json.loads(first_run.stdout)
    assert "nothing was started" in second.stderr
    assert {path: path.stat().st_mtime_ns for path in (home / "runs").rglob("*") if path.is_file()} == before


def test_the_report_command_prints_the_same_numbers(first_run, home):
    options = (*SMALL, "profile=nano", "trainer.steps=3", "seeds=[1]", "--home", str(home))
    arguments = ("report", "table3", "--panel", "e", *options)
    assert json.loads(run(*arguments, "--format", "json").stdout) == json.loads(first_run.stdout)
    text = run(*arguments).stdout
    assert "TEPO-w/o. KL" in text
    assert "They are not AIME" in text


def test_mlflow_holds_every_run_with_its_metrics(first_run, home):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiment = client.get_experiment_by_name("panel-e")
    assert experiment is not None
    runs = {mirrored.info.run_name: mirrored for mirrored in client.search_runs([experiment.experiment_id])}
    for asked_run in planned("trainer.steps=3", "seeds=[1]"):
        mirrored = runs[asked_run.folder]
        assert mirrored.info.status == "FINISHED"
        assert mirrored.data.tags["arm"] == asked_run.spec.arm.name
        history = client.get_metric_history(mirrored.info.run_id, "reward/mean")
        recorded = RunFolder(home / "runs" / asked_run.folder).metrics()
        assert [(point.step, point.value) for point in history] == [
            (step["step"], step["reward/mean"]) for step in recorded
        ]


def test_a_users_failure_is_explained_and_the_other_arms_go_on(tmp_path):
    """On problems of one's own, which lie beside where the command is given: a trial's working folder is another."""
    (tmp_path / "own.jsonl").write_text(
        "".join(f'{{"id": "p{n}", "problem": "{n}+{n + 1}=", "answer": "{2 * n + 1}"}}\n' for n in range(1, 9))
    )
    own = ("data=gsm8k", "data.path=own.jsonl")
    sweep, home = tmp_path / "mixed.yaml", tmp_path / "home"
    infinite = {"arms": ["tepo_kl_1"], "overrides": {"objective.penalty.coef": 1e39}}
    sweep.write_text(
        json.dumps({"title": "mixed", "base": False, "seeds": [1], "parts": [{"arms": ["gspo"]}, infinite]})
    )
    asked = (sweep.name, *SMALL, "trainer.steps=1", *own, "--home", str(home), "--format", "json")
    failed = run("run", *asked, check=False, cwd=tmp_path)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    assert "is not finite" in failed.stderr
    complete, failed_run = (RunFolder(next(home.glob(f"runs/{arm}-*"))) for arm in ("gspo", "tepo_kl_1"))
    assert event_names(complete)[-1] == "complete"
    assert event_names(failed_run) == ["started", "failed"]
    (cause,) = json.loads(run("why", "--home", str(home), "--format", "json").stdout)
    assert (cause["kind"], cause["runs"]) == ("user", [failed_run.name])
    assert cause["log"][-1].startswith("tepo_lab.errors.ObjectiveError: step 1:")


def test_sigterm_ends_a_sweep_as_an_interrupt_does_and_the_same_command_goes_on(tmp_path):
    arguments = ("run", "panel-e", *SMALL, "arms=[tepo]", "seeds=[1]", "base=false", "trainer.steps=4")
    begun = subprocess.Popen(
        command(*arguments, "--home", str(tmp_path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert "training" in next(line for line in begun.stderr if "step" in line)
    begun.terminate()
    _, errors = begun.communicate(timeout=120)
    assert begun.returncode == 143
    assert "SIGTERM received" not in errors
    assert "Traceback" not in errors
    run(*arguments, "--home", str(tmp_path))
    (folder,) = run_folders(tmp_path)
    assert RunHistory.read(folder).state is State.COMPLETE
