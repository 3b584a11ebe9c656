"""Runs the pending trials of a sweep through Ray Tune, watched by the records they write."""

from __future__ import annotations

import _thread
import errno
import gc
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError

import psutil

from tepo_lab.errors import ResourceError
from tepo_lab.execute.planning.actions import Entry
from tepo_lab.execute.running.cluster import Cluster, check_reachable
from tepo_lab.execute.running.learners import run_with_learners
from tepo_lab.execute.running.prepare import begun_file, write_requests
from tepo_lab.execute.running.scratch import scratch_folder
from tepo_lab.execute.running.session_cost import CpuMeter
from tepo_lab.registry.expand import Expansion
from tepo_lab.schema.sweep import Sweep

#: Quiet, private, and without a second logger beside our own records.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Ctrl-C ends the command; Tune would end its trials and go on.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_RESULT_BUFFER_LENGTH": "0",
    # Seconds between snapshots of the experiment, from which Tune could go on: the records say what is done.
    "TUNE_GLOBAL_CHECKPOINT_S": "31536000",
    # A search looks at validated steps; the results between them have no score.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Several learners: a dead one is noticed at once, and a trial waits for its resources as long as others use them.
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
    # No process imports a module because it lies in the folder where it was started.
    "PYTHONSAFEPATH": "1",
}

#: For a Ray of our own: its servers, which do what anybody who reaches them asks, listen on 127.0.0.1 alone. The
#: variable is named after the systems on which that is Ray's default.
OWN_ENVIRONMENT = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

#: Ray would start a process for each core at once, and another for each trial, which Tune gives variables of its own.
SYSTEM = {"enable_worker_prestart": False, "prestart_worker_first_driver": False}

#: Seconds between two samples of the CPU time of this session's processes.
METER_SECONDS = 2.0


#: Interrupts the main thread when Ray has died.
_CLUSTER_LOST = signal.SIGUSR2


class ClusterLostError(ResourceError):
    """Every node of the Ray cluster is dead; trials can only go on in another one."""


class Executor:
    """A Ray session in which sweeps run. Use as a context manager; a cluster joined by `address` is left running.

    Trials on every node of a cluster read and write the home, under the path it has here: it must be on a file system
    that all nodes share, as must local models and data.
    """

    def __init__(self, home: Path, meter: CpuMeter, *, address: str | None = None) -> None:
        self.home = home
        self.meter = meter
        self.address = address

    def __enter__(self) -> Executor:
        for name, value in (ENVIRONMENT | (OWN_ENVIRONMENT if self.address is None else {})).items():
            os.environ.setdefault(name, value)
        if self.address is not None:
            check_reachable(self.address)
        import ray
        from ray.job_config import JobConfig

        # What Tune left of a Ray that died asks Ray to remove its placement groups when it is collected, and waits a
        # minute for one that is dead: here there is none to ask.
        gc.collect()
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address=self.address or "local",
                include_dashboard=False if self.address is None else None,
                # Ray puts this process's working folder before all others on the path of its workers, where a file
                # such as pyarrow.py would be imported; not so for jobs that come through a client of Ray.
                job_config=JobConfig(_client_job=True),
                # A Ray of our own has this process's variables; nodes of a cluster have their own.
                runtime_env={"env_vars": {name: os.environ[name] for name in ENVIRONMENT}} if self.address else None,
                _system_config=SYSTEM if self.address is None else None,
                log_to_driver=False,
                # Failures are recorded with their runs; Tune would print the traceback of each attempt.
                logging_level="CRITICAL",
                configure_logging=True,
            )
        except Exception as error:  # noqa: BLE001 - whatever Ray raises where its processes cannot start
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            if self.address is not None:
                raise ResourceError(f"no Ray cluster at {self.address} ({reason}).") from None
            raise ResourceError(
                f"Ray cannot start on this machine ({reason}): it needs a HOME that exists, room in /tmp "
                "(RAY_TMPDIR=FOLDER names another place) and memory for its processes (ulimit -v unlimited)."
            ) from None
        # Here, while no other thread runs: two threads that import pandas at once, which Tune and mlflow both do, can
        # meet it half imported.
        import ray.tune

        if threading.current_thread() is threading.main_thread():
            # Ray has put a handler of its own in place, which prints a dump and ends the process.
            signal.signal(signal.SIGTERM, on_sigterm)
        self._processes: list[psutil.Process] = []
        if self.address is not None:
            _check_shared(self.home, self.address)
        else:
            children = psutil.Process().children()
            self._processes = [process for process in children if process.name() in ("gcs_server", "raylet")]
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.cluster = Cluster(tuple((node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes))
        return self

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
        ended, lost = threading.Event(), threading.Event()
        is_main = threading.current_thread() is threading.main_thread()
        # A signal of our own: a command in the background of a script ignores SIGINT.
        before = signal.signal(_CLUSTER_LOST, signal.default_int_handler) if is_main else None
        watcher = threading.Thread(target=self._watch, args=(watch, ended, lost), name="watcher", daemon=True)
        watcher.start()
        try:
            with scratch_folder(self.home, expansion.sweep.name) as scratch:
                write_requests(pending, scratch)
                try:
                    for group in _by_resources(pending):
                        _run_group(group, expansion.sweep, scratch, self.cluster)
                        # What Tune leaves asks Ray to remove its placement groups, while Ray can answer.
                        gc.collect()
                finally:
                    folders = [entry.folder for entry in pending]
                    self.meter.begun |= {folder.name for folder in folders if begun_file(scratch, folder).exists()}
        except KeyboardInterrupt:
            if lost.is_set():
                raise ClusterLostError(
                    "Ray has died (its processes were killed, or its machines failed): give the same command again, it "
                    "goes on from here."
                ) from None
            raise
        finally:
            ended.set()
            watcher.join()
            if is_main:
                signal.signal(_CLUSTER_LOST, before)
            self.meter.sample()
            with suppress(OSError):
                watch(True)

    def _watch(self, watch: Callable[[bool], None], ended: threading.Event, lost: threading.Event) -> None:
        """Display, measure, and interrupt the main thread when Ray has died, until `ended` is set."""
        sampled = 0.0
        while not ended.wait(5.0 if lost.is_set() else 0.5):
            # A display that cannot be written to (a closed pipe, a full disk) ends no watch over Ray.
            with suppress(OSError):
                watch(False)
            if time.monotonic() - sampled > METER_SECONDS:
                self.meter.sample()
                sampled = time.monotonic()
            # A Ray without its head is not asked: it would take a minute and end this process. The interrupt is sent
            # again in case it was raised in a callback, which can pass none on.
            if lost.is_set() or not (all(map(_is_alive, self._processes)) and _has_node()):
                lost.set()
                _thread.interrupt_main(_CLUSTER_LOST)


def _run_group(pending: Sequence[Entry], sweep: Sweep, scratch: Path, cluster: Cluster) -> None:
    """Run trials that ask for the same resources to their ends, in one `Tuner`. Args: `scratch` with their requests."""
    from ray import tune

    from tepo_lab.execute.running.search import scheduler
    from tepo_lab.execute.running.trainable import TrialTrainable
    from tepo_lab.execute.running.tune_callback import TuneCallback

    resources = pending[0].planned.spec.resources
    has_learners = resources.learners > 1
    steps = max(entry.planned.spec.steps for entry in pending)
    callback = TuneCallback(resources.learners)
    config = {
        "folder": tune.grid_search([str(entry.folder.path.resolve()) for entry in pending]),
        "requests": str(scratch.resolve()),
        "session": uuid.uuid4().hex,
        "stop": [rule.model_dump(by_alias=True) for rule in sweep.stop],
        "search": sweep.search.model_dump(mode="json") if sweep.search else None,
    }
    if has_learners:
        config |= {"resources": resources.model_dump(), "storage": str(scratch.resolve())}
        # Learners bring their own placement group. The process that waits for them takes nothing, which Tune wants to
        # be something: a byte.
        trainable = tune.with_resources(run_with_learners, {"cpu": 0, "memory": 1})
    else:
        trainable = tune.with_resources(TrialTrainable, {"cpu": resources.cpus, "gpu": resources.gpus})
    tuner = tune.Tuner(
        trainable,
        param_space=config,
        tune_config=tune.TuneConfig(
            # A process serves one run after another: the imports are paid once for each core.
            reuse_actors=not has_learners,
            scheduler=scheduler(sweep.search, steps=steps, stopped=callback.stopped) if sweep.search else None,
            max_concurrent_trials=cluster.slots(resources) if has_learners else None,
        ),
        run_config=tune.RunConfig(
            name=f"{int(time.time())}",
            storage_path=str(scratch.resolve()),
            failure_config=tune.FailureConfig(max_failures=resources.max_retries),
            # A trial finds its checkpoint in its run's folder.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            callbacks=[callback],
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    except (EOFError, UnpicklingError):
        # Tune reads an attempt's failure from a file that it wrote; on a full disk that is cut off.
        raise OSError(errno.ENOSPC, "No space left on device", str(scratch)) from None
    callback.record_rest()


def _check_shared(home: Path, address: str) -> None:
    """Raise `ResourceError` unless every node of the cluster sees the home under its path."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    home.mkdir(parents=True, exist_ok=True)
    marker = home.resolve() / f".shared-{uuid.uuid4().hex}"
    look = ray.remote(num_cpus=0)(os.path.exists)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    with marker.open("x"):
        try:
            places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
            sees = ray.get([look.options(scheduling_strategy=place).remote(str(marker)) for place in places])
        finally:
            marker.unlink()
    blind = [node["NodeManagerHostname"] for node, sees_home in zip(nodes, sees, strict=True) if not sees_home]
    if blind:
        raise ResourceError(
            f"{home.resolve()} is not shared with {', '.join(blind)} of the cluster at {address}; give --home on a "
            "file system that every node has under the same path."
        )


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _has_node() -> bool:
    """Whether any node of the cluster is alive. A cluster that does not answer has none."""
    import ray

    try:
        return any(node["Alive"] for node in ray.nodes())
    except (ConnectionError, RuntimeError, ray.exceptions.RayError):
        return False


def _by_resources(pending: Sequence[Entry]) -> list[list[Entry]]:
    """The trials in groups that ask for the same resources, each in the plan's order."""
    groups: dict[tuple[float, float, int], list[Entry]] = {}
    for entry in pending:
        asked = entry.planned.spec.resources
        groups.setdefault((asked.cpus, asked.gpus, asked.learners), []).append(entry)
    return list(groups.values())
