"""Kills a run's processes and damages its files at chosen moments, gives the same command again, and compares with
undisturbed runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from tepo_lab.records.events import Started
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory
from tepo_lab.records.lock import is_locked
from tepo_lab.registry.expand import PlannedRun, expand, load_sweep

#: Names of a step's metrics that are of the clock.
CLOCKS = ("seconds/", "time")

#: Overrides that make a step of a nano run take about a fifth of a second: every part of it, little of each.
TINY = (
    "trainer.prompts_per_step=8",
    "trainer.mini_batch_prompts=4",
    "trainer.checkpoint_every=4",
    "rollout.max_new_tokens=24",
    "suite.max_new_tokens=24",
    *(f"suite.benchmarks.{name}.{key}=2" for name in ("sum6", "mix8", "times8") for key in ("problems", "samples")),
    *(f"suite.benchmarks.{name}.problems=2" for name in ("sum3", "mix4", "mix6", "mix7")),
)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from tepo_lab.cli import main; main()", *arguments]


def reproducible_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """The run's step metrics without those of the clock."""
    return [{name: value for name, value in step.items() if not name.startswith(CLOCKS)} for step in folder.metrics()]


@dataclass
class Driver:
    """One `tepo-lab run` of a sweep in a process of its own, with its output in a file."""

    home: Path
    arguments: Sequence[str]
    logs: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.logs / f"{self.home.name}-{uuid.uuid4().hex[:8]}.log"
        arguments = ("run", *self.arguments, "--home", str(self.home), "--format", "json")
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(command(*arguments), stdout=stream, stderr=stream)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = 300.0) -> int:
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
        children = psutil.Process(self.process.pid).children()
        return next((child.pid for child in children if child.name() == name), None)


@dataclass
class Bench:
    """Sweeps of a few short runs, and the numbers that these must end with."""

    root: Path
    steps: int
    arms: tuple[str, ...] = ("tepo", "gspo")
    seeds: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.sweep = self.root / "faults.yaml"
        values = {"title": "faults", "arms": self.arms, "seeds": self.seeds, "steps": self.steps, "base": False}
        # JSON is YAML.
        self.sweep.write_text(json.dumps(values))
        self.runs: list[PlannedRun] = list(expand(*load_sweep(str(self.sweep), TINY)).runs)

    def start(self, home: Path, *arguments: str) -> Driver:
        return Driver(home, [str(self.sweep), *TINY, *arguments], self.root)

    def complete(self, home: Path, *arguments: str) -> Driver:
        """Give the command and wait for its success."""
        driver = self.start(home, *arguments)
        assert driver.wait() == 0, driver.output[-3000:]
        return driver

    def folders(self, home: Path) -> list[RunFolder]:
        return [RunFolder(home / "runs" / run.folder) for run in self.runs]

    def run_undisturbed(self, home: Path) -> Path:
        """Run all of them here, in this process, without Ray, MLflow or anything that could die."""
        from tepo_lab.execute.planning.actions import entry
        from tepo_lab.execute.running.prepare import prepare_folder
        from tepo_lab.train.trial import run_trial

        for run in self.runs:
            planned = entry(home, run)
            prepare_folder(planned)
            run_trial(run.spec, planned.folder)
        return home

    def difference(self, home: Path, undisturbed: Path, *, completions: int = 1) -> str:
        """What differs from the undisturbed runs, metrics, generations and weights compared bit for bit; "" if
        nothing does."""
        for one, other in zip(self.folders(home), self.folders(undisturbed), strict=True):
            if [step["step"] for step in one.metrics()] != list(range(1, self.steps + 1)):
                return f"{one.name}: steps {[step['step'] for step in one.metrics()]}"
            if reproducible_metrics(one) != reproducible_metrics(other):
                return f"{one.name}: metrics"
            frames = [pd.read_parquet(run.generations(self.steps)) for run in (one, other)]
            if not frames[0].equals(frames[1]):
                return f"{one.name}: generations"
            weights = [run.checkpoint(self.steps) / "model" / "model.safetensors" for run in (one, other)]
            if weights[0].read_bytes() != weights[1].read_bytes():
                return f"{one.name}: weights"
            for event in ("evaluated", "complete"):
                count = event_names(one).count(event)
                if not 1 <= count <= completions:
                    return f"{one.name}: {event} {count} times"
        return ""


@dataclass(frozen=True)
class Position:
    """A run whose processes have ended: its steps, its newest intact checkpoint, whether it is complete, its events."""

    steps: int
    checkpoint: int
    is_done: bool
    events: int

    @classmethod
    def of(cls, folder: RunFolder) -> Position:
        from tepo_lab.train.checkpoint import newest

        intact = newest(folder, 99)
        checkpoint = intact[1].step if intact else 0
        return cls(len(folder.metrics()), checkpoint, is_complete(folder), len(event_names(folder)))

    def repeated(self, folder: RunFolder) -> int:
        """The steps of the run that were made again since. Fails if they are more than those since the checkpoint, or
        if the run was done and began again."""
        later = [event for event in RunHistory.read(folder).events[self.events :] if isinstance(event, Started)]
        if not later:
            return 0
        assert not self.is_done, f"{folder.name} was done and began again"
        assert later[0].step >= min(self.checkpoint, self.steps), (self, later)
        return max(0, self.steps - later[0].step)


def is_complete(folder: RunFolder) -> bool:
    return event_names(folder)[-1:] == ["complete"]


def event_names(folder: RunFolder) -> list[str]:
    return [event.event for event in RunHistory.read(folder).events]


def positions(folders: Iterable[RunFolder]) -> dict[str, Position]:
    return {folder.name: Position.of(folder) for folder in folders}


@dataclass
class Matrix:
    """What happened at each point, printed as it goes: run the tests with -s to see it."""

    title: str
    points: int = 0

    def __post_init__(self) -> None:
        show(f"\n{self.title}")

    def row(self, victim: str, moment: str, what: str) -> None:
        self.points += 1
        show(f"{self.points:4}  {victim:28} {moment:26} {what}")


def show(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], driver: Driver, seconds: float = 300.0) -> bool:
    """Whether the condition came true while the driver ran. Raises `TimeoutError` when neither ends in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if not driver.is_running:
            return condition()
        if time.monotonic() > deadline:
            driver.kill()
            raise TimeoutError(driver.output[-2000:])
        time.sleep(0.005)
    return True


def owner(folder: RunFolder) -> int | None:
    """The living process that owns the run."""
    try:
        pid = int(json.loads(folder.lease_file.read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return None
    return pid if is_locked(folder) else None


def trial_process(folders: Iterable[RunFolder]) -> int | None:
    """The living process that owns one of the runs."""
    return next((pid for pid in map(owner, folders) if pid is not None), None)


def wait_until_free(folders: list[RunFolder], seconds: float = 60.0) -> None:
    """Until the trials of a killed driver have followed it. Raises `TimeoutError` when they do not."""
    deadline = time.monotonic() + seconds
    while trial_process(folders) is not None:
        if time.monotonic() > deadline:
            raise TimeoutError("a trial outlived its driver")
        time.sleep(0.05)


def kill_process(pid: int | None) -> bool:
    """SIGKILL; whether there was such a process. It is dead when this returns."""
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        deadline = time.monotonic() + 10
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.005)
    return True


def newest_checkpoint(folder: RunFolder) -> Path | None:
    return max(folder.checkpoints.glob("step-*"), default=None)


def truncate(path: Path) -> None:
    """Keep the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path, place: float = 0.5) -> None:
    """Change one bit of a file, at that share of its length."""
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)


def cut_last_line(path: Path) -> None:
    """Leave the last line half written, as a death in the middle of it does."""
    content = path.read_bytes().rstrip(b"\n")
    last = content.rpartition(b"\n")[2]
    path.write_bytes(content[: len(content) - len(last) // 2])
