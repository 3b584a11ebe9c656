"""Tables of homes in which records are damaged: the seed is left out and named, all others keep their scores."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from synthetic_home import RIGHT, SUITE, SyntheticHome, columns_of, only_row


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("correct", [7] + [1] * 17, "it has a grade of 7, which is neither 0 nor 1"),
        ("correct", [1] * 17 + [-1], "it has a grade of -1, which is neither 0 nor 1"),
        ("correct", [0.5] * 18, "its column correct is of type double, not integer"),
        ("correct", [True] * 18, "its column correct is of type bool, not integer"),
        ("correct", ["1"] * 18, "its column correct is of type string, not integer"),
        ("truncated", [None, *[False] * 17], "its column truncated has no value in 1 of 18 rows"),
        ("problem", list(range(18)), "its column problem is of type int64, not text"),
        ("extracted", None, "it has no column extracted"),
    ],
)
def test_what_cannot_be_counted_is_damaged(
    column: str, values: list[Any] | None, words: str, home: SyntheticHome, capsys: pytest.CaptureFixture[str]
) -> None:
    home.want("plain", (1, 2))
    home.want("other", (2,))
    home.run("plain", 1, right=RIGHT)
    columns = columns_of(SUITE, RIGHT) | {column: values}
    folder = home.run("plain", 2, columns={name: values for name, values in columns.items() if values is not None})
    home.rows["other"] = replace(home.rows["other"], family=home.rows["plain"].family)
    plain, other = home.table().rows
    assert (plain.outcome, plain.seeds) == ("partly: 1 of 2 seeds (records damaged)", (1,))
    assert (other.missing, other.average) == ("damaged", None)
    assert f"step-000020.parquet is damaged ({words}" in str(other.reason)
    assert capsys.readouterr().err.count(f"run {folder.name} is left out: ") == 1


def test_damaged_records_are_named(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    folder = home.run("plain", 1, right=RIGHT)
    whole = folder.generations(20).read_bytes()
    # Damaged inside, both ends as they should be: a file that is merely cut off does not count as an evaluation.
    folder.generations(20).write_bytes(whole[:-200] + bytes(192) + whole[-8:])
    outcome, _, reason = only_row(home)
    assert outcome == "records damaged"
    assert re.search("step-000020.parquet is damaged", str(reason))
    # Nor does one whose own description is damaged stop the others.
    folder.generations(20).write_bytes(b"PAR1" + bytes(64) + b"PAR1")
    home.want("other", (1,))
    home.run("other", 1, right=RIGHT)
    assert [row.outcome for row in home.table().rows] == ["records damaged", "complete"]


def test_an_evaluation_that_was_cut_off_is_none(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    folder = home.run("plain", 1, right=RIGHT)
    whole = folder.generations(20).read_bytes()
    folder.generations(20).write_bytes(whole[: len(whole) // 2])
    (row,) = home.table().rows
    assert row.average is None
    assert row.missing == "damaged"


def test_a_run_with_damaged_records_leaves_the_others_their_scores(home: SyntheticHome) -> None:
    """The wanted row knows its damaged runs by the names of their folders."""
    right = {"greedy": [1, 1, 0, 0, 1, 0], "sampled": [2, 1, 3]}
    for arm in ("whole", "events", "partly"):
        home.want(arm, (1, 2))
        for seed in (1, 2):
            home.run(arm, seed, right=right)
    for folder in (home.folders["events", 1], home.folders["events", 2]):
        folder.events_file.write_text("garbage\n" + folder.events_file.read_text())
    home.folders["partly", 2].run_file.write_text("{")
    home.rows["events"] = replace(home.rows["events"], damaged=(1, 2))
    home.rows["partly"] = replace(home.rows["partly"], damaged=(2,))
    whole, damaged, partly = home.table().rows
    assert whole.outcome == "complete"
    assert (damaged.outcome, damaged.missing) == ("records damaged", "damaged")
    assert partly.outcome == "partly: 1 of 2 seeds (records damaged)"
    assert partly.average is not None
    assert whole.average is not None
    assert partly.average.percent == whole.average.percent
