"""The long matrix of processes: whichever is killed, the same command ends with the numbers of undisturbed runs.

`pytest -n 0 -s -m slow tests/integration/test_fault_matrix*.py` prints what happened at each of the matrix's more than
forty points. Its short version is test_faults.py.
"""

from __future__ import annotations

import time

import pytest

from tepo_lab.execute.showing.why import causes
from tepo_lab.records.events import Failed
from tepo_lab.records.history import RunHistory
from tests.integration import faults
from tests.integration.fault_points import check_difference, first_at, reached, summary

pytestmark = pytest.mark.slow

#: When the driver is killed.
DRIVER = (
    "run.json written",
    "opened",
    "first step",
    "saving a checkpoint",
    "after a checkpoint",
    "first step",
    "third step",
    "sixth step",
    "evaluating",
    "evaluated",
    "printing the table",
)

#: When each of six runs' processes is killed: no run more than twice, for each retry of it waits longer.
TRIALS = (
    ("opened", "opened"),
    ("first step", "evaluating"),
    ("saving a checkpoint", "third step"),
    ("after a checkpoint", "sixth step"),
    ("third step", "saving a checkpoint"),
    ("sixth step", "evaluating"),
)

#: When the process of a run that may be tried again once is killed.
AGAIN = ("first step", "third step")

#: Which of Ray's processes is killed when, under three drivers.
RAY = (
    (("raylet", "run.json written"), ("gcs_server", "opened")),
    (("gcs_server", "first step"), ("raylet", "after a checkpoint")),
    (("raylet", "third step"), ("gcs_server", "evaluating")),
)


def test_the_matrix_kills_at_least_thirty_times():
    """Each test fails when one of its kills did not come about."""
    assert len(DRIVER) + sum(map(len, TRIALS)) + len(AGAIN) + sum(map(len, RAY)) >= 30


def test_the_driver_killed_at_every_moment(bench, undisturbed):
    matrix = faults.Matrix("The driver is killed; the same command is given again.")
    home = bench.root / "driver"
    folders = bench.folders(home)
    before = row = None
    for moment in DRIVER:
        driver = bench.start(home)
        if moment == "printing the table":
            came = faults.wait_for(lambda: all(map(faults.is_complete, folders)), driver)
        else:
            came = first_at(moment, driver, folders) is not None
        hit = came and driver.is_running
        driver.kill()
        faults.wait_until_free(folders)
        if row is not None:
            matrix.row("driver", row, summary(folders, before))
        before, row = faults.positions(folders), moment
        assert hit, f"{moment}: {driver.output[-2000:]}"
    bench.complete(home)
    matrix.row("driver", row, summary(folders, before))
    check_difference(matrix, bench, home, undisturbed)


def test_trial_processes_killed_under_one_driver(wide, wide_undisturbed):
    matrix = faults.Matrix("Trials' processes are killed; the driver goes on by itself.")
    home = wide.root / "trials"
    folders = wide.folders(home)
    driver = wide.start(home)
    due = {folder.name: list(moments) for folder, moments in zip(folders, TRIALS, strict=True)}
    steps = dict.fromkeys(due, 0)
    points = []

    def all_struck():
        for folder in folders:
            moments = due[folder.name]
            has_come = bool(moments) and reached(moments[0], folder, steps[folder.name])
            if has_come and faults.kill_process(faults.owner(folder)):
                before = faults.positions([folder])
                points.append((moments.pop(0), folder, before))
                steps[folder.name] = before[folder.name].steps
        return not any(due.values())

    assert faults.wait_for(all_struck, driver, seconds=300), (due, driver.output[-3000:])
    assert driver.wait() == 0, driver.output[-3000:]
    for moment, folder, before in points:
        matrix.row("trial", moment, summary([folder], before))
    check_difference(matrix, wide, home, wide_undisturbed)


def test_a_process_killed_again_and_again_is_the_machines_failure(narrow, narrow_undisturbed):
    matrix = faults.Matrix("A trial's process is killed more often than it is tried again, as for want of memory.")
    home = narrow.root / "again"
    (folder,) = narrow.folders(home)
    driver = narrow.start(home, "resources.max_retries=1")
    for moment in AGAIN:
        assert first_at(moment, driver, [folder]) == folder
        assert faults.kill_process(faults.owner(folder))
        before = faults.positions([folder])
    assert driver.wait() == 1
    assert "Traceback" not in driver.output
    outcome = RunHistory.read(folder).outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind == "machine"
    (cause,) = causes([folder])
    assert cause.kind == "machine"
    narrow.complete(home)
    matrix.row("trial", "twice, one retry", f"{summary([folder], before)}; failed: {cause.error[:80]}")
    check_difference(matrix, narrow, home, narrow_undisturbed)


def test_rays_own_processes_killed_under_one_driver(bench, undisturbed):
    matrix = faults.Matrix("Ray's processes are killed; the driver starts Ray again.")
    for number, points in enumerate(RAY):
        home = bench.root / f"ray-{number}"
        folders = bench.folders(home)
        driver = bench.start(home)
        for times, (name, moment) in enumerate(points, start=1):
            assert first_at(moment, driver, folders) is not None, driver.output[-3000:]
            assert faults.kill_process(driver.child(name))
            killed = time.monotonic()
            faults.wait_for(
                lambda driver=driver, times=times: driver.output.count("Ray has died; it is started again.") == times,
                driver,
            )
            noticed = time.monotonic() - killed
            faults.wait_until_free(folders)
            before = faults.positions(folders)
            if times < len(points):
                faults.wait_for(lambda folders=folders: faults.trial_process(folders) is not None, driver)
            else:
                assert driver.wait() == 0, driver.output[-3000:]
            matrix.row(name, moment, f"noticed after {noticed:.0f} s; {summary(folders, before)}")
        check_difference(matrix, bench, home, undisturbed)
