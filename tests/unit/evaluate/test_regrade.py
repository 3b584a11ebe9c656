"""Grading again what a run has generated, and grading a file of responses."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tepo_lab.errors import DataError, RecordError
from tepo_lab.evaluate.lines import grade_lines
from tepo_lab.evaluate.regrade import Regraded, named_folders, regrade
from tepo_lab.records.files import RunFolder, append_line
from tepo_lab.tasks.grading import GRADER

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
    return pa.Table.from_pylist(
        [
            dict(zip(keys, row, strict=True)) | old | {"problem": "p", "sample": sample, "extra": "kept"}
            for sample, row in enumerate(rows)
        ]
    )


@pytest.fixture
def run(small_run) -> RunFolder:
    _, folder = small_run("base")
    folder.generations(0).parent.mkdir()
    pq.write_table(generations(ROWS), folder.generations(0))
    for event in ("started", "evaluated", "complete"):
        append_line(folder.events_file, {"time": 1.0, "event": event, "step": 0})
    return folder


def test_grades_are_made_again_and_the_rest_is_kept(run: RunFolder) -> None:
    assert regrade(run) == Regraded(run.name, generations=4, changed=2)
    table = pq.read_table(run.generations(0))
    assert table["correct"].to_pylist() == [1, 0, 0, 1]
    assert table["extracted"].to_pylist() == ["05", "6", None, "7"]
    assert table["how"].to_pylist() == ["exact", "exact", "none", "exact"]
    assert set(table["grader"].to_pylist()) == {GRADER}
    before = generations(ROWS)
    assert table.schema.names == before.schema.names
    for column in ("benchmark", "problem", "sample", "prompt", "response", "answer", "tokens", "truncated", "extra"):
        assert table[column].equals(before[column])


def test_the_new_counts_are_recorded_and_the_run_stays_over(run: RunFolder) -> None:
    regrade(run)
    *before, recorded, last = run.events()
    assert [event["event"] for event in before] == ["started", "evaluated", "complete"]
    assert recorded["event"] == "evaluated"
    assert recorded["grades_changed"] == 2
    assert recorded["grader"] == GRADER
    assert recorded["benchmarks"] == {"sum3": {"correct": 1, "graded": 3}, "mix4": {"correct": 1, "graded": 1}}
    assert last == before[-1]


def test_grading_twice_changes_nothing_more(run: RunFolder) -> None:
    regrade(run)
    content = run.generations(0).read_bytes()
    assert regrade(run).changed == 0
    assert run.generations(0).read_bytes() == content


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
def test_grades_of_any_kind_are_mended(run: RunFolder, column: str, values: list[Any] | None, changed: int) -> None:
    regrade(run)
    whole = pq.read_table(run.generations(0))
    table = generations(ROWS).drop_columns([column])
    pq.write_table(table if values is None else table.append_column(column, pa.array(values)), run.generations(0))
    assert regrade(run).changed == changed
    mended = pq.read_table(run.generations(0))
    assert mended.select(whole.column_names).equals(whole)
    assert read_generations(run.generations(0)).num_rows == mended.num_rows


def test_a_damaged_file_is_not_made_to_look_whole(run: RunFolder) -> None:
    path = run.generations(0)
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(generations(ROWS), path, write_page_checksum=True, **plain)
    content = path.read_bytes()
    assert content.count(b"boxed{05}") == 1
    # One bit, and the file can still be read.
    damaged, events = content.replace(b"boxed{05}", b"boxed{04}"), run.events_file.read_bytes()
    path.write_bytes(damaged)
    assert pq.read_table(path)["response"][0].as_py() == "\\boxed{04}"
    with pytest.raises(RecordError, match=r"step-000000\.parquet cannot be graded \(.*CRC.*\): run the sweep again"):
        regrade(run)
    assert (path.read_bytes(), run.events_file.read_bytes()) == (damaged, events)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda table: table.drop_columns(["tokens"]), "it has no column tokens"),
        (lambda table: pa.concat_tables([table, table.slice(3)]), "1 of 5 rows repeat a sample"),
        (
            lambda table: table.set_column(0, "benchmark", pa.array(["sum3", None, "sum3", "mix4"])),
            "its column benchmark has no value in 1 of 4 rows",
        ),
    ],
    ids=["a column is gone", "a sample twice", "a value is gone"],
)
def test_what_grading_cannot_mend_is_refused_before_any_file_is_written(
    run: RunFolder, damage: Callable[[pa.Table], pa.Table], said: str
) -> None:
    assert generations(ROWS).column_names[0] == "benchmark"
    pq.write_table(damage(generations(ROWS)), run.generations(5))
    first, events = run.generations(0).read_bytes(), run.events_file.read_bytes()
    with pytest.raises(RecordError, match=rf"step-000005\.parquet cannot be graded \({said}\)"):
        regrade(run)
    assert (run.generations(0).read_bytes(), run.events_file.read_bytes()) == (first, events)


def test_a_benchmark_that_the_run_does_not_have_is_refused(run: RunFolder) -> None:
    pq.write_table(generations([("aime24", "x", "5", 0)]), run.generations(0))
    with pytest.raises(RecordError, match="'aime24', which the run's suite does not have"):
        regrade(run)


def test_runs_are_named_by_the_start_of_their_folder(run: RunFolder, tmp_path: Path) -> None:
    assert [each.name for each in named_folders(tmp_path, [])] == [run.name]
    assert [each.name for each in named_folders(tmp_path, ["base-nano"])] == [run.name]
    with pytest.raises(RecordError, match="has no run 'tepo'"):
        named_folders(tmp_path, ["tepo"])


def test_lines_are_graded_in_order(tmp_path: Path) -> None:
    rows = [
        {"text": "\\boxed{5}", "answer": "5"},
        {"text": "Answer: 0.5", "answer": "\\frac{1}{2}"},
        {"text": "nothing", "answer": "5"},
        {"text": "\\boxed{6}", "answer": 5},
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [json.loads(line) for line in grade_lines(file, "either")] == [
        {"correct": 1, "extracted": "5", "how": "exact"},
        {"correct": 1, "extracted": "0.5", "how": "symbolic"},
        {"correct": 0, "extracted": None, "how": "none"},
        {"correct": 0, "extracted": "6", "how": "exact"},
    ]
    assert [json.loads(line)["how"] for line in grade_lines(file, "boxed")] == ["exact", "none", "none", "exact"]


def test_standard_input_is_graded_as_a_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b'{"text": "\\\\boxed{\xc3\xa9}", "answer": "\xc3\xa9"}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
    assert [json.loads(line)["correct"] for line in grade_lines(Path("-"), "either")] == [1]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{")))
    with pytest.raises(DataError, match="standard input:1 is not JSON"):
        list(grade_lines(Path("-"), "either"))


def test_a_closed_standard_input_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(DataError, match="standard input is closed"):
        list(grade_lines(Path("-"), "either"))


def test_a_line_without_an_answer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"text": "x", "answer": "5"}\n{"text": "x"}\n')
    with pytest.raises(DataError, match=r"answers\.jsonl:2 has no 'answer'"):
        list(grade_lines(file, "boxed"))
    with pytest.raises(DataError, match="no such file"):
        list(grade_lines(tmp_path / "none.jsonl", "boxed"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            '{"text": "x", "answer": true}',
            r"answers\.jsonl:3 has 'answer': true; it must be a string that is not blank, or a finite number",
        ),
        ('{"text": NaN, "answer": "5"}', "jsonl:3 has 'text': NaN; it must be a string"),
        ('{"text": 1, "answer": "5"}', "jsonl:3 has 'text': 1; it must be a string"),
        ('{"text": "x", "answer": -Infinity}', "jsonl:3 has 'answer': -Infinity; "),
        ('{"text": ["x"], "answer": "5"}', r"jsonl:3 has 'text': \["),
    ],
)
def test_what_is_neither_text_nor_number_is_refused_with_its_line(row: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(f'{{"text": "x", "answer": 0.5}}\n\n{row}\n')
    with pytest.raises(DataError, match=said):
        list(grade_lines(file, "boxed"))


def test_a_run_with_damaged_records_is_passed_over_unless_it_is_named(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    home = run.path.parent.parent
    for name in ("events", "file"):
        other = RunFolder(run.path.with_name(name))
        other.path.mkdir()
        other.run_file.write_text("{" if name == "file" else "{}")
        other.events_file.write_text('garbage\n{"event": "started"}\n')
    assert named_folders(home, []) == [run]
    assert [line.split()[3] for line in capsys.readouterr().err.splitlines()] == ["events", "file"]
    assert [folder.name for folder in named_folders(home, ["file"])] == ["file"]
