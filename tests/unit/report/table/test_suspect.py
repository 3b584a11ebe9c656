"""Complete evaluations whose numbers may not say what they seem to."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic_home import RIGHT, SUITE, SyntheticHome, columns_of
from synthetic_steps import write_steps

from tepo_lab.records.files import append_line
from tepo_lab.report.render.document import panels
from tepo_lab.report.render.formats import render
from tepo_lab.report.table.rows import Row


def row_of(home: SyntheticHome, columns: dict[str, Any], **options: Any) -> Row:
    home.want("plain", (1,))
    home.run("plain", 1, columns=columns, **options)
    (row,) = home.table().rows
    return row


@pytest.mark.parametrize(("right", "words"), [(0, "0 %"), (1, "100 %")])
def test_nothing_right_or_nothing_wrong(home: SyntheticHome, right: int, words: str) -> None:
    columns = columns_of(SUITE, RIGHT)
    row = row_of(home, columns | {"correct": [right] * 18})
    assert row.suspect == (f"seed 1: {words} on every benchmark",)
    assert row.outcome == "complete"
    home.want("other", (1,))
    home.run("other", 1, columns=columns)
    # A suspect row is never the best.
    table = home.table()
    assert "suspect" in render(table, "md")
    assert not any(panel.best for panel in panels(table))
    assert table.to_dict()["rows"][0]["suspect"] == list(row.suspect)
    assert table.to_dict()["rows"][1]["suspect"] == []


@pytest.mark.parametrize(
    ("column", "value", "other", "words"),
    [
        ("truncated", True, False, "of generations ended by the length limit"),
        ("extracted", None, "2", "of generations without an answer"),
    ],
)
def test_shares_above_the_limit(home: SyntheticHome, column: str, value: Any, other: Any, words: str) -> None:
    columns = columns_of(SUITE, RIGHT)
    # 4 of 18 are below a quarter, 5 are above it.
    assert row_of(home, columns | {column: [value] * 4 + [other] * 14}).suspect == ()
    row = row_of(home, columns | {column: [value] * 5 + [other] * 13})
    assert row.suspect == (f"seed 1: 27.8 % {words} (limit 25 %)",)


@pytest.mark.parametrize(
    ("timeouts", "unread", "is_suspect"), [(4, 0, False), (2, 2, False), (5, 0, True), (1, 4, True)]
)
def test_timeouts_count_as_answers_that_are_absent(
    home: SyntheticHome, timeouts: int, unread: int, is_suspect: bool
) -> None:
    columns = columns_of(SUITE, RIGHT)
    columns["how"] = ["timeout"] * timeouts + ["exact"] * (18 - timeouts)
    columns["extracted"] = ["2"] * (18 - unread) + [None] * unread
    row = row_of(home, columns)
    assert bool(row.suspect) == is_suspect
    assert all("27.8 %" in reason and "in time" in reason for reason in row.suspect)


def test_a_file_of_an_older_release_is_without_the_way_of_grading(home: SyntheticHome) -> None:
    columns = columns_of(SUITE, RIGHT)
    del columns["how"]
    assert row_of(home, columns).suspect == ()


LIMIT = {"max_sampler_mismatch": 0.01}
MISMATCH = "rollout/sampler_mismatch_mean"


@pytest.mark.parametrize(
    ("values", "rollout", "suspect"),
    [
        (
            (0.001, 0.02, 0.03),
            LIMIT,
            "sampler and trainer differ by 0.03 nats a token at step 3 (limit 0.01, passed at 2 of 3 steps)",
        ),
        (
            (0.02, None, 0.02),
            LIMIT,
            "the sampler's log-probabilities are not finite at step 2 (limit 0.01, passed at 3 of 3 steps)",
        ),
        ((0.001, 0.01), LIMIT, None),
        ((0.5,), {"max_sampler_mismatch": None}, None),
    ],
)
def test_a_sampler_that_differs_from_the_trainer_in_training(
    home: SyntheticHome, values: tuple[float | None, ...], rollout: dict[str, Any], suspect: str | None
) -> None:
    home.want("plain", (1,))
    folder = home.run("plain", 1, columns=columns_of(SUITE, RIGHT), rollout=rollout)
    for step in range(1, 21):
        measured = {MISMATCH: values[step - 1]} if step <= len(values) else {}
        append_line(folder.metrics_file, {"step": step, **measured})
    assert home.table().rows[0].suspect == ((f"seed 1: {suspect}",) if suspect else ())


@pytest.mark.parametrize(
    ("mismatch", "suspect"),
    [
        (0.01, None),
        (0.02, "sampler and trainer differ by 0.02 nats a token in the evaluation (limit 0.01)"),
        (None, "the sampler's log-probabilities are not finite in the evaluation (limit 0.01)"),
    ],
)
def test_a_sampler_that_differs_from_the_trainer_in_the_evaluation(
    home: SyntheticHome, mismatch: float | None, suspect: str | None
) -> None:
    home.want("plain", (1,))
    tallies = {"greedy": {"correct": 2, "graded": 6}, "sampled": {"correct": 5, "graded": 12}}
    event = {"event": "evaluated", "step": 20, "benchmarks": tallies}
    # Neither another step's nor an earlier evaluation of this one matters.
    events = ({**event, "step": 10, "sampler_mismatch": 9.0}, {**event, "sampler_mismatch": 9.0})
    events += ({**event, "sampler_mismatch": mismatch}, {"event": "complete", "step": 20})
    folder = home.run("plain", 1, columns=columns_of(SUITE, RIGHT), rollout=LIMIT, events=events)
    write_steps(folder, 20)
    assert home.table().rows[0].suspect == ((f"seed 1: {suspect}",) if suspect else ())


def test_records_that_contradict_each_other_leave_the_scores_and_a_mark(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    columns, rollout = columns_of(SUITE, RIGHT), {"max_sampler_mismatch": 0.01}
    tallies = {"greedy": {"correct": 2, "graded": 6}, "sampled": {"correct": 4, "graded": 12}}
    evaluated = {"event": "evaluated", "step": 20, "benchmarks": tallies}
    folder = home.run(
        "plain", 1, columns=columns, rollout=rollout, events=(evaluated, {"event": "complete", "step": 20})
    )
    write_steps(folder, 20)
    lines = folder.metrics_file.read_text().splitlines(keepends=True)
    assert home.table().rows[0].suspect == (
        "seed 1: events.jsonl has 4 of 12 right on sampled, which its generations contradict",
    )
    tallies["sampled"]["correct"] = 5
    append_line(folder.events_file, {"time": 1.8e9, **evaluated})
    assert home.table().rows[0].suspect == ()
    for damaged in (lines[:10], [*lines[:5], *lines[6:]], [*lines[:5], lines[4], *lines[5:]]):
        folder.metrics_file.write_text("".join(damaged))
        row = home.table().rows[0]
        assert row.outcome == "complete"
        (reason,) = row.suspect
        assert "metrics damaged" in reason


def test_damaged_metrics_leave_the_scores_and_a_mark(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    folder = home.run("plain", 1, columns=columns_of(SUITE, RIGHT), rollout={"max_sampler_mismatch": 0.01})
    folder.metrics_file.write_text('garbage\n{"step": 1}\n')
    (row,) = home.table().rows
    assert row.outcome == "complete"
    assert row.average.percent == pytest.approx(100 * 7 / 18)
    (reason,) = row.suspect
    assert reason.startswith(f"seed 1: metrics damaged: {folder.metrics_file}:1 cannot be read")
    # A table at an equal budget needs them.
    home.want("other", (1,))
    write_steps(home.run("other", 1, columns=columns_of(SUITE, RIGHT)), 20)
    assert [row.outcome for row in home.table(equal="seconds").rows] == ["records damaged", "complete"]


def test_without_a_limit_metrics_are_not_read(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, columns=columns_of(SUITE, RIGHT)).metrics_file.write_text('garbage\n{"step": 1}\n')
    (row,) = home.table().rows
    assert (row.outcome, row.suspect) == ("complete", ())


def test_a_comparison_with_a_suspect_row_says_so(full_home: SyntheticHome) -> None:
    table = full_home.table("base")
    suspect = {one.arm: one.suspect for one in table.comparisons}
    # One of its seeds has nothing right.
    assert suspect == {"masked": (), "collapsing": ("collapsing",), "partial": ()}
    assert "not resolved, suspect" in render(table, "text")


def test_seeds_with_the_same_reason_are_named_together(home: SyntheticHome) -> None:
    home.want("plain", (1, 2, 3))
    columns = columns_of(SUITE, RIGHT)
    for seed in (1, 3):
        home.run("plain", seed, columns=columns | {"correct": [0] * 18})
    home.run("plain", 2, columns=columns, provenance={"dirty": True})
    (row,) = home.table().rows
    assert row.suspect == ("seeds 1 3: 0 % on every benchmark",)
    assert row.provenance == ("seed 2: from a changed source tree",)
