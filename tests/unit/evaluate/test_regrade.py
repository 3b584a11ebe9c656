"""Grading again what a run has generated."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tepo_lab.errors import RecordError
from tepo_lab.evaluate.regrade import Regraded, named_folders, regrade
from tepo_lab.records.events import Complete, Evaluated, Started, Tally
from tepo_lab.records.files import RunFolder
from tepo_lab.records.generations import GENERATION_COLUMNS, read_generations
from tepo_lab.records.history import RunHistory, append_event
from tepo_lab.tasks.grading import GRADER
from tests.integration.command import call

#: (benchmark, response, answer, the old grade)
ROWS = [
    ("sum3", "\\boxed{05}", "5", 0),
    ("sum3", "\\boxed{6}", "5", 1),
    ("sum3", "none", "5", 0),
    ("mix4", "\\boxed{7}", "7", 1),
]


def generations(rows: list[tuple[str, str, str, int]]) -> pa.Table:
    keys = ("benchmark", "response", "answer", "correct")
    old = {"extracted": None, "how": "exact", "grader": "old", "prompt": "1+4=", "tokens": 3, "truncated": True}
    rows = [
        dict(zip(keys, row, strict=True)) | old | {"problem": "p", "sample": sample} for sample, row in enumerate(rows)
    ]
    return pa.Table.from_pylist([{column: row[column] for column in GENERATION_COLUMNS} for row in rows])


@pytest.fixture
def run(small_run) -> RunFolder:
    _, folder = small_run("base")
    folder.generations(0).parent.mkdir()
    pq.write_table(generations(ROWS), folder.generations(0))
    append_event(folder, Started())
    append_event(folder, Evaluated(step=0, sampler_mismatch=0.25))
    append_event(folder, Complete())
    return folder


def test_grades_are_made_again_and_the_rest_stays_as_it_was(run: RunFolder) -> None:
    assert regrade(run) == Regraded(run.name, generations=4, changed=2)
    table = pq.read_table(run.generations(0))
    assert table["correct"].to_pylist() == [1, 0, 0, 1]
    assert table["extracted"].to_pylist() == ["05", "6", None, "7"]
    assert table["how"].to_pylist() == ["exact", "exact", "none", "exact"]
    assert set(table["grader"].to_pylist()) == {GRADER}
    before = generations(ROWS)
    assert table.schema.names == before.schema.names
    for column in ("benchmark", "problem", "sample", "prompt", "response", "answer", "tokens", "truncated"):
        assert table[column].equals(before[column])
    content = run.generations(0).read_bytes()
    assert regrade(run).changed == 0
    assert run.generations(0).read_bytes() == content


def test_the_new_counts_are_recorded_and_the_outcome_stays(run: RunFolder) -> None:
    before = RunHistory.read(run)
    regrade(run)
    after = RunHistory.read(run)
    assert isinstance(after.outcome, Complete)
    assert after.outcome == before.outcome
    evaluation = after.evaluations[0]
    assert evaluation.counts == {"sum3": Tally(correct=1, graded=3), "mix4": Tally(correct=1, graded=1)}
    assert (evaluation.checks_sampler, evaluation.sampler_mismatch) == (True, 0.25)
    recorded = after.events[-1]
    assert isinstance(recorded, Evaluated)
    assert (recorded.grader, recorded.grades_changed) == (GRADER, 2)


@pytest.mark.parametrize(
    ("column", "values", "changed"),
    [
        ("correct", [7, 1, 0, 1], 2),
        ("correct", [None, None, 0, 1], 2),
        ("correct", None, 4),
        ("correct", ["right", "right", "wrong", "right"], 4),
        ("extracted", None, 2),
    ],
)
def test_grades_of_any_kind_are_replaced(run: RunFolder, column: str, values: list[Any] | None, changed: int) -> None:
    regrade(run)
    expected = pq.read_table(run.generations(0))
    table = generations(ROWS).drop_columns([column])
    pq.write_table(table if values is None else table.append_column(column, pa.array(values)), run.generations(0))
    assert regrade(run).changed == changed
    assert read_generations(run.generations(0), GENERATION_COLUMNS).select(expected.column_names).equals(expected)


def changed_bit(path: Path) -> None:
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(generations(ROWS), path, write_page_checksum=True, **plain)
    content = path.read_bytes()
    assert content.count(b"boxed{05}") == 1
    # One bit, and the file can still be read.
    path.write_bytes(content.replace(b"boxed{05}", b"boxed{04}"))


def without_tokens(path: Path) -> None:
    pq.write_table(generations(ROWS).drop_columns(["tokens"]), path)


def of_another_suite(path: Path) -> None:
    pq.write_table(generations([("aime24", "x", "5", 0)]), path)


@pytest.mark.parametrize("damage", [changed_bit, without_tokens, of_another_suite])
def test_a_damaged_file_is_refused_before_any_file_is_written(run: RunFolder, damage: Callable[[Path], None]) -> None:
    append_event(run, Evaluated(step=5))
    damage(run.generations(5))
    files = (run.generations(0), run.generations(5), run.events_file)
    before = [file.read_bytes() for file in files]
    with pytest.raises(RecordError, match=r"step-000005\.parquet"):
        regrade(run)
    assert [file.read_bytes() for file in files] == before


def test_runs_are_named_by_the_start_of_their_folder_and_damaged_ones_only_so(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = RunFolder(run.path.with_name("damaged"))
    damaged.path.mkdir()
    damaged.run_file.write_text("{")
    assert named_folders(tmp_path, []) == [run]
    assert "run damaged is left out" in capsys.readouterr().err
    assert named_folders(tmp_path, ["base-nano"]) == [run]
    assert named_folders(tmp_path, ["dam"]) == [damaged]
    with pytest.raises(RecordError, match="has no run 'tepo'"):
        named_folders(tmp_path, ["tepo"])
    with pytest.raises(RecordError, match=r"run\.json is damaged"):
        regrade(damaged)


def test_a_run_that_cannot_be_locked_is_passed_over(
    run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = run.path.with_name("a" + run.name)
    shutil.copytree(run.path, other)
    (other / "run.lock").unlink(missing_ok=True)
    (other / "run.lock").mkdir()
    done = call(capsys, monkeypatch, "regrade", "--home", str(run.home))
    assert (done.code, f"{run.name}: 4 generations" in done.stdout) == (1, True)
    assert f"run {other.name} is passed over" in done.stderr
    assert call(capsys, monkeypatch, "regrade", other.name, "--home", str(run.home)).code == 2
