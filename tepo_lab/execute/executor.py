"""Runs the pending trials of a sweep through Ray Tune, watched from the records they write. The only Ray import."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo_lab.errors import ResourceError
from tepo_lab.execute.ledger import Entry
from tepo_lab.execute.provenance import provenance
from tepo_lab.registry.difference import flatten
from tepo_lab.registry.expand import Expansion
from tepo_lab.registry.identity import IDENTITY_VERSION
from tepo_lab.schema.record import RunFolder, append_line, write_json

#: Quiet, private, and without a second logger beside our own records.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_RESULT_BUFFER_LENGTH": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class Cluster:
    """What Ray has for us."""

    cpus: float
    gpus: float
    nodes: int


class Executor:
    """A Ray session in which sweeps run. Use as a context manager; a cluster joined by `address` is left running."""

    def __init__(self, home: Path, *, address: str | None = None) -> None:
        self.home = home
        self.address = address

    def __enter__(self) -> Executor:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        import ray

        try:
            ray.init(
                address=self.address or "local",
                include_dashboard=False if self.address is None else None,
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=True,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ResourceError(f"no Ray cluster at {self.address or 'this machine'} ({reason}).") from None
        total = ray.cluster_resources()
        self.cluster = Cluster(total.get("CPU", 0), total.get("GPU", 0), len(ray.nodes()))
        return self

    def __exit__(self, *exception: object) -> None:
        import ray

        ray.shutdown()

    def run(self, expansion: Expansion, pending: Sequence[Entry], watch: Callable[[bool], None]) -> None:
        """Run all pending trials of a sweep, in the plan's order, as many at once as resources allow.

        Args: `watch` is called about twice a second in a thread of its own while trials run, with False, and once
        with True when they are over; it reads the records.
        A run that still fails after its retries is recorded as failed by the machine's fault.
        """
        for each in pending:
            prepare_folder(each)
        stop = [rule.model_dump(by_alias=True) for rule in expansion.sweep.stop]
        storage = self.home / "ray" / f"{expansion.sweep.name}-{os.getpid()}"
        ended = threading.Event()

        def loop() -> None:
            while not ended.wait(0.5):
                watch(False)

        watcher = threading.Thread(target=loop, name="watcher", daemon=True)
        watcher.start()
        try:
            for group in _same_resources(pending):
                self._fit(group, stop, storage)
        finally:
            ended.set()
            watcher.join()
            watch(True)
            shutil.rmtree(storage, ignore_errors=True)

    def _fit(self, pending: Sequence[Entry], stop: list[dict[str, Any]], storage: Path) -> None:
        from ray import tune

        from tepo_lab.execute.trainable import TrialTrainable

        resources = pending[0].planned.spec.resources
        tuner = tune.Tuner(
            tune.with_resources(TrialTrainable, {"cpu": resources.cpus, "gpu": resources.gpus}),
            param_space={"folder": tune.grid_search([str(each.folder.path) for each in pending]), "stop": stop},
            # A process serves one run after another: the imports are paid once for each core.
            tune_config=tune.TuneConfig(reuse_actors=True),
            run_config=tune.RunConfig(
                name=f"{int(time.time())}",
                storage_path=str(storage.resolve()),
                failure_config=tune.FailureConfig(max_failures=resources.max_retries),
                verbose=0,
            ),
        )
        results = tuner.fit()
        for result in results:
            if result.error is not None:
                _record_machine_failure(RunFolder(Path(result.config["folder"])), result.error)

    def check_fits(self, pending: Sequence[Entry]) -> None:
        """Raise `ResourceError`, with the numbers, for the first run that asks for more than the cluster has."""
        for each in pending:
            asked = each.planned.spec.resources
            if asked.cpus > self.cluster.cpus or asked.gpus > self.cluster.gpus:
                raise ResourceError(
                    f"run {each.folder.name} asks for {asked.cpus:g} CPUs and {asked.gpus:g} GPUs, there are "
                    f"{self.cluster.cpus:g} and {self.cluster.gpus:g}; set resources.cpus or resources.gpus, join a "
                    "cluster with --address, or choose profile=nano."
                )


def _record_machine_failure(folder: RunFolder, error: BaseException) -> None:
    """Say in the run's records that retrying did not help; the same command tries again from its checkpoint."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    values = {"event": "failed", "kind": "machine", "error": (lines[-1] if lines else type(error).__name__)[:500]}
    step = max((int(event.get("step", 0)) for event in folder.events()), default=0)
    append_line(folder.events_file, {"time": time.time(), "step": step, **values})


def prepare_folder(each: Entry) -> None:
    """Write run.json, anew when the run goes on: its extent, the software and the command may be others."""
    planned, folder = each.planned, each.folder
    created = time.time()
    if folder.run_file.exists():
        created = folder.run().get("created", created)
    folder.path.mkdir(parents=True, exist_ok=True)
    write_json(
        folder.run_file,
        {
            "id": planned.run_id,
            "family": planned.family,
            "identity_version": IDENTITY_VERSION,
            "name": folder.name,
            "created": created,
            "spec": planned.spec.model_dump(mode="json"),
            "provenance": provenance(),
        },
    )


def write_sweep(home: Path, expansion: Expansion, folders: Sequence[RunFolder]) -> None:
    """Record which runs a sweep consists of, for the mirror and for people."""
    sweep = expansion.sweep
    values = sweep.model_dump(mode="json", by_alias=True)
    chosen = {key: value for key, value in flatten(values).items() if value not in (None, [], {})}
    write_json(
        home / "sweeps" / sweep.name / "sweep.json",
        {
            "name": sweep.name,
            "title": sweep.title,
            "profile": sweep.profile,
            "runs": [folder.name for folder in folders],
            "sweep": chosen,
            "overrides": list(expansion.overrides),
        },
    )


def _same_resources(pending: Sequence[Entry]) -> list[list[Entry]]:
    """The trials in groups that ask for the same resources, each in the plan's order."""
    groups: dict[tuple[float, float], list[Entry]] = {}
    for each in pending:
        asked = each.planned.spec.resources
        groups.setdefault((asked.cpus, asked.gpus), []).append(each)
    return list(groups.values())
