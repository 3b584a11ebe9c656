"""MLflow in memory, in which the mirror writes in these tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any


@dataclass
class FakeMlflow:
    """The calls of `MlflowClient` that the mirror uses: runs are added to, and an equal value is stored once.

    `calls` are counted. The call of the number `fails_at`, and every one while `is_down`, raises instead.
    """

    experiments: dict[str, SimpleNamespace] = field(default_factory=dict)
    runs: list[SimpleNamespace] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    fails_at: int | None = None
    is_down: bool = False
    error: str = "No space left on device"

    def _called(self, name: str) -> None:
        self.calls[name] += 1
        if self.is_down or self.calls.total() == self.fails_at:
            raise OSError(self.error)

    def _run(self, run_id: str) -> SimpleNamespace:
        (run,) = (run for run in self.runs if run.info.run_id == run_id)
        if run.info.lifecycle_stage != "active":
            raise OSError(f"{run_id} is deleted")
        return run

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        self._called("get_experiment_by_name")
        return self.experiments.get(name)

    def create_experiment(self, name: str, artifacts: str | None, tags: dict[str, str]) -> str:
        self._called("create_experiment")
        self.experiments[name] = SimpleNamespace(
            experiment_id=name,
            artifact_location=artifacts or "mlflow-artifacts:/1",
            lifecycle_stage="active",
            tags=tags,
        )
        return name

    def search_runs(self, experiments: list[str], condition: str = "", max_results: int = 0) -> list[SimpleNamespace]:
        self._called("search_runs")
        name = condition.removeprefix("attributes.run_name = ").strip("'")
        return [
            run
            for run in self.runs
            if run.info.lifecycle_stage == "active"
            and run.experiment in experiments
            and name in ("", run.info.run_name)
        ]

    def create_run(self, experiment: str, started: int, tags: dict[str, str], name: str) -> SimpleNamespace:
        self._called("create_run")
        info = SimpleNamespace(run_id=f"run {len(self.runs)}", run_name=name, start_time=started, end_time=None)
        info.status, info.lifecycle_stage = "RUNNING", "active"
        data = SimpleNamespace(tags=dict(tags), params={}, metrics=set())
        self.runs.append(SimpleNamespace(experiment=experiment, info=info, data=data, artifacts={}))
        return self.runs[-1]

    def log_batch(self, run_id: str, metrics: Iterable[Any] = (), params: Any = (), tags: Any = ()) -> None:
        data = self._run(run_id).data
        data.metrics |= {(point.key, point.step, point.value, point.timestamp) for point in metrics}
        for param in params:
            assert data.params.setdefault(param.key, param.value) == param.value
        # Fails after it has stored what was sent, as a server that does not answer in time may.
        self._called("log_batch")
        data.tags |= {tag.key: tag.value for tag in tags}

    def log_artifact(self, run_id: str, path: str) -> None:
        self._called("log_artifact")
        self._run(run_id).artifacts[Path(path).name] = Path(path).read_text()

    def set_terminated(self, run_id: str, status: str, ended: int) -> None:
        self._called("set_terminated")
        info = self._run(run_id).info
        info.status, info.end_time = status, ended

    def update_run(self, run_id: str, status: str) -> None:
        self._called("update_run")
        self._run(run_id).info.status = status

    def delete_run(self, run_id: str) -> None:
        self._called("delete_run")
        self._run(run_id).info.lifecycle_stage = "deleted"

    def shown(self, sweep: str = "panel-e") -> dict[str, dict[str, Any]]:
        """run -> what a reader of MLflow sees of it. Fails if a run or a step is shown twice."""
        result: dict[str, dict[str, Any]] = {}
        for run in self.search_runs([sweep]):
            values = {(name, step): (value, time) for name, step, value, time in run.data.metrics}
            assert len(values) == len(run.data.metrics)
            assert run.info.run_name not in result
            ended = run.info.end_time if run.info.status != "RUNNING" else None
            result[run.info.run_name] = {
                "values": values,
                "params": run.data.params,
                "tags": run.data.tags,
                "times": (run.info.start_time, ended),
                "status": run.info.status,
                "artifacts": run.artifacts,
            }
        return result
