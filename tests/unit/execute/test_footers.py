"""What the end of a file of generations tells."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyarrow import parquet
from tepo_lab.records.footers import condition_told, generations_of
from tepo_lab.records.repair import set_aside_damaged

from tepo_lab.records.files import RunFolder
from tepo_lab.registry.compose import compose_run
from tests.conftest import SMALL
from tests.generation_columns import write_evaluation


@pytest.fixture
def suite():
    return compose_run("tepo", "nano", SMALL, seed=1).suite


def test_rows_and_grades_are_counted(tmp_path, suite):
    folder, generations = RunFolder(tmp_path), generations_of(suite)
    assert condition_told(folder, 4, generations) == "damaged"
    for fault, told in (({}, "whole"), ({"ungraded": 1}, "lacks grades"), ({"lacking": 1}, "damaged")):
        write_evaluation(folder, 4, suite, **fault)
        assert condition_told(folder, 4, generations) == told
    assert condition_told(folder, 4, None) == "whole"
    whole = folder.generations(4).read_bytes()
    folder.generations(4).write_bytes(whole[:-9])
    assert condition_told(folder, 4, None) == "damaged"


@pytest.mark.parametrize(
    ("grades", "told"),
    [
        ([0, 1, 1], "whole"),
        ([0, 1, 7], "lacks grades"),
        ([0, -1, 1], "lacks grades"),
        ([0, 1, None], "lacks grades"),
        ([None, None, None], "lacks grades"),
        (["0", "1", "1"], "lacks grades"),
    ],
)
@pytest.mark.parametrize("groups", [1, 3])
def test_what_is_no_grade_is_seen_in_each_part_of_the_file(tmp_path, grades, told, groups):
    folder = RunFolder(tmp_path)
    folder.generations(0).parent.mkdir()
    kind = pa.string() if "1" in grades else pa.int8()
    rows = pa.table({"benchmark": ["sum3"] * 3, "correct": pa.array(grades, kind)})
    parquet.write_table(rows, folder.generations(0), row_group_size=3 // groups)
    assert condition_told(folder, 0, 3) == told


def test_a_file_that_does_not_tell_is_left_to_those_who_read_it(tmp_path):
    folder = RunFolder(tmp_path)
    folder.generations(0).parent.mkdir()
    parquet.write_table(pa.table({"correct": [0, 1, 7]}), folder.generations(0), write_statistics=False)
    assert condition_told(folder, 0, 3) == "whole"
    parquet.write_table(pa.table({"graded": [0, 1, 1]}), folder.generations(0))
    assert condition_told(folder, 0, 3) == "lacks grades"


def test_what_was_found_when_the_file_was_read_in_full_counts(tmp_path, suite):
    folder, generations = RunFolder(tmp_path / "run"), generations_of(suite)
    write_evaluation(folder, 20, suite)
    folder.checkpoint(10).mkdir(parents=True)
    damaged = bytearray(folder.generations(20).read_bytes())
    damaged[40:49] = bytes(9)
    folder.generations(20).write_bytes(damaged)
    # The end of the file is as it was.
    assert condition_told(folder, 20, generations) == "whole"
    (folder.path / "events.jsonl").write_text('{"event": "stopped", "step": 20, "by": "asha", "time": 1}\n')
    assert set_aside_damaged(folder, suite) == []
    assert condition_told(folder, 20, generations) == "damaged"


def test_a_run_json_says_how_many_generations_there_must_be(suite):
    counted = sum(each.problems * each.samples for each in suite.benchmarks.values())
    assert generations_of(suite) == generations_of(suite.model_dump(mode="json")) == counted
    for damaged in (None, {}, {"benchmarks": [1]}, {"benchmarks": {"sum3": {}}}):
        assert generations_of(damaged) is None
