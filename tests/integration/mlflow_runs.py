"""A run folder with learning curves, and what MLflow shows of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tepo_lab.records.files import RunFolder, append_line, write_json
from tepo_lab.track.state import Values

if TYPE_CHECKING:
    from mlflow import MlflowClient

START = time.time() - 100


def start_run(home: Path, arm: str) -> RunFolder:
    identity = f"{sum(arm.encode()):08x}0000"
    folder = RunFolder(home / "runs" / f"{arm}-nano-s1-{identity[:8]}")
    spec = {"arm": {"name": arm}, "profile": {"name": "nano"}, "objective": {"ratio": "sequence"}, "seed": 1}
    spec["trainer"] = {"steps": 20}
    run = {"id": identity, "family": arm, "name": folder.name, "spec": spec, "created": START}
    run["provenance"] = {"commit": "abc123", "dirty": False}
    write_json(folder.run_file, run)
    append_line(folder.events_file, {"time": START, "event": "started", "step": 0})
    return folder


def write_steps(folder: RunFolder, steps: range) -> None:
    for step in steps:
        values = {"reward/mean": 1 - 0.8 ** (step / 3), "actor/entropy": 0.3 / step, "time": START + step / 3}
        append_line(folder.metrics_file, {"step": step, **values})


def complete(folder: RunFolder, step: int) -> None:
    counts = {"k3": {"correct": 140, "graded": 200}, "k8": {"correct": 300, "graded": 960}}
    time = START + step
    evaluated = {"time": time, "event": "evaluated", "step": step, "benchmarks": counts, "seconds": 1.0}
    append_line(folder.events_file, evaluated)
    append_line(folder.events_file, {"time": time + 1, "event": "complete", "step": step})


def shown_values(client: MlflowClient, sweep: str) -> dict[str, Values]:
    """run -> its metrics. Fails if a run or a step is shown twice."""
    experiment = client.get_experiment_by_name(sweep)
    shown: dict[str, Values] = {}
    for run in client.search_runs([experiment.experiment_id], "tags.run_id != ''"):
        assert run.info.run_name not in shown
        shown[run.info.run_name] = {}
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                assert (name, metric.step) not in shown[run.info.run_name]
                shown[run.info.run_name][name, metric.step] = (metric.value, metric.timestamp)
    return shown
