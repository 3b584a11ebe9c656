"""Runs the pending trials of a sweep through Ray Tune, watched from the records they write. The only Ray import."""

from __future__ import annotations

import _thread
import gc
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tepo_lab.errors import ConfigError, RecordError, ResourceError
from tepo_lab.execute.failures import record_machine_failure
from tepo_lab.execute.ledger import Entry
from tepo_lab.execute.provenance import provenance
from tepo_lab.registry.difference import flatten
from tepo_lab.registry.expand import Expansion
from tepo_lab.registry.identity import IDENTITY_VERSION
from tepo_lab.schema.record import RunFolder, append_line, write_json
from tepo_lab.schema.sweep import Search

#: Quiet, private, and without a second logger beside our own records.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Ctrl-C ends the command; Tune would end its trials and go on.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_RESULT_BUFFER_LENGTH": "0",
    # A search looks at validated steps; the results between them have no score.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DO_NOT_TRACK": "1",
}


_LOST = "Ray has died (its processes were killed, or its machines are gone); the same command goes on from here."

#: What makes a provenance another one: not the command, which may differ in what it asks for only.
_TELLING = ("commit", "diff", "versions", "hardware", "model", "data")


class ClusterLostError(ResourceError):
    """Every node of the Ray cluster is gone; trials can only go on in another one."""


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

        # An object reference that another thread's garbage collection finds while Ray shuts down ends the process.
        gc.collect()
        gc.disable()
        try:
            ray.shutdown()
        finally:
            gc.enable()

    def run(self, expansion: Expansion, pending: Sequence[Entry], watch: Callable[[bool], None]) -> None:
        """Run all pending trials of a sweep, in the plan's order, as many at once as resources allow.

        Args: `watch` is called about twice a second in a thread of its own while trials run, with False, and once
        with True when they are over; it reads the records.
        A run that still fails after its retries is recorded as failed by the machine's fault.
        Raises `ClusterLostError` when Ray itself has died, which Tune would wait for without end.
        """
        for each in pending:
            prepare_folder(each)
        stop = [rule.model_dump(by_alias=True) for rule in expansion.sweep.stop]
        storage = self.home / "ray" / f"{expansion.sweep.name}-{os.getpid()}"
        ended, lost = threading.Event(), threading.Event()

        def loop() -> None:
            while not ended.wait(0.5):
                watch(False)
                if not lost.is_set() and not _has_node():
                    lost.set()
                    _thread.interrupt_main()

        watcher = threading.Thread(target=loop, name="watcher", daemon=True)
        watcher.start()
        try:
            for group in _same_resources(pending):
                self._fit(group, stop, expansion.sweep.search, storage)
        except KeyboardInterrupt:
            if lost.is_set():
                raise ClusterLostError(_LOST) from None
            raise
        finally:
            ended.set()
            watcher.join()
            watch(True)
            shutil.rmtree(storage, ignore_errors=True)

    def _fit(self, pending: Sequence[Entry], stop: list[dict[str, Any]], search: Search | None, storage: Path) -> None:
        from ray import tune

        from tepo_lab.execute.search import scheduler
        from tepo_lab.execute.trainable import TrialTrainable

        halving = scheduler(search, steps=max(each.planned.spec.steps for each in pending)) if search else None
        resources = pending[0].planned.spec.resources
        tuner = tune.Tuner(
            tune.with_resources(TrialTrainable, {"cpu": resources.cpus, "gpu": resources.gpus}),
            param_space={
                "folder": tune.grid_search([str(each.folder.path.resolve()) for each in pending]),
                "stop": stop,
                "session": uuid.uuid4().hex,
                "search": search.model_dump(mode="json") if search else None,
            },
            # A process serves one run after another: the imports are paid once for each core.
            tune_config=tune.TuneConfig(reuse_actors=True, scheduler=halving),
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
                record_machine_failure(RunFolder(Path(result.config["folder"])), result.error)
        for folder, step in (halving.stopped if halving else {}).items():
            values = {"time": time.time(), "event": "stopped", "step": step, "by": "asha"}
            append_line(RunFolder(Path(folder)).events_file, values)

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


def check_supported(each: Entry) -> None:
    """Raise `ResourceError` or `ConfigError` for a run that cannot be carried out here, though it can be planned."""
    spec = each.planned.spec
    if spec.rollout.engine == "vllm" and find_spec("vllm") is None:
        raise ResourceError(
            f"run {each.folder.name}: rollout.engine=vllm and vLLM is not installed; pip install 'tepo-lab[vllm]', or "
            "set rollout.engine=transformers to sample with the trainer's own model (slower)."
        )
    if spec.resources.learners > 1:
        raise ConfigError(
            f"run {each.folder.name}: resources.learners={spec.resources.learners} can be planned but not run yet; "
            "set resources.learners=1, with a model that one device holds."
        )


def _has_node() -> bool:
    """Whether any node of the cluster is alive. A cluster that does not answer has none."""
    import ray

    try:
        return any(node["Alive"] for node in ray.nodes())
    except (ConnectionError, RuntimeError, ray.exceptions.RayError):
        return False


def prepare_folder(each: Entry) -> None:
    """Write run.json, anew when the run goes on: its extent, the software and the command may be others."""
    planned, folder = each.planned, each.folder
    before = _before(folder)
    home = folder.path.parent.parent
    folder.path.mkdir(parents=True, exist_ok=True)
    write_json(
        folder.run_file,
        {
            "id": planned.run_id,
            "family": planned.family,
            "identity_version": IDENTITY_VERSION,
            "name": folder.name,
            "created": before.get("created") or time.time(),
            "spec": planned.spec.model_dump(mode="json"),
            **_made_with(provenance(home, planned.spec), before),
        },
    )


def _before(folder: RunFolder) -> dict[str, Any]:
    """What run.json said; of a damaged one, when the run began is all that other records tell."""
    try:
        return folder.run() if folder.run_file.exists() else {}
    except RecordError:
        first = next((event.get("time") for event in folder.events()), None)
        return {"created": first, "provenance": {"commit": None, "lost": "run.json was damaged and written anew"}}


def _made_with(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The provenance of a run that begins or goes on: what it goes on with, and what it was made with until then."""
    last = before.get("provenance")
    earlier = list(before.get("earlier_provenance", []))
    if last is not None and any(last.get(key) != now.get(key) for key in _TELLING):
        earlier.append(last)
    return {"provenance": now, **({"earlier_provenance": earlier} if earlier else {})}


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
