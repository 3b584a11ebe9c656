"""Tables from synthetic homes: which runs fill which rows, at which step, and what stands where nothing does."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as parquet
import pytest
from synthetic_home import SUITE, SyntheticHome, columns_of, random_columns

from tepo_lab.errors import RecordError
from tepo_lab.report import scan
from tepo_lab.report.best import alike, best
from tepo_lab.report.frame import Table
from tepo_lab.report.lines import blocks
from tepo_lab.schema.record import RunFolder, append_line, read_lines

RIGHT = {"greedy": [1, 1, 0, 0, 0, 0], "sampled": [4, 1, 0]}
DONE = {"event": "complete", "step": 20}


def collapsed(step: int) -> dict[str, Any]:
    return {"event": "collapsed", "step": step, "rule": "reward/mean < 0.02"}


def failed(step: int, kind: str = "user") -> dict[str, Any]:
    return {"event": "failed", "step": step, "kind": kind, "error": "loss is not finite"}


def outcome(table: Table, arm: str) -> str:
    return next(row.outcome for row in table.rows if row.arm == arm)


def only_row(home: SyntheticHome, **options: object) -> tuple[str, tuple[int, ...], str | None]:
    """The single row's outcome, seeds and the reason of its cells."""
    (row,) = home.table(**options).rows
    return row.outcome, row.seeds, row.cells["greedy"].reason


def test_counts_are_summed_over_seeds(home: SyntheticHome) -> None:
    home.want("plain", (1, 2))
    home.run("plain", 1, right=RIGHT)
    home.run("plain", 2, right={"greedy": [1] * 6, "sampled": [4, 4, 2]})
    home.run("plain", 3, right=RIGHT)  # not among the seeds wanted
    (row,) = home.table().rows
    assert (row.seeds, row.steps, row.outcome) == ((1, 2), 20, "complete")
    greedy, sampled = row.cells["greedy"], row.cells["sampled"]
    assert (greedy.correct, greedy.graded, greedy.percent) == (8, 12, pytest.approx(100 * 8 / 12))
    assert (sampled.correct, sampled.graded) == (15, 24)
    assert row.average.generation_weighted == pytest.approx(100 * 23 / 36)
    assert row.average.macro == pytest.approx((100 * 8 / 12 + 100 * 15 / 24) / 2)
    assert row.average.ci95 is not None
    assert row.average.ci95[0] < 100 * 23 / 36 < row.average.ci95[1]


def test_all_found_seeds_when_none_are_named(home: SyntheticHome) -> None:
    home.want("plain", ())
    for seed in (7, 3):
        home.run("plain", seed, right=RIGHT)
    assert only_row(home) == ("complete", (3, 7), None)


def test_one_seed_is_over_problems_only_and_says_so(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, right=RIGHT)
    table = home.table()
    assert table.rows[0].average.seeds == 1
    assert table.footer()["problems_only"] == ["plain"]


def test_outcomes_and_reasons(full_home: SyntheticHome) -> None:
    table = full_home.table("base")
    assert [(row.arm, row.outcome, row.seeds, row.steps) for row in table.rows] == [
        ("plain", "complete", (1, 2, 3), 20),
        ("masked", "complete", (1, 2, 3), 20),
        ("collapsing", "collapsed at step 9", (1, 2, 3), 9),
        ("broken", "failed: user", (), 20),
        ("absent", "not run", (), 20),
        ("partial", "partly: 1 of 3 seeds (not run)", (2,), 20),
    ]
    collapsing, broken = table.rows[2], table.rows[3]
    assert (collapsing.cells["sampled"].correct, collapsing.cells["sampled"].graded) == (2, 36)
    assert broken.cells["greedy"].reason == "failed: user: loss is not finite"
    assert broken.average.reason == "failed: user: loss is not finite"
    assert broken.cells["greedy"].percent is None


def test_a_collapse_of_some_seeds(home: SyntheticHome) -> None:
    home.want("plain")
    for seed in (1, 2):
        home.run("plain", seed, right=RIGHT)
    home.run("plain", 3, right=RIGHT, steps=12, events=(collapsed(12),))
    (row,) = home.table().rows
    assert row.outcome == "collapsed at step 12 (1 of 3 seeds)"
    assert (row.seeds, row.steps, row.cells["greedy"].graded) == ((1, 2, 3), 20, 18)


def test_a_later_collapse_leaves_the_step_before_it(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, right=RIGHT, steps=20, events=(collapsed(31),))
    assert only_row(home) == ("complete", (1,), None)


def test_a_collapse_that_was_not_evaluated(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, events=(collapsed(4),))
    assert only_row(home) == ("collapsed at step 4, not evaluated", (), "collapsed at step 4, not evaluated")


@pytest.mark.parametrize(("age", "expected"), [(0, "running"), (3600, "stopped at step 7")])
def test_running_or_stopped(home: SyntheticHome, age: int, expected: str) -> None:
    home.want("plain", (1,))
    folder = home.run("plain", 1, events=({"event": "checkpoint", "step": 7},))
    folder.lease_file.write_text("{}")
    os.utime(folder.lease_file, (time.time() - age,) * 2)
    assert only_row(home)[0] == expected


def test_a_failed_run_that_goes_on_is_no_longer_failed(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, events=(failed(3, "machine"), {"event": "resumed", "step": 2}))
    assert only_row(home)[0] == "stopped at step 3"


def test_an_under_graded_evaluation_does_not_count(home: SyntheticHome) -> None:
    home.want("plain", (1, 2))
    home.run("plain", 1, right=RIGHT)
    columns = {name: values[:-1] for name, values in columns_of(SUITE, RIGHT).items()}
    home.run("plain", 2, columns=columns)
    assert only_row(home)[:2] == ("partly: 1 of 2 seeds (under-graded)", (1,))
    home.want("plain", (2,))
    assert only_row(home)[2] == "under-graded at step 20 (sampled: 11 of 12 graded)"


def test_a_problem_graded_twice_in_place_of_another_does_not_count(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    columns = columns_of(SUITE, RIGHT)
    columns["problem"][-1] = columns["problem"][-5]
    home.run("plain", 1, columns=columns)
    found, _, reason = only_row(home)
    assert found == "records damaged"
    assert "1 of 18 rows repeat a sample" in str(reason)


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
    folder = home.run("plain", 2, columns={name: held for name, held in columns.items() if held is not None})
    home.rows["other"] = replace(home.rows["other"], family=home.rows["plain"].family)
    plain, other = home.table().rows
    assert (plain.outcome, plain.seeds) == ("partly: 1 of 2 seeds (records damaged)", (1,))
    assert (other.average.missing, other.average.generation_weighted) == ("damaged", None)
    assert f"step-000020.parquet cannot be read ({words}): remove it" in str(other.average.reason)
    assert capsys.readouterr().err.count(f"run {folder.name} is passed over: ") == 1


class TestRunsThatDidNotEndAsAsked:
    """Where no run came to the step of the table, it is read at an earlier one."""

    @pytest.mark.parametrize(
        ("event", "age", "expected"),
        [
            (failed(15), None, "failed: user at step 15, read at step 10"),
            (collapsed(15), None, "collapsed at step 15, read at step 10"),
            ({"event": "stopped", "step": 15, "by": "asha"}, None, "ended at step 15 by the search, read at step 10"),
            ({"event": "checkpoint", "step": 15}, 0, "running, read at step 10"),
            ({"event": "checkpoint", "step": 15}, 3600, "stopped at step 15, read at step 10"),
            ({"event": "checkpoint", "step": 10}, None, "stopped at step 10, read at step 10"),
            ({"event": "complete", "step": 20}, None, "complete"),
        ],
    )
    def test_they_say_so(self, event: dict[str, Any], age: int | None, expected: str, home: SyntheticHome) -> None:
        home.want("plain", (1,))
        folder = home.run("plain", 1, right=RIGHT, steps=10, asked=20, events=(event,))
        if age is not None:
            folder.lease_file.write_text("{}")
            os.utime(folder.lease_file, (time.time() - age,) * 2)
        assert only_row(home) == (expected, (1,), None)
        # At a step that was asked for there is nothing to say.
        assert home.table(steps=10).rows[0].outcome == "complete"
        home.rows["plain"] = replace(home.rows["plain"], steps=10)
        assert home.table().rows[0].outcome == "complete"

    def test_they_are_neither_the_best_nor_judged(self, home: SyntheticHome) -> None:
        columns = {"greedy": [1] * 6, "sampled": [4] * 3}
        for arm, parent, right in (("plain", None, RIGHT), ("masked", "plain", columns)):
            home.want(arm)
            for seed in (1, 2, 3):
                home.run(arm, seed, right=right, steps=10, asked=20, parent=parent, events=(failed(15),))
        table = home.table()
        assert {row.outcome for row in table.rows} == {"failed: user at step 15, read at step 10"}
        assert not any(block.alike for block in blocks(table))
        (comparison,) = table.comparisons
        assert comparison.verdict == "not resolved (MASKED: failed: user at step 15)"
        assert home.table(steps=10).comparisons[0].verdict == "not resolved"

    def test_some_of_the_seeds(self, home: SyntheticHome) -> None:
        home.want("plain")
        home.run("plain", 1, right=RIGHT, steps=10, asked=20, events=(failed(15),))
        home.run("plain", 2, right=RIGHT, steps=10)
        assert outcome(home.table(), "plain") == (
            "partly: 2 of 3 seeds (not run); failed: user at step 15 (1 of 3 seeds), read at step 10"
        )

    def test_a_run_that_was_to_go_no_further_is_complete(self, home: SyntheticHome) -> None:
        home.want("plain", (1,))
        home.run("plain", 1, right=RIGHT, steps=3, events=({"event": "checkpoint", "step": 3},))
        assert only_row(home)[0] == "complete"


class TestSteps:
    def test_the_step_asked_for(self, home: SyntheticHome) -> None:
        home.want("plain", (1,))
        folder = home.run("plain", 1, right=RIGHT, steps=10)
        more = {"greedy": [1] * 6, "sampled": [4, 4, 4]}
        parquet_at(folder, 20, more)
        assert home.table(steps=10).rows[0].cells["greedy"].correct == 2
        assert home.table(steps=20).rows[0].cells["greedy"].correct == 6

    def test_the_largest_when_none_is_asked_for(self, home: SyntheticHome) -> None:
        home.want("plain", (1,))
        parquet_at(home.run("plain", 1, right=RIGHT, steps=10), 15, RIGHT)
        table = home.table(steps=None)
        assert (table.steps, table.rows[0].steps, table.notes[-1][:12]) == (15, 15, "The paper's ")

    def test_the_largest_when_nobody_has_the_one_asked_for(self, home: SyntheticHome) -> None:
        home.want("plain", (1,))
        home.run("plain", 1, right=RIGHT, steps=10)
        table = home.table(steps=72)
        assert table.steps == 10
        assert table.notes[-1] == "No run has a full evaluation at step 72: the table is read at step 10."

    def test_a_row_without_it_says_which_it_has(self, home: SyntheticHome) -> None:
        home.want("plain", (1,))
        home.want("other", (1,))
        home.run("plain", 1, right=RIGHT, steps=20)
        home.run("other", 1, right=RIGHT, steps=10)
        table = home.table()
        assert outcome(table, "other") == "not evaluated at step 20"
        assert table.rows[1].cells["greedy"].reason == "not evaluated at step 20 (evaluated steps: 10)"

    def test_a_late_collapse_does_not_move_the_table(self, home: SyntheticHome) -> None:
        home.want("plain", (1,))
        home.want("other", (1,))
        home.run("plain", 1, right=RIGHT, steps=20)
        home.run("other", 1, right=RIGHT, steps=50, events=(collapsed(50),))
        assert home.table(steps=None).steps == 20

    def test_nothing_there(self, home: SyntheticHome) -> None:
        home.want("plain")
        table = home.table(steps=20)
        assert (table.steps, table.rows[0].outcome, table.base_reason) == (20, "not run", "not asked for")
        assert home.table(steps=None).steps is None


def parquet_at(folder: RunFolder, step: int, right: dict[str, list[int]]) -> None:
    pd.DataFrame(columns_of(SUITE, right)).to_parquet(folder.generations(step))


def test_the_untrained_model_is_read_at_step_zero_and_is_never_the_best(full_home: SyntheticHome) -> None:
    for seed in (1, 2, 3):
        full_home.run("plain", seed, right={"greedy": [0] * 6, "sampled": [0, 0, 1]}, events=())
        full_home.run("absent", seed, right={"greedy": [0] * 6, "sampled": [0, 1, 1]})
    del full_home.rows["masked"], full_home.rows["partial"]
    table = full_home.table("base")
    assert table.base is not None
    assert (table.base.steps, table.base.cells["greedy"].correct) == (0, 1)
    (panel,) = [block for block in blocks(table) if len(block.rows) > 1]
    assert panel.best["greedy"] == 0.0
    assert {row.arm for row in panel.alike} == {"plain", "absent"} - {row.arm for row in table.rows if row.suspect}
    assert table.base_reason is None


def test_an_untrained_model_that_is_not_there_has_a_reason(full_home: SyntheticHome) -> None:
    full_home.want("base", (5,), panel=None)
    values = full_home.table("base").to_dict()
    assert values["base"] is None
    assert values["base_reason"] == "not run"


def test_the_best_is_among_complete_rows_of_as_many_seeds(full_home: SyntheticHome) -> None:
    table = full_home.table("base")
    _, panel = blocks(table)
    # One of three seeds of "partial" is there: its mean over the survivors competes with nobody's.
    assert [row.arm for row in panel.alike] == ["plain", "masked"]
    assert panel.best["greedy"] == pytest.approx(100 * 15 / 18)
    assert panel.best["sampled"] == pytest.approx(100 * 24 / 36)
    assert panel.best["average"] == pytest.approx(100 * 39 / 54)
    partial = table.rows[-1]
    assert partial.cells["greedy"].percent == 100.0
    assert panel.best_for(partial) == {}
    assert table.footer()["seeds"] == [1, 2, 3]


def test_rows_of_other_seeds_or_steps_are_never_the_best(full_home: SyntheticHome) -> None:
    plain, masked = full_home.table("base").rows[:2]
    assert alike([plain, masked, replace(masked, seeds=(1,)), replace(masked, steps=132)]) == [plain, masked]
    assert alike([plain, masked, replace(plain, seeds=(1,)), replace(masked, seeds=(2,))]) == [plain, masked]
    assert alike([plain, replace(masked, outcome="collapsed at step 9 (1 of 3 seeds)")]) == [plain]
    assert best([plain], full_home.table().columns) == {}


def test_arms_are_compared_with_their_parents_over_common_seeds(full_home: SyntheticHome) -> None:
    comparisons = full_home.table("base").comparisons
    assert [(each.arm, each.parent, each.seeds) for each in comparisons] == [
        ("masked", "plain", (1, 2, 3)),
        ("collapsing", "plain", (1, 2, 3)),
        ("partial", "plain", (2,)),
    ]
    assert comparisons[0].difference == pytest.approx(100 * (39 - 26) / 54, abs=1e-4)
    assert comparisons[2].verdict == "not resolved (fewer than 3 seeds)"
    tested, alone = comparisons[:2], comparisons[2]
    assert all(each.p_holm is not None and each.p is not None and each.p_holm >= each.p for each in tested)
    # Two of the three are corrected together: one seed gives no verdict, and costs the others nothing.
    assert min(each.p_holm / each.p for each in tested) < 2.001
    assert alone.p is not None
    assert (alone.p_holm, alone.smallest_detectable) == (None, None)


def test_a_comparison_without_common_seeds_has_a_reason(home: SyntheticHome) -> None:
    home.want("plain")
    home.want("masked")
    home.run("masked", 1, right=RIGHT, parent="plain")
    (comparison,) = home.table().comparisons
    assert (comparison.difference, comparison.reason) == (None, "PLAIN: not run")
    home.run("plain", 2, right=RIGHT)
    (comparison,) = home.table().comparisons
    assert comparison.reason == "no seed in common"


def test_the_same_arm_in_two_panels_is_compared_once(full_home: SyntheticHome) -> None:
    full_home.rows["again"] = full_home.want("masked", panel="f")
    full_home.want("masked")
    table = full_home.table("base")
    assert [row.arm for row in table.rows].count("masked") == 2
    assert [each.arm for each in table.comparisons].count("masked") == 1
    assert len({run["id"] for run in table.footer()["runs"]}) == len(table.footer()["runs"])


def test_notes_keep_profiles_apart(full_home: SyntheticHome) -> None:
    notes = " ".join(full_home.table("base").notes)
    assert "not AIME" in notes
    assert "Profile nano" in notes
    assert "qwen2.5-7b" in notes


def test_json_has_the_documented_form(full_home: SyntheticHome) -> None:
    values = full_home.table("base").to_dict()
    assert list(values) == ["table", "profile", "benchmarks", "base", "rows", "comparisons", "footer"]
    assert values["benchmarks"][1] == {"name": "sampled", "label": "Sampled @4", "problems": 3, "samples": 4}
    row = values["rows"][0]
    assert list(row) == ["panel", "arm", "label", "seeds", "steps", "outcome", "cells", "average", "suspect"]
    assert row["cells"]["greedy"] == {"correct": 8, "graded": 18, "percent": pytest.approx(44.4444, abs=1e-4)}
    assert list(row["average"]) == ["generation_weighted", "macro", "ci95"]
    assert values["rows"][3]["cells"]["greedy"]["percent"] is None
    assert {"arm", "parent", "difference", "ci95", "p", "p_holm", "smallest_detectable", "verdict", "seeds"} <= set(
        values["comparisons"][0]
    )


def test_the_home_is_scanned_once_and_other_families_are_left_alone(
    full_home: SyntheticHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned: list[Path] = []
    listing = scan.readable_runs
    monkeypatch.setattr(scan, "readable_runs", lambda home: scanned.append(home) or listing(home))
    stranger = full_home.run("stranger", 1)
    stranger.events_file.write_text("damaged\n")
    full_home.table("base")
    assert scanned == [full_home.path]


def test_damaged_records_are_named(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    folder = home.run("plain", 1, right=RIGHT)
    whole = folder.generations(20).read_bytes()
    # Damaged inside, both ends as they should be: a file that is merely cut off does not count as an evaluation.
    folder.generations(20).write_bytes(whole[:-200] + bytes(192) + whole[-8:])
    found, _, reason = only_row(home)
    assert found == "records damaged"
    assert re.search(r"step-000020.parquet cannot be read .*remove it", str(reason))
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
    assert row.average.generation_weighted is None
    assert row.average.missing == "not graded"


def test_different_problems_are_refused(home: SyntheticHome) -> None:
    home.want("plain", (1, 2))
    home.run("plain", 1, right=RIGHT)
    columns = columns_of(SUITE, RIGHT)
    columns["problem"] = [each.replace("greedy-0", "greedy-9") for each in columns["problem"]]
    home.run("plain", 2, columns=columns)
    with pytest.raises(RecordError, match="different problems of greedy"):
        home.table()


def test_changed_commits_are_marked(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    folder = home.run("plain", 1, right=RIGHT)
    folder.run_file.write_text(folder.run_file.read_text().replace('"dirty": false', '"dirty": true'))
    assert home.table().footer()["commits"] == ["0123456789abcdef+changes"]


def test_the_same_home_gives_the_same_table(full_home: SyntheticHome) -> None:
    assert full_home.table("base") == full_home.table("base")


def test_synthetic_runs_keep_the_record_contract(home: SyntheticHome) -> None:
    folder = home.run("plain", 1, columns=random_columns(SUITE, 0.5, 0))
    append_line(folder.events_file, {"time": 0, "event": "evaluated", "step": 20})
    assert [event["event"] for event in read_lines(folder.events_file)] == ["started", "complete", "evaluated"]
    assert parquet.read_metadata(folder.generations(20)).num_rows == 18
    assert folder.evaluated_steps() == [20]


def test_a_run_with_damaged_records_leaves_the_others_their_scores(home, capsys):
    """Of a damaged run.json the wanted row knows; damaged events are found on the way."""
    right = {"greedy": [1, 1, 0, 0, 1, 0], "sampled": [2, 1, 3]}
    home.want("whole", (1,))
    home.want("events", (1,))
    home.want("partly", (1, 2))
    folders = {
        (arm, seed): home.run(arm, seed, right=right) for arm in ("whole", "events", "partly") for seed in (1, 2)
    }
    events = folders["events", 1].events_file
    events.write_text("garbage\n" + events.read_text())
    folders["partly", 2].run_file.write_text("{")
    home.rows["partly"] = replace(home.rows["partly"], damaged=(2,))
    whole, damaged, partly = home.table().rows
    assert whole.outcome == "complete"
    assert (damaged.outcome, damaged.average.missing) == ("records damaged", "damaged")
    assert "events.jsonl:1 cannot be read" in str(damaged.average.reason)
    assert partly.outcome == "partly: 1 of 2 seeds (records damaged)"
    assert partly.average.generation_weighted == whole.average.generation_weighted
    assert capsys.readouterr().err.count(f"run {folders['events', 1].name} is passed over: ") == 1
