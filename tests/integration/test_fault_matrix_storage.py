"""The long matrix of files, disks and databases: whatever is cut off, full or deleted, the same command ends with the
numbers of runs left undisturbed.

`pytest -n 0 -s -m slow tests/integration/test_fault_matrix*.py` prints what happened at each of the matrix's more than
forty points. Its short version is test_faults.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import read_events
from tests.integration import faults
from tests.integration.fault_points import STEPS, check_difference, first_at, summary
from tests.integration.faults import cut_last_line, flip, show, truncate
from tests.mlflow_runs import recorded_values, shown_values

pytestmark = pytest.mark.slow

#: Damage to a run that was stopped after its step 14 (its checkpoints are of steps 8 and 12), by what it does to it.
STOPPED: dict[str, Callable[[RunFolder], object]] = {
    "newest checkpoint: weights cut off": lambda run: truncate(run.checkpoint(12) / "model" / "model.safetensors"),
    "newest checkpoint: a bit flipped": lambda run: flip(next(run.checkpoint(12).glob("*.safetensors"))),
    "newest checkpoint: no manifest": lambda run: (run.checkpoint(12) / "manifest.json").unlink(),
    "metrics: last line cut off": lambda run: cut_last_line(run.metrics_file),
    "events: last line cut off": lambda run: cut_last_line(run.events_file),
    "metrics behind the checkpoint": lambda run: keep_lines(run.metrics_file, 10),
}

#: Damage to a run that is complete, and what the same command does then.
COMPLETE: dict[str, tuple[Callable[[RunFolder], object], list[str]]] = {
    "generations cut off": (lambda run: truncate(run.generations(STEPS)), ["resumed", "evaluated", "complete"]),
    "generations deleted": (lambda run: run.generations(STEPS).unlink(), ["resumed", "evaluated", "complete"]),
    "tokens cut off": (lambda run: truncate(run.tokens(STEPS)), []),
    "nothing": (lambda run: None, []),
    # Damaged: named, not counted, left as it is until a person has restored the file.
    "run.json cut off": (lambda run: truncate(run.run_file), []),
    "run.json deleted": (lambda run: run.run_file.unlink(), []),
}


def keep_lines(path: Path, number: int) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:number]) + b"\x00garbage\n")


def test_damaged_files(wide, wide_undisturbed):
    from tepo_lab.train.trial import Trial

    matrix = faults.Matrix("Files of stopped runs are damaged.")
    stopped = wide.root / "stopped"
    for run, folder in zip(wide.runs, wide.folders(stopped), strict=True):
        shutil.copytree(wide_undisturbed / "runs" / folder.name, folder.path)
        for path in (*folder.checkpoints.glob("step-*"), folder.path / "generations", folder.path / "tokens"):
            shutil.rmtree(path)
        for path in (folder.metrics_file, folder.events_file):
            path.unlink()
        trial = Trial(run.spec, folder)
        for _ in range(14):
            trial.advance()
        trial.close()
    before = faults.positions(wide.folders(stopped))
    for damage, folder in zip(STOPPED.values(), wide.folders(stopped), strict=True):
        damage(folder)
    wide.complete(stopped)
    for name, folder in zip(STOPPED, wide.folders(stopped), strict=True):
        begun = [event.step for event in read_events(folder) if event.event == "resumed"]
        expected = 12 if name.startswith(("metrics: ", "events: ")) else 8
        assert begun == [expected], (name, begun)
        matrix.row("a run stopped at 14", name, f"goes on from step {begun[0]}; repeated {14 - begun[0]}")
    assert {position.checkpoint for position in before.values()} == {12}
    check_difference(matrix, wide, stopped, wide_undisturbed)

    show("\nFiles of complete runs are damaged.")
    complete = wide.root / "complete"
    shutil.copytree(stopped, complete)
    folders = wide.folders(complete)
    run_files = {folder.run_file: folder.run_file.read_bytes() for folder in folders}
    counts = [len(read_events(folder)) for folder in folders]
    for (damage, _), folder in zip(COMPLETE.values(), folders, strict=True):
        damage(folder)
    truncate(complete / "sweeps" / "faults" / "sweep.json")
    truncate(complete / "mlflow.db")
    driver = wide.start(complete)
    assert driver.wait() == 1, driver.output[-3000:]
    for (name, (_, expected)), folder, count in zip(COMPLETE.items(), folders, counts, strict=True):
        later = [event.event for event in read_events(folder)[count:]]
        assert later == expected, (name, later)
        assert (f"Not done: {folder.name}: {folder.run_file}" in driver.output) == name.startswith("run.json")
        matrix.row("a complete run", name, "evaluated again" if later else "left alone")
    for path, content in run_files.items():
        path.write_bytes(content)
    wide.complete(complete)
    assert wide.difference(complete, wide_undisturbed, completions=2) == ""
    matrix.row("the home", "sweep.json, mlflow.db cut off", mirror_state(driver))


def mirror_state(driver: faults.Driver) -> str:
    lines = [line for line in driver.output.splitlines() if "MLflow" in line]
    return lines[0][:100] if lines else "made again"


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """A file system of that size. Skips the test where none may be mounted."""
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here (root may)")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Fill the disk, to which others write meanwhile, with a file that is returned."""
    ballast, size = disk / "ballast", 0
    with ballast.open("wb") as stream:
        while free := (state := os.statvfs(disk)).f_bavail * state.f_frsize:
            with suppress(OSError):
                os.posix_fallocate(stream.fileno(), size, free)
                size += free
    return ballast


def test_a_disk_that_fills_up(narrow, narrow_undisturbed):
    matrix = faults.Matrix("The disk is full.")
    with small_disk(narrow.root / "disk", 48) as disk:
        home = disk / "home"
        home.mkdir()
        folders = narrow.folders(home)

        ballast = fill(disk)
        driver = narrow.start(home)
        assert driver.wait() in (1, 2)
        matrix.row("disk", "full before the start", last_line(driver))
        ballast.unlink()

        # Full in the middle and for good: the retries end, and the command says why.
        driver = narrow.start(home, "resources.max_retries=1")
        assert faults.wait_for(lambda: all(faults.newest_checkpoint(folder) for folder in folders), driver)
        ballast = fill(disk)
        assert driver.wait() in (1, 2)
        before = faults.positions(folders)
        error = last_line(driver)
        ballast.unlink()

        # Full for a while: tried again with growing waits until there is room.
        driver = narrow.start(home)
        assert first_at("first step", driver, folders) is not None
        matrix.row("disk", "full to the end", f"{summary(folders, before)}; {error}")
        ballast = fill(disk)
        time.sleep(6)
        faults.wait_for(lambda: faults.trial_process(folders) is None, driver)
        before = faults.positions(folders)
        ballast.unlink()
        assert driver.wait() == 0, driver.output[-3000:]
        matrix.row("disk", "full for a while", summary(folders, before))
        check_difference(matrix, narrow, home, narrow_undisturbed)


def last_line(driver: faults.Driver) -> str:
    """The last line of a command that failed. Fails if there is a traceback."""
    assert "Traceback" not in driver.output, driver.output[-3000:]
    assert "No space left on device" in driver.output
    return driver.output.strip().splitlines()[-1][:120]


@contextmanager
def tracking_server(folder: Path, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real MLflow server with a database in `folder`."""
    from tepo_lab.track.ui import running_server

    with running_server(folder, port=port, tracking_uri=f"sqlite:///{folder}/server.db") as running:
        yield running


def mirrored(address: str, home: Path, folders: list[RunFolder]) -> bool:
    """Whether MLflow holds the runs and values of the records, and no others."""

    from tepo_lab.track.store import open_client

    expected = {folder.name: recorded_values(folder) for folder in folders}
    return shown_values(open_client(home, address), "faults") == expected


def test_a_tracking_server_that_dies_or_is_late(narrow, narrow_undisturbed, monkeypatch):
    from tepo_lab.track.rebuild import mirror_home

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    matrix = faults.Matrix("MLflow fails; training goes on.")
    place, port = narrow.root / "server", faults.free_port()
    place.mkdir()
    address = f"http://127.0.0.1:{port}"

    # Killed in the middle, and not back before the end.
    home = narrow.root / "server-killed"
    folders = narrow.folders(home)
    with tracking_server(place, port) as (_, server):
        driver = narrow.start(home, "--mlflow", address)
        assert faults.wait_for(lambda: any(folder.metrics() for folder in folders), driver)
        os.killpg(server.pid, signal.SIGKILL)
    assert driver.wait() == 0, driver.output[-3000:]
    assert "is behind the records" in driver.output
    assert narrow.difference(home, narrow_undisturbed) == ""
    with tracking_server(place, port):
        assert mirror_home(home, address, print) == len(folders)
        assert mirrored(address, home, folders)
    matrix.row("mlflow server", "killed in the middle", "complete; rebuilt with the same runs and values")

    # Down from the start, and up in the middle.
    home, place = narrow.root / "server-late", narrow.root / "late"
    folders = narrow.folders(home)
    place.mkdir()
    driver = narrow.start(home, "--mlflow", address)
    assert faults.wait_for(lambda: any(folder.metrics() for folder in folders), driver)
    with tracking_server(place, port):
        assert driver.wait() == 0, driver.output[-3000:]
        behind = "is behind the records" in driver.output
        mirror_home(home, address, print)
        assert mirrored(address, home, folders)
    assert narrow.difference(home, narrow_undisturbed) == ""
    matrix.row("mlflow server", "down at the start", f"complete; {'rebuilt' if behind else 'caught up by itself'}")


def test_the_homes_own_database_locked_and_deleted(narrow, narrow_undisturbed, monkeypatch):
    from tepo_lab.track.store import own_address

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    matrix = faults.Matrix("The MLflow database of the home fails; training goes on.")
    home = narrow.root / "own"
    folders = narrow.folders(home)
    database = home / "mlflow.db"
    driver = narrow.start(home)
    assert faults.wait_for(database.exists, driver)
    with sqlite3.connect(database, isolation_level=None) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        assert faults.wait_for(lambda: any(folder.metrics() for folder in folders), driver)
        steps = max(len(folder.metrics()) for folder in folders)
        assert faults.wait_for(lambda: max(len(folder.metrics()) for folder in folders) > steps, driver)
        lock.execute("ROLLBACK")
    database.unlink()
    matrix.row("mlflow.db", "locked, then deleted", f"training went on from step {steps}")
    assert driver.wait() == 0, driver.output[-3000:]
    assert narrow.difference(home, narrow_undisturbed) == ""
    assert mirrored(own_address(home), home, folders)
    matrix.row("mlflow.db", "at the end", "the same runs and values")
