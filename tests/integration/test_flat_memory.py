"""Memory, open files and disk stay flat: three hundred steps of one run, and two hundred runs in one sweep.

`pytest -n 0 -s -m slow tests/integration/test_flat_memory.py` prints the figures. Bounds are in bytes, not in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.integration.faults import Bench, Driver, owner, show, wait_for

pytestmark = pytest.mark.slow

MB = 1_000_000

#: What the process of a trial may grow between the middle and the end. A leak of one step's tensors (some 4 MB) in each
#: of the last hundred steps would be many times that.
GROWTH = 40 * MB

#: What the driver may with each step: some 40 kB, which a mirror that reads whole histories takes, would be 6 MB.
DRIVER_GROWTH = 3 * MB

#: What it may with all the runs of half a sweep: MLflow's client keeps some 10 kB of each, up to a thousand.
DRIVER_GROWTH_OF_RUNS = 4 * MB

#: Open files that a process may have more of at the end than in the middle.
FILES = 8

#: What the home's own files may grow between the middle and the end, records and MLflow's database left out.
DISK_GROWTH = 2 * MB


def resident(pid: int) -> int:
    """Bytes of memory that a process has; 0 when it is dead."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def open_files(pid: int) -> int:
    """File descriptors of a process; 0 when it is dead."""
    try:
        return psutil.Process(pid).num_fds()
    except psutil.Error:
        return 0


def size(folder: Path, pattern: str) -> int:
    total = 0
    for path in folder.glob(pattern):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def watched(driver: Driver, bench: Bench, marks: list[int], done: Callable[[], int]) -> list[dict[str, int]]:
    """Memory and disk in bytes, and open files, each time that `done` reaches a mark."""
    folders, figures = bench.folders(driver.home), []
    workers: set[int] = set()
    for mark in marks:

        def reached(mark: int = mark) -> bool:
            workers.update(pid for pid in map(owner, folders) if pid is not None)
            return done() >= mark

        assert wait_for(reached, driver, seconds=600), driver.output[-2000:]
        figure = {
            "done": done(),
            "driver files": open_files(driver.process.pid),
            "worker files": max(map(open_files, workers)),
            "driver": resident(driver.process.pid),
            "worker": max(map(resident, workers)),
            "checkpoints": size(driver.home, "runs/*/checkpoints/*/**/*"),
            "ray": size(driver.home, "ray/**/*"),
            "mlflow": size(driver.home, "mlflow.db*"),
            "records": size(driver.home, "runs/*/*.json*") + size(driver.home, "runs/*/*/*.parquet"),
        }
        counts = ("done", "driver files", "worker files")
        show("  ".join(f"{key} {value if key in counts else f'{value / MB:.1f} MB'}" for key, value in figure.items()))
        figures.append(figure)
    return figures


def middle_and_end(figures: list[dict[str, int]], name: str) -> int:
    """Growth from the largest figure up to the middle to the largest after it."""
    half = len(figures) // 2
    return max(figure[name] for figure in figures[half:]) - max(figure[name] for figure in figures[:half])


def levels_off(figures: list[dict[str, int]]) -> None:
    """What holds of one long run and of many short ones alike."""
    assert middle_and_end(figures, "worker") < GROWTH
    assert middle_and_end(figures, "ray") < DISK_GROWTH
    for name in ("driver files", "worker files"):
        assert middle_and_end(figures, name) < FILES


def test_three_hundred_steps_of_one_run(tmp_path):
    bench = Bench(tmp_path / "steps", 300, arms=("tepo",))
    (folder,) = bench.folders(bench.root / "home")
    driver = bench.start(bench.root / "home")
    show("\n300 steps of one run")
    figures = watched(driver, bench, list(range(30, 300, 30)), lambda: len(folder.metrics()))
    assert driver.wait() == 0, driver.output[-2000:]
    assert len(folder.metrics()) == 300
    levels_off(figures)
    assert middle_and_end(figures, "driver") < DRIVER_GROWTH
    assert len(list(folder.checkpoints.glob("step-*"))) == 2
    assert max(figure["checkpoints"] for figure in figures) < 3.5 * size(folder.checkpoint(300), "**/*")


def test_two_hundred_runs_in_one_sweep(tmp_path):
    bench = Bench(tmp_path / "runs", 1, arms=("tepo",), seeds=tuple(range(1, 201)))
    home = bench.root / "home"
    folders = bench.folders(home)
    driver = bench.start(home)
    show("\n200 runs of one step")

    def done() -> int:
        return sum(bool(folder.generation_steps()) for folder in folders)

    figures = watched(driver, bench, list(range(20, 200, 20)), done)
    assert driver.wait() == 0, driver.output[-2000:]
    assert done() == 200
    levels_off(figures)
    assert middle_and_end(figures, "driver") < DRIVER_GROWTH_OF_RUNS
    one = size(folders[0].checkpoint(1), "**/*")
    assert figures[-1]["checkpoints"] < 1.1 * one * figures[-1]["done"]
    assert not list(home.glob("ray/*"))
