"""Files of records that a disk has damaged are told from good ones."""

from __future__ import annotations

import errno
import random

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tepo_lab.records.footers import generations_of
from tepo_lab.records.repair import condition_of, lacks_grades_alone, marked_steps, set_aside_damaged

from tepo_lab.evaluate.suite import write_generations
from tepo_lab.execute.planning.actions import fault_at_end
from tepo_lab.records.files import GENERATION_COLUMNS, RunFolder, append_line
from tepo_lab.records.generations import LASTING
from tepo_lab.registry.compose import compose_run
from tests.conftest import SMALL


def rows():
    for index in range(64):
        row = {name: f"{name} {index}" for name in GENERATION_COLUMNS}
        yield row | {"sample": index % 7, "tokens": index % 5, "correct": index % 2, "truncated": index % 3 == 0}


def test_no_bit_of_the_generations_can_change_unseen(tmp_path):
    path = tmp_path / "step-000004.parquet"
    write_generations(path, list(rows()))
    whole, before = path.read_bytes(), parquet.read_table(path)
    draw = random.Random(0)
    damaged = 0
    for place in range(0, len(whole), 5):
        content = bytearray(whole)
        content[place] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        if condition_of(path) == "whole":
            # A bit that says nothing about the values: a statistic, the writer's name.
            table = parquet.read_table(pa.BufferReader(bytes(content)))
            assert all(table[name].equals(before[name]) for name in LASTING)
        else:
            damaged += 1
    assert damaged > 0.5 * len(whole) / 5


def graded(suite):
    """Generations of a whole suite."""
    for name, benchmark in suite.benchmarks.items():
        for problem in range(benchmark.problems):
            for sample in range(benchmark.samples):
                row = dict.fromkeys(GENERATION_COLUMNS, "text") | {"benchmark": name, "problem": str(problem)}
                yield row | {"sample": sample, "tokens": 3, "truncated": False, "correct": 1}


@pytest.mark.parametrize(
    ("change", "is_whole"),
    [
        (lambda rows: None, True),
        (lambda rows: rows.pop(), False),
        (lambda rows: rows.append(rows[0]), False),
        (lambda rows: rows.__setitem__(0, rows[1]), False),
        (lambda rows: rows[0].update(correct=None), False),
        (lambda rows: rows[0].update(correct=7), False),
        (lambda rows: rows[0].update(benchmark="other"), False),
        (lambda rows: rows[0].update(problem="9999"), False),
    ],
    ids=[
        "whole",
        "one less",
        "one twice",
        "one in place of another",
        "not graded",
        "no grade",
        "another's",
        "a problem more",
    ],
)
def test_an_evaluation_that_is_not_graded_in_full_counts_as_not_made(tmp_path, change, is_whole):
    suite = compose_run("tepo", "nano", SMALL, seed=1).suite
    folder = RunFolder(tmp_path / "run")
    rows = list(graded(suite))
    change(rows)
    write_generations(folder.generations(4), rows)
    moved = set_aside_damaged(folder, suite)
    assert (moved == [], folder.evaluated_steps() == [4]) == (is_whole, is_whole)


def test_what_cannot_be_read_is_set_aside_and_kept(tmp_path):
    folder = RunFolder(tmp_path / "run")
    for step in (2, 4):
        write_generations(folder.generations(step), list(rows()))
        folder.tokens(step).parent.mkdir(exist_ok=True)
        folder.tokens(step).write_text('{"step": 2, "groups": []}')
    content = folder.generations(2).read_bytes()
    folder.generations(2).write_bytes(content[: len(content) // 2])
    folder.tokens(4).write_text('{"step": 4, "gro')
    moved = set_aside_damaged(folder)
    assert [path.name for path in moved] == ["step-000002.parquet.damaged", "step-000004.json.damaged"]
    assert (folder.evaluated_steps(), folder.token_steps()) == ([4], [2])
    assert moved[0].read_bytes() == content[: len(content) // 2]
    assert set_aside_damaged(folder) == []


def finished(home, *checkpoints):
    """A run of 20 steps that was evaluated at 10 on the way, and has these checkpoints."""
    folder = RunFolder(home / "run")
    for step in (10, 20):
        write_generations(folder.generations(step), list(rows()))
        append_line(folder.events_file, {"time": 1.0, "event": "evaluated", "step": step})
    append_line(folder.events_file, {"time": 1.0, "event": "complete", "step": 20})
    for step in checkpoints:
        folder.checkpoint(step).mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("checkpoints", "step", "is_moved"),
    [((15, 20), 20, True), ((15,), 20, True), ((), 20, False), ((15, 20), 10, False), ((10,), 10, False)],
    ids=["at its end", "trained again to its end", "no checkpoint", "on the way", "on the way, with its checkpoint"],
)
def test_only_what_a_checkpoint_makes_again_is_set_aside(tmp_path, checkpoints, step, is_moved):
    folder = finished(tmp_path, *checkpoints)
    whole = folder.generations(step).read_bytes()
    folder.generations(step).write_bytes(whole[:-400] + whole[-300:])
    for _ in range(2):
        moved = set_aside_damaged(folder)
        assert (folder.generations(step).exists(), marked_steps(folder)) == (
            not is_moved,
            set() if is_moved else {step},
        )
        assert len(moved) == is_moved
        if is_moved:
            break
    # A whole file in its place counts, at once and after the next look.
    folder.generations(step).write_bytes(whole)
    assert marked_steps(folder) == set()
    assert set_aside_damaged(folder) == []


@pytest.mark.parametrize("grade", [None, 7])
def test_generations_that_lack_grades_alone_are_told_from_others(tmp_path, grade):
    suite = compose_run("tepo", "nano", SMALL, seed=1).suite
    folder, rows = finished(tmp_path), list(graded(suite))
    for lacking in (True, False):
        rows[0]["correct"] = grade
        write_generations(folder.generations(20), rows if lacking else rows[:-1])
        assert set_aside_damaged(folder, suite) == []
        assert (20 in marked_steps(folder), lacks_grades_alone(folder, 20)) == (True, lacking)
        fault = fault_at_end(folder, folder.events(), 20, generations_of(suite))
        assert fault.is_lost
        assert ("is not graded in full" if lacking else "is damaged or gone") in fault.said
        assert fault.mend.startswith("tepo-lab regrade" if lacking else "remove ")


def test_nothing_set_aside_is_overwritten(tmp_path):
    folder = finished(tmp_path, 20)
    for content in (b"first", b"second", b"third"):
        folder.generations(20).write_bytes(content)
        set_aside_damaged(folder)
    kept = sorted(folder.path.glob("generations/*.damaged*"))
    assert [path.name.partition(".parquet")[2] for path in kept] == [".damaged", ".damaged.2", ".damaged.3"]
    assert [path.read_bytes() for path in kept] == [b"first", b"second", b"third"]


def test_generations_are_read_once(tmp_path, monkeypatch):
    suite = compose_run("tepo", "nano", SMALL, seed=1).suite
    folder, read, seen = RunFolder(tmp_path / "run"), parquet.read_table, []
    write_generations(folder.generations(4), list(graded(suite)))
    monkeypatch.setattr(parquet, "read_table", lambda path, **settings: seen.append(path) or read(path, **settings))
    assert set_aside_damaged(folder, suite) == []
    assert seen == [folder.generations(4)]


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many open files"), pa.ArrowMemoryError("malloc failed")])
def test_generations_that_cannot_be_read_just_now_stay_where_they_are(tmp_path, monkeypatch, error):
    folder = finished(tmp_path, 20)

    def fail(path, **settings):
        raise error

    monkeypatch.setattr(parquet, "read_table", fail)
    with pytest.raises(type(error)):
        set_aside_damaged(folder)
    assert folder.evaluated_steps() == [10, 20]


def test_generations_that_the_disk_does_not_give_back_are_damaged(tmp_path, monkeypatch):
    def fail(path, **settings):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(parquet, "read_table", fail)
    assert condition_of(tmp_path / "step-000001.parquet") == "damaged"
