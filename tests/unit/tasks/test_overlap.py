"""Repeats, conflicts and overlaps between training data and benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tepo_lab.errors import DataError
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import Benchmark, ChainData, DatasetData, Suite
from tepo_lab.tasks.overlap import check_data, statement, without_overlaps
from tepo_lab.tasks.sources import open_source

TRAINING = [
    ("t1", "Find $x$ if $x+1=2$.", "1"),
    ("t2", "Find x  if x+1=2", "01"),
    ("t3", "find $x$ if $x + 1 = 2$", "3"),
    ("t4", "Find $x$ if $x-1=2$.", "3"),
    ("t5", "Compute $\\dfrac{1}{2}$.", "0.5"),
]
TEST = [("b1", "Compute \\( \\frac{1}{2} \\)", "0.5"), ("b2", "Compute 7.", "7")]


def data(path: Path, rows: list[tuple[str, str, str]]) -> DatasetData:
    lines = [json.dumps(dict(zip(("id", "problem", "answer"), row, strict=True))) + "\n" for row in rows]
    path.write_text("".join(lines))
    return DatasetData(kind="dataset", path=str(path))


def suite(test: DatasetData, problems: int = 2) -> Suite:
    benchmarks = {"bench": Benchmark(label="Bench", data=test, problems=problems)}
    return Suite(name="s", max_new_tokens=8, benchmarks=benchmarks)


@pytest.fixture
def training(tmp_path: Path) -> DatasetData:
    return data(tmp_path / "train.jsonl", TRAINING)


@pytest.fixture
def held_out(tmp_path: Path) -> DatasetData:
    return data(tmp_path / "test.jsonl", TEST)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("What is $1+1$?", "what is 1 + 1", True),
        ("\\left(\\tfrac12\\right)", "(\\frac12)", True),
        ("1+2", "1-2", False),
        ("a59b*3c+4=", "a59b*3c-4=", False),
        ("1.5", "15", False),
        ("\\leftarrow", "arrow", False),
    ],
)
def test_statements_are_compared_without_layout(left: str, right: str, same: bool) -> None:
    assert (statement(Problem("1", left, "")) == statement(Problem("2", right, ""))) is same


def test_repeats_conflicts_and_overlaps_are_reported(training: DatasetData, held_out: DatasetData) -> None:
    first, second = check_data(training, suite(held_out))
    assert (first.problems, first.repeated, first.conflicting) == (5, ("t2", "t3"), ("t3",))
    assert first.overlaps == {"bench": ("t5",)}
    assert (second.name, second.problems, second.repeated) == ("bench", 2, ())
    assert first.lines() == [
        "training: 5 problems, 2 repeated, 1 of them with another answer (t3)",
        "  1 are in bench and are left out of training (t5)",
    ]


def test_a_benchmark_that_cannot_be_read_is_reported_beside_the_others(training: DatasetData, held_out) -> None:
    first, second = check_data(training, suite(held_out, problems=30))
    assert first.overlaps == {}
    assert "has 2 problems, the benchmark states 30" in str(second.as_json()["error"])


def test_training_data_that_cannot_be_read_is_reported_and_the_benchmarks_are_checked(held_out) -> None:
    first, second = check_data(DatasetData(kind="dataset", path="nowhere.jsonl"), suite(held_out))
    assert (first.name, first.overlaps) == ("training", {"bench": ()})
    assert set(first.as_json()) == {"name", "problems", "error"}
    assert "nowhere.jsonl: no such file or folder" in str(first.error)
    assert (second.name, second.problems, second.error) == ("bench", 2, None)


def test_overlaps_are_dropped_from_training_and_counted(training: DatasetData, held_out: DatasetData) -> None:
    source, dropped = without_overlaps(open_source(training), suite(held_out))
    assert dropped == 1
    assert {problem.id for problem in source.training(0, 8, seed=3)} == {"t1", "t2", "t3", "t4"}


def test_training_on_the_test_set_alone_is_refused(held_out: DatasetData) -> None:
    with pytest.raises(DataError, match="all of its 2 problems are in a benchmark"):
        without_overlaps(open_source(held_out), suite(held_out))


def test_the_embedded_task_is_left_as_it_is() -> None:
    chain = ChainData(kind="chain", terms=(3,))
    source = open_source(chain)
    assert without_overlaps(source, suite(chain)) == (source, 0)
