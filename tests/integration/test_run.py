"""The main job as a user gives it: a process of its own, real Ray, real MLflow, killed and given again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest

from tepo_lab.registry.expand import expand, load_sweep
from tepo_lab.schema.record import RunFolder
from tests.conftest import SMALL

ARMS = "arms=[tepo,gspo]"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from tepo_lab.cli import main; main()", *arguments]


def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def science(folder: RunFolder) -> list[dict]:
    clocks = ("seconds/", "time")
    return [{name: value for name, value in step.items() if not name.startswith(clocks)} for step in folder.metrics()]


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
    assert [each["name"] for each in table["benchmarks"]] == [
        "sum6",
        "mix8",
        "times8",
        "sum3",
        "mix4",
        "mix6",
        "mix7",
    ]
    for each in planned("trainer.steps=3", "seeds=[1]"):
        rows = pd.read_parquet(RunFolder(home / "runs" / each.folder).generations(each.spec.steps))
        shown = next((row for row in table["rows"] if row["arm"] == each.spec.arm.name), table["base"])
        counted = rows.groupby("benchmark")["correct"].agg(["sum", "count"])
        for name, cell in shown["cells"].items():
            assert (cell["correct"], cell["graded"]) == tuple(counted.loc[name])
    for said in ("Results: ", "Cost: ", "tepo-lab report table3 --panel e", "tepo-lab ui"):
        assert said in first_run.stderr


def test_a_second_call_starts_nothing_and_prints_the_same_table(first_run, home):
    before = {path: path.stat().st_mtime_ns for path in (home / "runs").rglob("*") if path.is_file()}
    second = run("run", "panel-e", *SMALL, "trainer.steps=3", "seeds=[1]", "--home", str(home), "--format", "json")
    assert json.loads(second.stdout) == json.loads(first_run.stdout)
    assert "nothing was started" in second.stderr
    assert {path: path.stat().st_mtime_ns for path in (home / "runs").rglob("*") if path.is_file()} == before


def test_the_report_command_prints_the_same_numbers(first_run, home):
    arguments = ("report", "table3", "--panel", "e", *SMALL, "trainer.steps=3", "seeds=[1]", "--home", str(home))
    assert json.loads(run(*arguments, "--format", "json").stdout) == json.loads(first_run.stdout)
    text = run(*arguments).stdout
    assert "TEPO-w/o. KL" in text
    assert "They are not AIME" in text


def test_mlflow_holds_every_run_with_its_metrics(first_run, home):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    experiment = client.get_experiment_by_name("panel-e")
    assert experiment is not None
    runs = {each.info.run_name: each for each in client.search_runs([experiment.experiment_id])}
    for each in planned("trainer.steps=3", "seeds=[1]"):
        mirrored = runs[each.folder]
        assert mirrored.info.status == "FINISHED"
        assert mirrored.data.tags["arm"] == each.spec.arm.name
        history = client.get_metric_history(mirrored.info.run_id, "reward/mean")
        recorded = RunFolder(home / "runs" / each.folder).metrics()
        assert [(point.step, point.value) for point in history] == [
            (step["step"], step["reward/mean"]) for step in recorded
        ]


def wait_for(condition, process, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the run ended before the moment it was to be killed at"
        assert time.monotonic() < deadline, "the moment to kill at never came"
        time.sleep(0.02)


def test_killed_three_times_the_same_command_ends_with_the_same_numbers(small_run, tmp_path):
    from tepo_lab.train.trial import run_trial

    overrides = ("trainer.steps=5", "seeds=[1]", ARMS)
    arguments = ("run", "panel-e", *SMALL, *overrides, "--home", str(tmp_path / "home"))
    runs = [each for each in planned(*overrides) if each.spec.arm.trained]
    folders = [RunFolder(tmp_path / "home" / "runs" / each.folder) for each in runs]

    def start():
        return subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    # The driver, as soon as a step is recorded and before any checkpoint.
    driver = start()
    wait_for(lambda: any(folder.metrics() for folder in folders), driver)
    driver.kill()
    driver.wait()
    # The driver again, after a checkpoint.
    driver = start()
    wait_for(lambda: any(folder.checkpoint(2).exists() for folder in folders), driver)
    driver.kill()
    driver.wait()
    # A trial's own process: the driver starts it again by itself.
    driver = start()
    wait_for(lambda: any(len(folder.metrics()) in (3, 4) and folder.lease_file.exists() for folder in folders), driver)
    held = next(folder for folder in folders if folder.lease_file.exists())
    os.kill(json.loads(held.lease_file.read_text())["pid"], signal.SIGKILL)
    assert driver.wait(timeout=200) == 0

    for each, folder in zip(runs, folders, strict=True):
        spec, alone = small_run(each.spec.arm.name, "trainer.steps=5", home=tmp_path / "alone")
        run_trial(spec, alone)
        assert science(folder) == science(alone)
        pd.testing.assert_frame_equal(*(pd.read_parquet(one.generations(5)) for one in (folder, alone)))
        model = [one.checkpoint(5) / "model" / "model.safetensors" for one in (folder, alone)]
        assert model[0].read_bytes() == model[1].read_bytes()
    assert sum(event["event"] == "resumed" for folder in folders for event in folder.events()) >= 3


def test_a_failure_of_the_users_making_is_told_and_the_other_arms_go_on(tmp_path):
    overrides = ("trainer.steps=1", "seeds=[1]", ARMS, "base=false")
    model = (f"model.path={tmp_path / 'nowhere'}", "model.sha256=null")
    failed = run("run", "panel-e", *SMALL, *overrides, *model, "--home", str(tmp_path / "home"), check=False)
    assert failed.returncode == 1
    assert "nowhere: cannot be loaded" in failed.stderr
    assert "Traceback" not in failed.stderr
    events = [event for folder in (tmp_path / "home" / "runs").iterdir() for event in RunFolder(folder).events()]
    assert {(event["event"], event.get("kind")) for event in events if event["event"] == "failed"} == {
        ("failed", "user")
    }
