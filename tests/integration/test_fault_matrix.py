"""The long matrix: whatever dies, is damaged or fills up, the same command ends with the numbers of runs left in peace.

`pytest -n 0 -s -m slow tests/integration/test_fault_matrix.py` prints what happened at each of its more than forty
points. Its short version is test_faults.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow_runs import shown_values

from tepo_lab.schema.record import RunFolder
from tests.integration.faults import (
    Bench,
    Driver,
    Matrix,
    cut_last_line,
    flip,
    free_port,
    holder,
    kill_process,
    newest_checkpoint,
    standings,
    trial_process,
    truncate,
    wait_for,
    wait_until_free,
)

pytestmark = pytest.mark.slow

STEPS = 24


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("matrix"), STEPS)


@pytest.fixture(scope="module")
def peaceful(bench):
    return bench.leave_in_peace(bench.root / "peaceful")


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Six runs, for faults that are each of one run."""
    return Bench(tmp_path_factory.mktemp("wide"), STEPS, seeds=(1, 2, 3))


@pytest.fixture(scope="module")
def wide_peaceful(wide):
    return wide.leave_in_peace(wide.root / "peaceful")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """One run, for faults that are of the home."""
    return Bench(tmp_path_factory.mktemp("narrow"), STEPS, arms=("tepo",))


@pytest.fixture(scope="module")
def narrow_peaceful(narrow):
    return narrow.leave_in_peace(narrow.root / "peaceful")


def reached(moment: str, folder: RunFolder, steps_before: int) -> bool:
    """Whether a run has come to the moment; `steps_before` are those it had when its driver was started."""
    if moment == "run.json written":
        return folder.run_file.exists()
    if moment == "opened":
        return holder(folder) is not None
    if moment == "saving a checkpoint":
        return any(folder.checkpoints.glob(".*.partial"))
    steps = len(folder.metrics()) if folder.metrics_file.exists() else 0
    if moment == "after a checkpoint":
        checkpoint = newest_checkpoint(folder)
        return bool(checkpoint) and int(checkpoint.name[-6:]) > steps_before and holder(folder) is not None
    if moment == "evaluating":
        return steps == STEPS and holder(folder) is not None
    if moment == "evaluated":
        return bool(folder.evaluated_steps())
    more = {"first step": 1, "third step": 3, "sixth step": 6}[moment]
    return steps >= steps_before + more and holder(folder) is not None


def first_at(moment: str, folders: list[RunFolder], before: dict[str, int]) -> RunFolder | None:
    return next((each for each in folders if reached(moment, each, before[each.name])), None)


def told(folders: list[RunFolder], before: dict) -> str:
    """Where the runs were at the fault and what was repeated since. Fails when that is too much."""
    repeated = [before[folder.name].repeated(folder) for folder in folders]
    stood = ", ".join(
        "done" if each.is_done else f"step {each.steps} (checkpoint {each.checkpoint})" for each in before.values()
    )
    return f"{stood}; repeated {sum(repeated)}"


def test_the_driver_killed_at_every_moment(bench, peaceful):
    matrix = Matrix("The driver is killed; the same command is given again.")
    home = bench.root / "driver"
    folders = bench.folders(home)
    before = None
    moments: list[tuple[str, Callable[[Driver, dict[str, int]], bool]]] = [
        (name, lambda driver, marks, name=name: first_at(name, folders, marks) is not None)
        for name in (
            "run.json written",
            "opened",
            "first step",
            "saving a checkpoint",
            "after a checkpoint",
            "first step",
            "third step",
            "sixth step",
            "evaluating",
        )
    ]
    moments += [
        ("evaluated", lambda driver, marks: any(folder.evaluated_steps() for folder in folders)),
        ("printing the table", lambda driver, marks: all(complete(folder) for folder in folders)),
    ]
    row = None
    for moment, is_now in moments:
        driver = bench.start(home)
        marks = {folder.name: len(folder.metrics()) for folder in folders}
        came = wait_for(lambda driver=driver, marks=marks, is_now=is_now: is_now(driver, marks), driver)
        hit = came and driver.is_running
        driver.kill()
        wait_until_free(folders)
        if row is not None:
            matrix.row("driver", row, told(folders, before))
        before, row = standings(folders), moment
        assert hit, f"{moment}: {driver.said[-2000:]}"
    bench.complete(home)
    matrix.row("driver", row, told(folders, before))
    assert bench.difference(home, peaceful) == ""
    matrix.row("driver", "at rest", "bit for bit as left in peace")


def complete(folder: RunFolder) -> bool:
    events = folder.events()
    return bool(events) and events[-1]["event"] == "complete"


def test_trial_processes_killed_under_one_driver(wide, wide_peaceful):
    matrix = Matrix("Trials' processes are killed; the driver goes on by itself.")
    home = wide.root / "trials"
    folders = wide.folders(home)
    driver = wide.start(home)
    kills = {folder.name: 0 for folder in folders}
    points = []
    for moment in (
        "opened",
        "first step",
        "saving a checkpoint",
        "after a checkpoint",
        "third step",
        "evaluating",
        "evaluated",
        "sixth step",
    ):
        marks = {folder.name: len(folder.metrics()) for folder in folders}
        # Each retry of a run waits longer: no run is hit more than twice.
        able = [folder for folder in folders if kills[folder.name] < 2 and not complete(folder)]
        if not wait_for(
            lambda able=able, moment=moment, marks=marks: first_at(moment, able, marks) is not None, driver
        ):
            break
        folder = first_at(moment, able, marks)
        if folder is None or not kill_process(holder(folder)):
            continue
        kills[folder.name] += 1
        points.append((moment, folder, standings([folder])))
    assert driver.wait() == 0, driver.said[-3000:]
    for moment, folder, before in points:
        matrix.row("trial", moment, told([folder], before))
    assert wide.difference(home, wide_peaceful) == ""
    matrix.row("driver", "at rest", "bit for bit as left in peace")
    assert len(points) >= 6


def test_a_process_killed_again_and_again_is_the_machines_failure(narrow, narrow_peaceful):
    from tepo_lab.execute.why import causes

    matrix = Matrix("A trial's process is killed more often than it is tried again, as for want of memory.")
    home = narrow.root / "again"
    (folder,) = narrow.folders(home)
    driver = narrow.start(home, "resources.max_retries=1")
    for moment in ("first step", "third step"):
        marks = {folder.name: len(folder.metrics())}
        assert wait_for(lambda at=moment, before=marks: first_at(at, [folder], before) is not None, driver)
        assert kill_process(holder(folder))
        before = standings([folder])
    assert driver.wait() == 1
    assert "Traceback" not in driver.said
    failed = [event for event in folder.events() if event["event"] == "failed"]
    assert [event["kind"] for event in failed] == ["machine"]
    (cause,) = causes([folder])
    assert "often for want of memory" in cause.mend
    narrow.complete(home)
    matrix.row("trial", "twice, one retry", f"{told([folder], before)}; failed: {cause.error[:80]}")
    assert narrow.difference(home, narrow_peaceful) == ""
    matrix.row("driver", "at rest", "bit for bit as left in peace")


def test_rays_own_processes_killed_under_one_driver(bench, peaceful):
    matrix = Matrix("Ray's processes are killed; the driver starts Ray again.")
    for number, points in enumerate(
        (
            (("raylet", "run.json written"), ("gcs_server", "opened")),
            (("gcs_server", "first step"), ("raylet", "after a checkpoint")),
            (("raylet", "third step"), ("gcs_server", "evaluating")),
        )
    ):
        home = bench.root / f"ray-{number}"
        folders = bench.folders(home)
        driver = bench.start(home)
        for times, (name, moment) in enumerate(points, start=1):
            marks = {folder.name: len(folder.metrics()) for folder in folders}
            assert wait_for(
                lambda folders=folders, moment=moment, marks=marks: first_at(moment, folders, marks) is not None, driver
            ), driver.said[-3000:]
            assert kill_process(driver.child(name))
            killed = time.monotonic()
            wait_for(
                lambda driver=driver, times=times: driver.said.count("Ray has died; it is started again.") == times,
                driver,
            )
            noticed = time.monotonic() - killed
            wait_until_free(folders)
            before = standings(folders)
            if times < len(points):
                wait_for(lambda folders=folders: trial_process(folders) is not None, driver)
            else:
                assert driver.wait() == 0, driver.said[-3000:]
            matrix.row(name, moment, f"noticed after {noticed:.0f} s; {told(folders, before)}")
        assert bench.difference(home, peaceful) == ""
        matrix.row("driver", "at rest", "bit for bit as left in peace")


#: Damage to a run that was stopped after its step 14 (its checkpoints are of steps 8 and 12), by what it does to it.
STOPPED: dict[str, Callable[[RunFolder], object]] = {
    "newest checkpoint: weights cut off": lambda run: truncate(run.checkpoint(12) / "model" / "model.safetensors"),
    "newest checkpoint: a bit flipped": lambda run: flip(run.checkpoint(12) / "training.pt"),
    "newest checkpoint: no manifest": lambda run: (run.checkpoint(12) / "manifest.json").unlink(),
    "metrics: last line cut off": lambda run: cut_last_line(run.metrics_file),
    "events: last line cut off": lambda run: cut_last_line(run.events_file),
    "metrics behind the checkpoint": lambda run: keep_lines(run.metrics_file, 10),
}

#: Damage to a run that is done.
DONE: dict[str, Callable[[RunFolder], object]] = {
    "generations cut off": lambda run: truncate(run.generations(STEPS)),
    "generations: a bit flipped": lambda run: flip(run.generations(STEPS), 0.05),
    "generations gone": lambda run: run.generations(STEPS).unlink(),
    "run.json cut off": lambda run: truncate(run.run_file),
    "run.json gone": lambda run: run.run_file.unlink(),
    "tokens cut off": lambda run: truncate(run.tokens(STEPS)),
}


def keep_lines(path: Path, number: int) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:number]) + b"\x00garbage\n")


def test_damaged_files(wide, wide_peaceful):
    from tepo_lab.train.trial import Trial

    matrix = Matrix("Files of stopped runs are damaged.")
    stopped = wide.root / "stopped"
    for each, folder in zip(wide.runs, wide.folders(stopped), strict=True):
        shutil.copytree(wide_peaceful / "runs" / folder.name, folder.path)
        for path in (*folder.checkpoints.glob("step-*"), folder.path / "generations", folder.path / "tokens"):
            shutil.rmtree(path)
        for path in (folder.metrics_file, folder.events_file):
            path.unlink()
        trial = Trial(each.spec, folder)
        for _ in range(14):
            trial.advance()
        trial.close()
    before = standings(wide.folders(stopped))
    for damage, folder in zip(STOPPED.values(), wide.folders(stopped), strict=True):
        damage(folder)
    wide.complete(stopped)
    for name, folder in zip(STOPPED, wide.folders(stopped), strict=True):
        begun = [event["step"] for event in folder.events() if event["event"] == "resumed"]
        expected = 12 if name.startswith(("metrics: ", "events: ")) else 8
        assert begun == [expected], (name, begun)
        matrix.row("a run stopped at 14", name, f"goes on from step {begun[0]}; repeated {14 - begun[0]}")
    assert {each.checkpoint for each in before.values()} == {12}
    assert wide.difference(stopped, wide_peaceful) == ""
    matrix.row("driver", "at rest", "bit for bit as left in peace")

    matrix.title = "Files of runs that are done are damaged."
    done = wide.root / "done"
    shutil.copytree(stopped, done)
    for damage, folder in zip(DONE.values(), wide.folders(done), strict=True):
        damage(folder)
    truncate(done / "sweeps" / "faults" / "sweep.json")
    truncate(done / "mlflow.db")
    counts = [len(folder.events()) for folder in wide.folders(done)]
    driver = wide.complete(done)
    for name, folder, count in zip(DONE, wide.folders(done), counts, strict=True):
        later = [event["event"] for event in folder.events()[count:]]
        wanted = ["resumed", "evaluated", "complete"] if name.startswith("generations") else []
        assert later == wanted, (name, later)
        matrix.row("a run that is done", name, "evaluated again" if later else "left alone")
        if name.startswith("run.json"):
            assert folder.run()["id"] in {each.run_id for each in wide.runs}
    assert "set aside" in driver.said
    assert wide.difference(done, wide_peaceful, completions=2) == ""
    matrix.row("the home", "sweep.json, mlflow.db cut off", mirror_state(driver))


def mirror_state(driver: Driver) -> str:
    lines = [line for line in driver.said.splitlines() if "MLflow" in line]
    return lines[0][:100] if lines else "made anew"


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


def fill(disk: Path, leave: int) -> Path:
    """Fill the disk but for so many bytes, with a file that is returned."""
    ballast = disk / "ballast"
    state = os.statvfs(disk)
    with ballast.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, state.f_bavail * state.f_frsize - leave)
    return ballast


def free(disk: Path) -> int:
    state = os.statvfs(disk)
    return state.f_bavail * state.f_frsize


def test_a_disk_that_fills_up(narrow, narrow_peaceful):
    matrix = Matrix("The disk is full.")
    with small_disk(narrow.root / "disk", 48) as disk:
        home = disk / "home"
        home.mkdir()
        folders = narrow.folders(home)

        ballast = fill(disk, 0)
        driver = narrow.start(home)
        assert driver.wait() in (1, 2)
        matrix.row("disk", "full before the start", last_line(driver))
        ballast.unlink()

        # Full in the middle and for good: the retries end, and the command says why.
        driver = narrow.start(home, "resources.max_retries=1")
        assert wait_for(lambda: all(newest_checkpoint(folder) for folder in folders), driver)
        ballast = fill(disk, 0)
        assert driver.wait() in (1, 2)
        before = standings(folders)
        said = last_line(driver)
        ballast.unlink()

        # Full for a while: tried again with growing waits until there is room.
        driver = narrow.start(home)
        marks = {folder.name: len(folder.metrics()) for folder in folders}
        assert wait_for(lambda: first_at("first step", folders, marks) is not None, driver)
        matrix.row("disk", "full to the end", f"{told(folders, before)}; {said}")
        ballast = fill(disk, 0)
        time.sleep(6)
        wait_for(lambda: trial_process(folders) is None, driver)
        before = standings(folders)
        ballast.unlink()
        assert driver.wait() == 0, driver.said[-3000:]
        matrix.row("disk", "full for a while", told(folders, before))
        assert narrow.difference(home, narrow_peaceful) == ""
        matrix.row("driver", "at rest", "bit for bit as left in peace")


def last_line(driver: Driver) -> str:
    """What a command that failed said last. Fails if that is no line for people."""
    assert "Traceback" not in driver.said, driver.said[-3000:]
    assert "No space left on device" in driver.said
    return driver.said.strip().splitlines()[-1][:120]


@contextmanager
def tracking_server(folder: Path, port: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real MLflow server with a database in `folder`."""
    from tepo_lab.track.ui import running_server

    with running_server(folder, port=port, tracking_uri=f"sqlite:///{folder}/server.db") as found:
        yield found


def mirrored(address: str, home: Path, folders: list[RunFolder]) -> bool:
    """Whether MLflow holds the runs and values of the records, and no others."""
    from tepo_lab.track.state import run_state
    from tepo_lab.track.store import open_client

    expected = {folder.name: run_state(folder, "faults").values for folder in folders}
    return shown_values(open_client(home, address), "faults") == expected


def test_a_tracking_server_that_dies_or_is_late(narrow, narrow_peaceful, monkeypatch):
    from tepo_lab.track.mirror import rebuild

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    matrix = Matrix("MLflow fails; training goes on.")
    place, port = narrow.root / "server", free_port()
    place.mkdir()
    address = f"http://127.0.0.1:{port}"

    # Killed in the middle, and not back before the end.
    home = narrow.root / "server-killed"
    folders = narrow.folders(home)
    with tracking_server(place, port) as (_, server):
        driver = narrow.start(home, "--mlflow", address)
        assert wait_for(lambda: any(folder.metrics() for folder in folders), driver)
        os.killpg(server.pid, signal.SIGKILL)
    assert driver.wait() == 0, driver.said[-3000:]
    assert "is behind the records" in driver.said
    assert narrow.difference(home, narrow_peaceful) == ""
    with tracking_server(place, port):
        assert rebuild(home, address) == len(folders)
        assert mirrored(address, home, folders)
    matrix.row("mlflow server", "killed in the middle", "complete; rebuilt with the same runs and values")

    # Down from the start, and up in the middle.
    home, place = narrow.root / "server-late", narrow.root / "late"
    folders = narrow.folders(home)
    place.mkdir()
    driver = narrow.start(home, "--mlflow", address)
    assert wait_for(lambda: any(folder.metrics() for folder in folders), driver)
    with tracking_server(place, port):
        assert driver.wait() == 0, driver.said[-3000:]
        behind = "is behind the records" in driver.said
        rebuild(home, address)
        assert mirrored(address, home, folders)
    assert narrow.difference(home, narrow_peaceful) == ""
    matrix.row("mlflow server", "down at the start", f"complete; {'rebuilt' if behind else 'caught up by itself'}")


def test_the_homes_own_database_locked_and_deleted(narrow, narrow_peaceful, monkeypatch):
    from tepo_lab.track.store import own_address

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    matrix = Matrix("The MLflow database of the home fails; training goes on.")
    home = narrow.root / "own"
    folders = narrow.folders(home)
    database = home / "mlflow.db"
    driver = narrow.start(home)
    assert wait_for(database.exists, driver)
    with sqlite3.connect(database, isolation_level=None) as lock:
        lock.execute("BEGIN EXCLUSIVE")
        assert wait_for(lambda: any(folder.metrics() for folder in folders), driver)
        steps = max(len(folder.metrics()) for folder in folders)
        assert wait_for(lambda: max(len(folder.metrics()) for folder in folders) > steps, driver)
        lock.execute("ROLLBACK")
    database.unlink()
    matrix.row("mlflow.db", "locked, then deleted", f"training went on from step {steps}")
    assert driver.wait() == 0, driver.said[-3000:]
    assert narrow.difference(home, narrow_peaceful) == ""
    assert mirrored(own_address(home), home, folders)
    matrix.row("mlflow.db", "at the end", "the same runs and values")
