"""Synthetic run folders, written as trials and the executor write them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tepo_lab.records.files import RunFolder, append_line, write_json, write_whole
from tepo_lab.track.mirror import Mirror
from tepo_lab.track.store import open_client, own_address

START = 1_700_000_000.0


@dataclass
class Lab:
    """A home that is written to as trials and the executor do."""

    home: Path
    problems: list[str] = field(default_factory=list)

    def run(self, arm: str, seed: int = 1, steps: int = 3) -> RunFolder:
        identity = f"{sum(arm.encode()):08x}{seed:04x}"
        folder = RunFolder(self.home / "runs" / f"{arm}-nano-s{seed}-{identity[:8]}")
        folder.path.mkdir(parents=True)
        self.describe(folder, identity, arm, seed, steps)
        self.event(folder, "started", 0)
        return folder

    def describe(self, folder: RunFolder, identity: str, arm: str, seed: int, steps: int) -> None:
        spec = {
            "arm": {"name": arm, "parent": None, "varies": ["objective.penalty"], "sources": {"x": {"paper": "p"}}},
            "profile": {"name": "nano", "tepo_kl_coef": 1.0},
            "objective": {"ratio": "sequence", "penalty": {"kind": "kl", "coef": 1.0}, "note": "n" * 700},
            "trainer": {"steps": steps, "learning_rate": 1.2e-4},
            "seed": seed,
        }
        provenance = {"commit": "abc123", "dirty": False}
        run = {"id": identity, "family": arm, "name": folder.name, "spec": spec, "created": START}
        run["provenance"] = provenance
        write_json(folder.run_file, run)

    def extend(self, folder: RunFolder, steps: int) -> None:
        run = folder.run()
        run["spec"]["trainer"]["steps"] = steps
        write_json(folder.run_file, run)

    def step(self, folder: RunFolder, step: int, *, attempt: int = 0, **metrics: float | None) -> None:
        time = START + 10 * step + 1000 * attempt + 0.125
        line = {"step": step, "reward/mean": step / 7, "seconds/step": 1.5 + attempt, **metrics, "time": time}
        append_line(folder.metrics_file, line)

    def event(self, folder: RunFolder, event: str, step: int, **values: Any) -> None:
        time = values.pop("time", START + 10 * step + 5)
        append_line(folder.events_file, {"time": time, "event": event, "step": step, **values})

    def evaluated(self, folder: RunFolder, step: int, correct: int = 3) -> None:
        counts = {"k3": {"correct": correct, "graded": 4}, "k8": {"correct": 10, "graded": 16}}
        self.event(folder, "evaluated", step, benchmarks=counts, seconds=1.0)

    def cut_back(self, folder: RunFolder, step: int) -> None:
        kept = [line for line in folder.metrics() if line["step"] <= step]
        write_whole(folder.metrics_file, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def sweep(self, name: str, folders: list[RunFolder]) -> None:
        values = {"name": name, "title": f"Title of {name}", "profile": "nano", "runs": [each.name for each in folders]}
        write_json(self.home / "sweeps" / name / "sweep.json", values)

    def mirror(self, sweep: str = "panel-e", **options: Any) -> Mirror:
        return Mirror(self.home, None, sweep, self.problems.append, **options)

    def shown(self, sweep: str = "panel-e") -> dict[str, dict[str, Any]]:
        """What MLflow shows: the parent under '' and the children by name. Fails if a step stands twice."""
        client = open_client(self.home, own_address(self.home))
        experiment = client.get_experiment_by_name(sweep)
        found: dict[str, dict[str, Any]] = {}
        for run in client.search_runs([experiment.experiment_id], max_results=1000):
            values: dict[tuple[str, int], tuple[float, int]] = {}
            for name in run.data.metrics:
                for metric in client.get_metric_history(run.info.run_id, name):
                    assert (name, metric.step) not in values, f"{name} at step {metric.step} stands twice"
                    values[name, metric.step] = (metric.value, metric.timestamp)
            name = "" if run.data.tags.get("tepo_lab") == "sweep" else run.info.run_name
            assert name not in found, f"{name} is shown twice"
            artifacts = {
                each.path: Path(run.info.artifact_uri, each.path).read_text()
                for each in client.list_artifacts(run.info.run_id)
            }
            found[name] = {
                "id": run.info.run_id,
                "values": values,
                "params": run.data.params,
                "tags": {key: value for key, value in run.data.tags.items() if key != "mlflow.parentRunId"},
                "parent": run.data.tags.get("mlflow.parentRunId"),
                "status": run.info.status,
                "ended": run.info.end_time,
                "artifacts": artifacts,
            }
        return found
