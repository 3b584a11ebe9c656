"""Runs the pending trials of a sweep through Ray Tune, watched from the records they write. The only Ray import."""

from __future__ import annotations

import _thread
import errno
import gc
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from tepo_lab.errors import ResourceError
from tepo_lab.execute.planning.actions import Entry
from tepo_lab.execute.running.cluster import Cluster, check_fits, check_reachable
from tepo_lab.execute.running.interrupt import Interrupt
from tepo_lab.execute.running.learners import run_with_learners
from tepo_lab.execute.running.prepare import drafts_in, prepare
from tepo_lab.execute.running.scratch import scratch_folder
from tepo_lab.execute.running.session_cost import CpuMeter
from tepo_lab.records.processes import children, lives
from tepo_lab.registry.expand import Expansion
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
    # Seconds between snapshots of the experiment, from which Tune could go on: the ledger says what is done.
    "TUNE_GLOBAL_CHECKPOINT_S": "31536000",
    # A search looks at validated steps; the results between them have no score.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Several learners: a dead one is noticed at once, and a trial waits for its place as long as others have it.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "31536000",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # Threads that wait by spinning take the cores from those with work: sampling with two threads beside any other
    # process takes five times as long.
    "OMP_WAIT_POLICY": "passive",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DO_NOT_TRACK": "1",
}

#: For a Ray of our own: its servers, which do what anybody who reaches them asks, listen on 127.0.0.1 alone. The
#: variable is named after the systems on which that is Ray's default.
OWN_ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

#: Ray would start a process for each core at once, and another for each trial, which Tune gives variables of its own.
SYSTEM = {"enable_worker_prestart": False, "prestart_worker_first_driver": False}

#: Seconds between looks at the CPU time of this session's processes.
METER_SECONDS = 2.0

_LOST = "Ray has died (its processes were killed, or its machines are gone); the same command goes on from here."


class ClusterLostError(ResourceError):
    """Every node of the Ray cluster is gone; trials can only go on in another one."""


class Executor:
    """A Ray session in which sweeps run. Use as a context manager; a cluster joined by `address` is left running.

    Trials on every node of a cluster read and write the home, under the path it has here: it must lie on a file system
    that all nodes share, as must local models and data.
    """

    def __init__(self, home: Path, *, address: str | None = None) -> None:
        self.home = home
        self.address = address
        self.meter = CpuMeter()

    def __enter__(self) -> Executor:
        for name, value in (ENVIRONMENT | (OWN_ENVIRONMENT if self.address is None else {})).items():
            os.environ.setdefault(name, value)
        if self.address is not None:
            check_reachable(self.address)
        import ray

        # What Tune left of a Ray that died asks Ray to remove its placement groups when it is collected, and waits a
        # minute for one that is dead: here there is none to ask.
        gc.collect()
        try:
            ray.init(
                address=self.address or "local",
                include_dashboard=False if self.address is None else None,
                # A Ray of our own has this process's variables; nodes of a cluster have their own.
                runtime_env={"env_vars": {name: os.environ[name] for name in ENVIRONMENT}} if self.address else None,
                _system_config=SYSTEM if self.address is None else None,
                log_to_driver=False,
                # Failures are recorded with their runs; Tune would print the traceback of each attempt.
                logging_level="CRITICAL",
                configure_logging=True,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ResourceError(f"no Ray cluster at {self.address or 'this machine'} ({reason}).") from None
        # Here, while no other thread runs: two threads that import pandas at once, which Tune and mlflow both do, can
        # meet it half made.
        import ray.tune

        if self.address is not None:
            self._check_shared()
        self._processes = children(("gcs_server", "raylet")) if self.address is None else []
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.cluster = Cluster(tuple((node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes))
        return self

    def _check_shared(self) -> None:
        """Raise `ResourceError` unless every node of the cluster sees the home under its path."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.home.mkdir(parents=True, exist_ok=True)
        marker = self.home.resolve() / f".shared-{uuid.uuid4().hex}"
        look = ray.remote(num_cpus=0)(os.path.exists)
        alive = [node for node in ray.nodes() if node["Alive"]]
        with marker.open("x"):
            try:
                places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in alive]
                seen = ray.get([look.options(scheduling_strategy=each).remote(str(marker)) for each in places])
            finally:
                marker.unlink()
        blind = [node["NodeManagerHostname"] for node, sees in zip(alive, seen, strict=True) if not sees]
        if blind:
            raise ResourceError(
                f"{self.home.resolve()} is not shared with {', '.join(blind)} of the cluster at {self.address}; give "
                "--home on a file system that every node has under the same path."
            )

    def __exit__(self, *exception: object) -> None:
        import ray

        # An object reference that another thread's garbage collection finds while Ray shuts down ends the process.
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
        stop = [rule.model_dump(by_alias=True) for rule in expansion.sweep.stop]
        storage = scratch_folder(self.home, expansion.sweep.name)
        ended, lost = threading.Event(), threading.Event()
        measured = [0.0]
        interrupt = Interrupt()

        def loop() -> None:
            while not ended.wait(0.5):
                # A display that cannot be written to (a closed pipe, a full disk) ends no watch over Ray.
                with suppress(OSError):
                    watch(False)
                interrupt.insist()
                if time.monotonic() - measured[0] > METER_SECONDS:
                    self.meter.sample()
                    measured[0] = time.monotonic()
                # To ask a Ray without its head is to wait a minute and be ended by it.
                if not lost.is_set() and not (all(map(lives, self._processes)) and _has_node()):
                    lost.set()
                    _thread.interrupt_main()

        watcher = threading.Thread(target=loop, name="watcher", daemon=True)
        watcher.start()
        try:
            prepare(pending, drafts_in(storage))
            with interrupt:
                for group in _same_resources(pending):
                    self._fit(group, stop, expansion.sweep.search, storage)
                    # What Tune leaves asks Ray to remove its placement groups, while Ray can answer.
                    gc.collect()
        except KeyboardInterrupt:
            if lost.is_set():
                raise ClusterLostError(_LOST) from None
            raise
        finally:
            ended.set()
            watcher.join()
            self.meter.sample()
            with suppress(OSError):
                watch(True)
            shutil.rmtree(storage, ignore_errors=True)

    def _fit(self, pending: Sequence[Entry], stop: list[dict[str, Any]], search: Search | None, storage: Path) -> None:
        from ray import tune

        from tepo_lab.execute.running.search import scheduler
        from tepo_lab.execute.running.trainable import Ends, Quiet, TrialTrainable

        resources = pending[0].planned.spec.resources
        ends = Ends(resources.learners)
        several, steps = resources.learners > 1, max(each.planned.spec.steps for each in pending)
        tuner = tune.Tuner(
            # Several learners bring their own placement group; the process that waits for them takes nothing, which
            # Tune wants to hear as something: a byte.
            tune.with_resources(run_with_learners, {"cpu": 0, "memory": 1})
            if several
            else tune.with_resources(TrialTrainable, {"cpu": resources.cpus, "gpu": resources.gpus}),
            param_space={
                "folder": tune.grid_search([str(each.folder.path.resolve()) for each in pending]),
                "stop": stop,
                "session": uuid.uuid4().hex,
                "search": search.model_dump(mode="json") if search else None,
                "drafts": str(drafts_in(storage.resolve())),
                **({"resources": resources.model_dump(), "storage": str(storage.resolve())} if several else {}),
            },
            # A process serves one run after another: the imports are paid once for each core.
            tune_config=tune.TuneConfig(
                reuse_actors=not several,
                scheduler=scheduler(search, steps=steps, stopped=ends.stopped) if search else None,
                max_concurrent_trials=self.cluster.slots(resources) if several else None,
            ),
            run_config=tune.RunConfig(
                name=f"{int(time.time())}",
                storage_path=str(storage.resolve()),
                failure_config=tune.FailureConfig(max_failures=resources.max_retries),
                # A trial finds its checkpoint in its run's folder.
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                callbacks=[ends, Quiet()],
                verbose=0,
            ),
        )
        try:
            tuner.fit()
        except (EOFError, UnpicklingError):
            # Tune reads an attempt's failure from a file that it wrote; on a full disk that is cut off.
            raise OSError(errno.ENOSPC, "No space left on device", str(storage)) from None
        ends.tell_rest()

    def check_fits(self, pending: Sequence[Entry]) -> None:
        """Raise `ResourceError`, with the numbers, for the first run that asks for more than the cluster has."""
        for each in pending:
            check_fits(self.cluster, each)


def _has_node() -> bool:
    """Whether any node of the cluster is alive. A cluster that does not answer has none."""
    import ray

    try:
        return any(node["Alive"] for node in ray.nodes())
    except (ConnectionError, RuntimeError, ray.exceptions.RayError):
        return False


def _same_resources(pending: Sequence[Entry]) -> list[list[Entry]]:
    """The trials in groups that ask for the same resources, each in the plan's order."""
    groups: dict[tuple[float, float, int], list[Entry]] = {}
    for each in pending:
        asked = each.planned.spec.resources
        groups.setdefault((asked.cpus, asked.gpus, asked.learners), []).append(each)
    return list(groups.values())
