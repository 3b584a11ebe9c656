"""Run folders as trials and the executor write them, and what MLflow shows of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo_lab.records.files import RunFolder, append_line, write_atomically, write_json
from tepo_lab.records.history import RunHistory
from tepo_lab.track.view import run_view

if TYPE_CHECKING:
    from mlflow import MlflowClient

START = 1_700_000_000.0

#: (metric, step) -> (value, milliseconds since 1970).
Values = dict[tuple[str, int], tuple[float, int]]


def start_run(home: Path, arm: str = "tepo", *, steps: int = 20, seed: int = 1, begun: float = START) -> RunFolder:
    identity = f"{sum(arm.encode()):08x}{seed:04x}"
    folder = RunFolder(home / "runs" / f"{arm}-nano-s{seed}-{identity[:8]}")
    describe(folder, identity, arm, seed, steps)
    event(folder, "started", 0, time=begun)
    return folder


def describe(folder: RunFolder, identity: str, arm: str, seed: int, steps: int) -> None:
    spec = {
        "arm": {"name": arm, "parent": None, "varies": ["objective.penalty"], "sources": {"x": {"paper": "p"}}},
        "profile": {"name": "nano"},
        "objective": {"ratio": "sequence", "penalty": {"kind": "kl", "coef": 1.0}, "note": "n" * 700},
        "trainer": {"steps": steps},
        "seed": seed,
    }
    run = {"id": identity, "family": arm, "name": folder.name, "spec": spec, "created": START}
    write_json(folder.run_file, run | {"provenance": {"commit": "abc123", "dirty": False}})


def extend(folder: RunFolder, steps: int) -> None:
    run = json.loads(folder.run_file.read_text())
    describe(folder, run["id"], run["spec"]["arm"]["name"], run["spec"]["seed"], steps)


def event(folder: RunFolder, kind: str, step: int, /, **values: Any) -> None:
    time = values.pop("time", START + 10 * step + 5)
    append_line(folder.events_file, {"time": time, "event": kind, "step": step, **values})


def write_steps(folder: RunFolder, steps: range, *, attempt: int = 0, **metrics: float | None) -> None:
    for step in steps:
        values = {"reward/mean": 1 - 0.8 ** (step / 3), "actor/entropy": 0.3 / step, "seconds/step": 1.5 + attempt}
        time = START + 10 * step + 1000 * attempt + 0.125
        append_line(folder.metrics_file, {"step": step, **values, **metrics, "time": time})


def evaluate(folder: RunFolder, step: int, correct: int = 3, **values: Any) -> None:
    write_atomically(folder.generations(step), b"PAR1 as far as a history looks PAR1")
    counts = {"k3": {"correct": correct, "graded": 4}, "k8": {"correct": 10, "graded": 16}}
    event(folder, "evaluated", step, benchmarks=counts, seconds=1.0, **values)


def complete(folder: RunFolder, step: int, **values: Any) -> None:
    evaluate(folder, step)
    event(folder, "complete", step, **values)


def resume(folder: RunFolder, step: int) -> None:
    """Cut the run back to its checkpoint at that step, as the attempt that goes on from it does."""
    if folder.metrics_file.exists():
        lines = folder.metrics_file.read_bytes().splitlines(keepends=True)
        write_atomically(folder.metrics_file, b"".join(lines[:step]))
    event(folder, "resumed", step)


def run_again(folder: RunFolder) -> None:
    """Remove the run's folder and start the run again."""
    run = json.loads(folder.run_file.read_text())
    shutil.rmtree(folder.path)
    start_run(folder.home, run["spec"]["arm"]["name"], begun=START + 5000)


def write_sweep(home: Path, folders: list[RunFolder], *, earlier: tuple[str, ...] = ()) -> None:
    runs = {"runs": [folder.name for folder in folders], "earlier_runs": list(earlier)}
    write_json(home / "sweeps/panel-e/sweep.json", {"name": "panel-e", "title": "Token-level KL", **runs})


def recorded_values(folder: RunFolder) -> Values:
    points = run_view(RunHistory.read(folder), "panel-e").points
    return {(point.name, point.step): (point.value, point.time) for point in points}


def shown_values(client: MlflowClient, sweep: str) -> dict[str, Values]:
    """run -> its metrics. Fails if a run or a step is shown twice."""
    experiment = client.get_experiment_by_name(sweep)
    shown: dict[str, Values] = {}
    for run in client.search_runs([experiment.experiment_id], "tags.run_id != ''"):
        assert run.info.run_name not in shown
        values = shown[run.info.run_name] = {}
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                assert (name, metric.step) not in values
                values[name, metric.step] = (metric.value, metric.timestamp)
    return shown
