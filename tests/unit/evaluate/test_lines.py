"""Grading the lines of a file of responses."""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path

import pytest

from tepo_lab.errors import DataError
from tepo_lab.evaluate.lines import grade_lines


def test_lines_are_graded_in_order(tmp_path: Path) -> None:
    rows = [
        {"text": "\\boxed{5}", "answer": "5"},
        {"text": "Answer: 0.5", "answer": "0.50"},
        {"text": "nothing", "answer": "5"},
        {"text": "\\boxed{6}", "answer": 5},
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [json.loads(line) for line in grade_lines(file, "either")] == [
        {"correct": 1, "extracted": "5", "how": "exact"},
        {"correct": 1, "extracted": "0.5", "how": "exact"},
        {"correct": 0, "extracted": None, "how": "none"},
        {"correct": 0, "extracted": "6", "how": "exact"},
    ]
    assert [json.loads(line)["how"] for line in grade_lines(file, "boxed")] == ["exact", "none", "none", "exact"]


def test_standard_input_is_graded_as_a_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b'{"text": "\\\\boxed{\xc3\xa9}", "answer": "\xc3\xa9"}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
    assert [json.loads(line)["correct"] for line in grade_lines(Path("-"), "either")] == [1]
    for stdin, cause in ((io.TextIOWrapper(io.BytesIO(b"{")), "standard input:1"), (None, "standard input is closed")):
        monkeypatch.setattr("sys.stdin", stdin)
        with pytest.raises(DataError, match=cause):
            list(grade_lines(Path("-"), "either"))


def test_a_pipe_is_graded_as_a_file_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = b'{"text": "Answer: 5", "answer": 5}\n'
    writer = threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True)
    writer.start()
    assert [json.loads(line)["correct"] for line in grade_lines(pipe, "either")] == [1]
    writer.join()


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ('{"text": "x"}', "answer"),
        ('{"text": "x", "answer": true}', "answer"),
        ('{"text": "x", "answer": " "}', "answer"),
        ('{"text": "x", "answer": -Infinity}', "answer"),
        ('{"text": NaN, "answer": "5"}', "text"),
        ('{"text": 1, "answer": "5"}', "text"),
        ('{"text": ["x"], "answer": "5"}', "text"),
    ],
)
def test_what_is_neither_text_nor_number_is_refused_with_its_line(row: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(f'{{"text": "x", "answer": 0.5}}\n\n{row}\n')
    with pytest.raises(DataError, match=rf"answers\.jsonl:3 has.* '{key}'"):
        list(grade_lines(file, "boxed"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl"):
        list(grade_lines(tmp_path / "none.jsonl", "boxed"))
