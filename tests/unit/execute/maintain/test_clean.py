"""`tepo-lab clean` finds what no run needs, and touches no record and no run that is running."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from io import StringIO

import pytest
from rich.console import Console

from tepo_lab.execute.maintain.clean import known_runs, leftovers, leftovers_text, remove, size_text
from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.running.prepare import prepare_folder, write_sweep
from tepo_lab.execute.running.scratch import scratch_folder
from tepo_lab.records.files import RunFolder, append_line
from tepo_lab.records.lock import RunLock
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import expand, load_sweep, planned
from tests.leases import lease_of_another_node


@pytest.fixture(scope="module")
def dead_pid():
    """The number of a process that has ended."""
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    return int(done.stdout)


@pytest.fixture
def folder(tmp_path):
    """A complete run with its records and four checkpoints, two more than its policy keeps."""
    found = entry(tmp_path, planned(compose_run("tepo", "nano", ("trainer.steps=20",), seed=977)))
    prepare_folder(found)
    folder = found.folder
    append_line(folder.metrics_file, {"step": 1})
    suite = found.planned.spec.suite.benchmarks.items()
    tallies = {name: {"correct": 0, "graded": each.problems * each.samples} for name, each in suite}
    append_line(folder.events_file, {"time": 1.0, "event": "evaluated", "step": 20, "benchmarks": tallies})
    append_line(folder.events_file, {"time": 1.0, "event": "complete", "step": 20})
    for path in (folder.generations(20), folder.tokens(20), folder.log_file):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"PAR1PAR1")
    for step in (5, 10, 15, 20):
        (folder.checkpoint(step) / "model").mkdir(parents=True)
        (folder.checkpoint(step) / "model" / "weights").write_bytes(b"x" * 1000)
    return folder


def records(folder):
    kept = (folder.path.rglob("*.json*"), folder.path.rglob("*.parquet"), folder.path.rglob("*.log"))
    found = [path for paths in kept for path in paths if not path.name.endswith(".partial")]
    return {path: path.read_bytes() for path in found if path != folder.lease_file}


def names(found, home):
    return sorted(str(each.path.relative_to(home)) for each in found)


def test_checkpoints_beyond_policy_and_leftovers_of_the_dead_are_found_and_freed(tmp_path, folder, dead_pid):
    partial = folder.checkpoints / f".step-000025.{dead_pid}.partial"
    partial.mkdir()
    (partial / "weights").write_bytes(b"x" * 500)
    (folder.path / f".run.json.{dead_pid}.partial").write_bytes(b"x" * 10)
    (folder.path / f".metrics.jsonl.{os.getpid()}.partial").write_bytes(b"being written")
    with scratch_folder(tmp_path, "panel-e") as own:
        dead = own.with_name(f"{own.name[:-8]}00000000")
        shutil.copytree(own, dead)
        before = records(folder)
        found = leftovers(tmp_path, [folder])
    inside = f"runs/{folder.name}"
    assert names(found, tmp_path) == [
        f"ray/{dead.name}",
        f"{inside}/.run.json.{dead_pid}.partial",
        f"{inside}/checkpoints/.step-000025.{dead_pid}.partial",
        f"{inside}/checkpoints/step-000005",
        f"{inside}/checkpoints/step-000010",
    ]
    assert all(each.path.exists() for each in found)
    assert remove(found) == 2 * 1000 + 500 + 10
    assert not any(each.path.exists() for each in found)
    assert leftovers(tmp_path, [folder]) == []
    assert records(folder) == before
    assert (folder.path / f".metrics.jsonl.{os.getpid()}.partial").exists()


def test_another_machines_session_and_partial_file_are_left_alone_for_a_day(tmp_path):
    elsewhere, half = tmp_path / "ray" / "panel-e-elsewhere-01234567", tmp_path / "sweeps" / "panel-e"
    for path in (elsewhere, half):
        path.mkdir(parents=True)
    (elsewhere / "session.lock").touch()
    half /= ".table.md.4194305.partial"
    half.write_bytes(b"x")
    assert leftovers(tmp_path, []) == []
    before = time.time() - 2 * 86_400
    for path in (elsewhere / "session.lock", elsewhere, half):
        os.utime(path, (before, before))
    assert {leftover.path for leftover in leftovers(tmp_path, [])} == {elsewhere, half}


def test_fewer_checkpoints_may_be_kept_of_runs_that_are_over(tmp_path, folder):
    kept = {keep: 4 - len(leftovers(tmp_path, [folder], keep=keep)) for keep in (0, 1, 3, 9)}
    assert kept == {0: 0, 1: 1, 3: 3, 9: 4}
    append_line(folder.events_file, {"time": 2.0, "event": "resumed", "step": 20})
    assert len(leftovers(tmp_path, [folder], keep=0)) == 2


def test_a_run_that_is_going_on_is_left_alone_even_when_it_begins_after_the_look(tmp_path, folder):
    found = leftovers(tmp_path, [folder])
    with RunLock(folder):
        assert leftovers(tmp_path, [folder]) == []
        assert remove(found) == 0
    assert folder.checkpoint(5).exists()


def test_what_a_killed_writer_leaves_is_a_leftover(tmp_path, folder):
    code = (
        "import os, sys; from pathlib import Path; from tepo_lab.records.files import write_json; "
        "os.fsync = lambda descriptor: os._exit(1); write_json(Path(sys.argv[1]), {})"
    )
    before = set(folder.path.iterdir())
    subprocess.run([sys.executable, "-c", code, str(folder.path / "attempt.json")], check=False, timeout=60)
    (left,) = set(folder.path.iterdir()) - before
    assert str(left.relative_to(tmp_path)) in names(leftovers(tmp_path, [folder]), tmp_path)


def test_a_dead_lease_is_a_leftover(tmp_path, folder):
    lease_of_another_node(folder, age=3600)
    assert f"runs/{folder.name}/lease.json" in names(leftovers(tmp_path, [folder]), tmp_path)


@pytest.mark.integration
def test_runs_that_no_sweep_has_lose_their_checkpoints_only_when_asked(tmp_path, folder):
    assert folder.name not in known_runs(tmp_path)
    assert len(leftovers(tmp_path, [folder])) == 2
    before = records(folder)
    found = leftovers(tmp_path, [folder], unknown=True)
    assert len(found) == 4
    expansion = expand(*load_sweep("panel-e", ["seeds=[1]"]))
    write_sweep(tmp_path, expansion, [folder])
    assert len(leftovers(tmp_path, [folder], unknown=True)) == 2
    remove(found)
    assert records(folder) == before


@pytest.mark.parametrize("link", ["run", "checkpoints"])
def test_what_is_behind_a_link_out_of_the_home_is_left_alone(tmp_path, folder, link):
    home = tmp_path / "other"
    mine = RunFolder(home / "runs" / folder.name)
    if link == "run":
        mine.path.parent.mkdir(parents=True)
        mine.path.symlink_to(folder.path)
    else:
        shutil.copytree(folder.path, mine.path)
        shutil.rmtree(mine.checkpoints)
        mine.checkpoints.symlink_to(folder.checkpoints)
    assert leftovers(home, [mine], keep=0, unknown=True) == []


def test_of_a_linked_checkpoint_only_the_link_is_removed(tmp_path, folder):
    target = tmp_path / "elsewhere"
    folder.checkpoint(5).rename(target)
    folder.checkpoint(5).symlink_to(target)
    remove(leftovers(tmp_path, [folder]))
    assert not folder.checkpoint(5).is_symlink()
    assert (target / "model" / "weights").stat().st_size == 1000


def test_sizes_as_text(tmp_path, folder):
    sizes = {0: "0 B", 999: "999 B", 1500: "1.5 kB", 2.5e9: "2.5 GB", 3e15: "3000.0 TB"}
    assert {size: size_text(size) for size in sizes} == sizes
    found = leftovers(tmp_path, [folder])
    for removed in (False, True):
        stream = StringIO()
        Console(file=stream, width=160).print(leftovers_text(tmp_path, found, removed=removed))
        assert "2.0 kB" in stream.getvalue()
        assert ("--yes" in stream.getvalue()) == (not removed)
