"""Kills a run's processes at chosen moments, gives the same command again, and compares with a run left in peace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from tepo_lab.execute.lease import is_held
from tepo_lab.registry.expand import PlannedRun, expand, load_sweep
from tepo_lab.schema.record import RunFolder
from tests.conftest import SMALL

#: Names of a step's metrics that are of the clock.
CLOCKS = ("seconds/", "time")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from tepo_lab.cli import main; main()", *arguments]


def science(folder: RunFolder) -> list[dict[str, Any]]:
    """The run's step metrics without those of the clock."""
    return [{name: value for name, value in step.items() if not name.startswith(CLOCKS)} for step in folder.metrics()]


@dataclass
class Driver:
    """One `tepo-lab run` of a small sweep in a process of its own, writing what it says to a file."""

    home: Path
    sweep: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        arguments = ("run", str(self.sweep), *SMALL, "--home", str(self.home), "--format", "json")
        self.log = self.home.with_name(f"{self.home.name}-{uuid.uuid4().hex[:8]}.log")
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(command(*arguments), stdout=stream, stderr=stream)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def wait(self, seconds: float = 240.0) -> int:
        """The exit code; the process is killed, and `TimeoutExpired` raised, when it does not end."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def child(self, name: str) -> int | None:
        """The number of the driver's child process of that name, if it has one."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                head, _, rest = path.read_text(errors="replace").rpartition(")")
            except OSError:
                continue
            if int(rest.split()[1]) == self.process.pid and head.partition("(")[2] == name:
                return int(path.parent.name)
        return None


@dataclass
class Bench:
    """A home, a sweep of two arms, and what its runs must come to."""

    root: Path
    steps: int
    arms: tuple[str, ...] = ("tepo", "gspo")

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.sweep = self.root / "faults.yaml"
        arms = ", ".join(self.arms)
        self.sweep.write_text(f"title: faults\narms: [{arms}]\nseeds: [1]\nsteps: {self.steps}\nbase: false\n")
        self.runs: list[PlannedRun] = list(expand(*load_sweep(str(self.sweep), SMALL)).runs)

    def start(self, home: Path) -> Driver:
        return Driver(home, self.sweep)

    def folders(self, home: Path) -> list[RunFolder]:
        return [RunFolder(home / "runs" / each.folder) for each in self.runs]

    def difference(self, home: Path, peaceful: Path) -> str:
        """What differs from the runs left in peace, metrics, generations and weights compared bit for bit; "" if
        nothing does."""
        for one, other in zip(self.folders(home), self.folders(peaceful), strict=True):
            if [step["step"] for step in one.metrics()] != list(range(1, self.steps + 1)):
                return f"{one.name}: steps {[step['step'] for step in one.metrics()]}"
            if science(one) != science(other):
                return f"{one.name}: metrics"
            frames = [pd.read_parquet(each.generations(self.steps)) for each in (one, other)]
            if not frames[0].equals(frames[1]):
                return f"{one.name}: generations"
            weights = [each.checkpoint(self.steps) / "model" / "model.safetensors" for each in (one, other)]
            if weights[0].read_bytes() != weights[1].read_bytes():
                return f"{one.name}: weights"
            if [event["event"] for event in one.events()].count("complete") != 1:
                return f"{one.name}: complete more than once"
        return ""


def wait_for(condition: Callable[[], bool], driver: Driver, seconds: float = 120.0) -> bool:
    """Whether the condition came true while the driver ran. Raises `TimeoutError` when neither ends in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if not driver.is_running:
            return condition()
        if time.monotonic() > deadline:
            driver.kill()
            raise TimeoutError(driver.log.read_text()[-2000:])
        time.sleep(0.01)
    return True


def trial_process(folders: list[RunFolder]) -> int | None:
    """The living process that holds one of the runs."""
    for folder in folders:
        try:
            pid = int(json.loads(folder.lease_file.read_text())["pid"])
        except (OSError, ValueError, KeyError):
            continue
        if is_held(folder):
            return pid
    return None


def wait_until_free(folders: list[RunFolder], seconds: float = 60.0) -> None:
    """Until the trials of a killed driver have followed it. Raises `TimeoutError` when they do not."""
    deadline = time.monotonic() + seconds
    while trial_process(folders) is not None:
        if time.monotonic() > deadline:
            raise TimeoutError("a trial outlived its driver")
        time.sleep(0.05)


def kill_process(pid: int | None) -> bool:
    """SIGKILL; whether there was such a process."""
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def newest_checkpoint(folder: RunFolder) -> Path | None:
    return max(folder.checkpoints.glob("step-*"), default=None)


def truncate(path: Path) -> None:
    """Keep the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
