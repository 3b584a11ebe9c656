"""The long matrix of processes: whichever is killed, the same command ends with the numbers of runs left in peace.

`pytest -n 0 -s -m slow tests/integration/test_fault_matrix*.py` prints what happened at each of the matrix's more than
forty points. Its short version is test_faults.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.integration.fault_points import first_at, told
from tests.integration.faults import (
    Driver,
    Matrix,
    holder,
    is_complete,
    kill_process,
    standings,
    trial_process,
    wait_for,
    wait_until_free,
)

pytestmark = pytest.mark.slow


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
        ("printing the table", lambda driver, marks: all(is_complete(folder) for folder in folders)),
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
        able = [folder for folder in folders if kills[folder.name] < 2 and not is_complete(folder)]
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
