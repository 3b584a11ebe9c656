"""Problems from files: columns, patterns, counts, and errors that name their place."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tepo_lab.errors import ConfigError, DataError
from tepo_lab.schema.base import validate
from tepo_lab.schema.profile import Columns, DatasetData
from tepo_lab.tasks.sources import open_source

ROWS = [{"id": "a", "problem": "1+1?", "answer": "2"}, {"id": "b", "problem": "2+2?", "answer": "4"}]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def data(path: Path, **columns: str | None) -> DatasetData:
    return DatasetData(kind="dataset", path=str(path), columns=Columns(**columns))


def answers(source: DatasetData) -> list[str]:
    return [problem.answer for problem in open_source(source).problems]


def test_jsonl_and_parquet_hold_the_same_problems(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    from_parquet = open_source(data(tmp_path / "rows.parquet")).benchmark(2)
    assert from_parquet == open_source(data(write(tmp_path / "rows.jsonl", ROWS))).benchmark(2)
    assert [(each.id, each.prompt, each.answer) for each in from_parquet] == [("a", "1+1?", "2"), ("b", "2+2?", "4")]


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    write(tmp_path / "2.jsonl", ROWS[1:])
    write(tmp_path / "1.jsonl", ROWS[:1])
    (tmp_path / "notes.txt").write_text("not data")
    assert answers(data(tmp_path)) == ["2", "4"]


def test_an_answer_is_found_inside_its_column(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "48/2 = 24\n48+24 = 72\n#### 72"}, {"question": "r", "answer": "#### 1,000 "}]
    path = write(tmp_path / "x.jsonl", rows)
    assert answers(data(path, prompt="question", id=None, answer_pattern=r"####\s*(.+)")) == ["72", "1,000"]


def test_the_hub_form_of_gsm8k_is_mapped_in_yaml() -> None:
    from tepo_lab.registry.compose import compose_run

    spec = compose_run("base", "smollm2-135m", ("data=gsm8k_hub", "suite=gsm8k_hub"))
    assert spec.data.columns.answer_pattern == r"####\s*(.+)"
    assert spec.suite.benchmarks["gsm8k"].data.columns == spec.data.columns


def test_an_answer_without_the_pattern_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", ROWS)
    with pytest.raises(DataError, match=r"row 1: .* does not match its column 'answer'"):
        open_source(data(path, answer_pattern="#### (.+)"))


@pytest.mark.parametrize(("pattern", "message"), [("(", "no regular expression"), ("a", "needs one group")])
def test_a_wrong_pattern_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(Columns, {"answer_pattern": pattern}, where="test")


def test_lists_floats_and_nested_columns_become_text(tmp_path: Path) -> None:
    rows = [
        {"q": [{"content": "one"}], "reward_model": {"ground_truth": ["1", "3"]}},
        {"q": [{"content": "two"}], "reward_model": {"ground_truth": 27.0}},
    ]
    path = write(tmp_path / "x.jsonl", rows)
    problems = open_source(data(path, prompt="q.0.content", answer="reward_model.ground_truth", id=None)).problems
    assert [(each.id, each.prompt, each.answer) for each in problems] == [("1", "one", "1, 3"), ("2", "two", "27")]


def test_a_tolerance_goes_with_its_answer(tmp_path: Path) -> None:
    rows = [ROWS[0] | {"error": "1e-1"}, ROWS[1] | {"error": None}]
    assert answers(data(write(tmp_path / "x.jsonl", rows), tolerance="error")) == ["2±1e-1", "4"]


def test_another_count_is_an_error_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 2 problems, the benchmark states 30"):
        open_source(data(write(tmp_path / "x.jsonl", ROWS))).benchmark(30)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"problem": "p", "answer": "a"}\n{"problem"\n', r"x\.jsonl:2 is not JSON"),
        ("[1]\n", r"x\.jsonl:1 is not a JSON object"),
        ('{"problem": "p", "answers": "a"}\n', r"row 1 has no column 'answer'\. Did you mean 'answers'"),
        ("", "has no problem"),
        ('{"id": 1, "problem": "p", "answer": 1}\n{"id": 1, "problem": "q", "answer": 2}\n', "id '1' occurs more"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(DataError, match=message):
        open_source(data(tmp_path / "x.jsonl"))


def test_missing_files_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        open_source(data(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"has no \.jsonl or \.parquet"):
        open_source(data(tmp_path))


def test_of_a_folder_the_files_named_after_the_split_are_read(tmp_path: Path) -> None:
    write(tmp_path / "sums_train.jsonl", ROWS)
    write(tmp_path / "sums-test-0.jsonl", [{"id": "c", "problem": "3+3?", "answer": "6"}])
    assert answers(data(tmp_path)) == ["2", "4"]
    assert answers(data(tmp_path).model_copy(update={"split": "test"})) == ["6"]
    assert answers(data(tmp_path).model_copy(update={"split": "validation"})) == ["6", "2", "4"]


def test_rows_are_skipped_and_taken_and_keep_their_numbers(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", [*ROWS, {"problem": "no answer, and not looked at"}])
    own = data(tmp_path / "x.jsonl", id=None)
    assert answers(own.model_copy(update={"take": 2})) == ["2", "4"]
    (second,) = open_source(own.model_copy(update={"skip": 1, "take": 1})).benchmark(1)
    assert (second.id, second.answer) == ("2", "4")


def test_a_missing_file_is_named_with_the_setting_to_change(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"set suite\.benchmarks\.b\.data\.path to"):
        open_source(data(tmp_path / "none.jsonl"), key="suite.benchmarks.b.data")


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        open_source(data(tmp_path / "x.parquet"))


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", ROWS)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert answers(data(path)) == ["2", "4"]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ([], "is \\[\\], neither"),
        (["2", None], "is empty"),
        ({"a": 2}, "is {'a': 2}, neither"),
        (float("inf"), "is inf, not a finite number"),
        (["2", float("nan")], "is nan, not a finite number"),
        (True, "is True, neither"),
        (["2", False], "is False, neither"),
        ("2\ud800", "has half of a surrogate pair"),
    ],
)
def test_an_answer_that_no_response_could_equal_is_refused(answer, fault, tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [*ROWS, {"problem": "3+3?", "answer": answer}])
    with pytest.raises(DataError, match=f"x.jsonl: row 3: column 'answer' {fault}"):
        open_source(data(path))


@pytest.mark.parametrize("column", ["id", "problem", "answer"])
@pytest.mark.parametrize("value", [b"2", None, "\ud800"])
def test_binary_null_and_broken_text_is_refused_with_row_and_column(column: str, value, tmp_path: Path) -> None:
    """Binary columns would be trained on as Python writes them."""
    values = {"id": "a", "problem": "1+1?", "answer": "2"} | {column: value}
    if value == "\ud800":
        path = write(tmp_path / "x.jsonl", [values])
    else:
        path = tmp_path / "x.parquet"
        pq.write_table(pa.Table.from_pylist([values]), path)
    if (column, value) == ("id", None):
        assert [problem.id for problem in open_source(data(path)).problems] == ["1"]
        return
    with pytest.raises(DataError, match=f"row 1: column '{column}'"):
        open_source(data(path))


def test_a_pattern_that_finds_nothing_but_spaces_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"problem": "q", "answer": "#### "}])
    with pytest.raises(
        DataError, match="row 1: what '####(.*)' finds in 'answer' is empty".replace("(.*)", r"\(\.\*\)")
    ):
        open_source(data(path, answer_pattern="####(.*)"))
