"""Tables from synthetic homes: which runs fill which rows, at which step, and what stands where nothing does."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import pytest
from synthetic_home import RIGHT, SUITE, SyntheticHome, collapsed, columns_of, failed, only_row

from tepo_lab.errors import RecordError
from tepo_lab.records.lock import RunLock
from tepo_lab.report.render.document import best, comparable_rows, footnotes, panels
from tests.leases import lease_of_another_node


def test_counts_are_summed_over_seeds(home: SyntheticHome) -> None:
    home.want("plain", (1, 2))
    home.run("plain", 1, right=RIGHT)
    home.run("plain", 2, right={"greedy": [1] * 6, "sampled": [4, 4, 2]})
    home.run("plain", 3, right=RIGHT)  # not among the seeds wanted
    (row,) = home.table().rows
    assert (row.seeds, row.steps, row.outcome) == ((1, 2), 20, "complete")
    greedy, sampled = row.scores["greedy"], row.scores["sampled"]
    assert (greedy.correct, greedy.graded, greedy.percent) == (8, 12, pytest.approx(100 * 8 / 12))
    assert (sampled.correct, sampled.graded) == (15, 24)
    assert row.average.percent == pytest.approx(100 * 23 / 36)
    assert row.macro == pytest.approx((100 * 8 / 12 + 100 * 15 / 24) / 2)
    assert row.average.ci95 is not None
    assert row.average.ci95[0] < 100 * 23 / 36 < row.average.ci95[1]


def test_all_seeds_of_the_home_when_none_are_named(home: SyntheticHome) -> None:
    home.want("plain", ())
    for seed in (7, 3):
        home.run("plain", seed, right=RIGHT)
    assert only_row(home) == ("complete", (3, 7), None)


def test_one_seed_is_over_problems_only(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, right=RIGHT)
    table = home.table()
    assert table.rows[0].scored_seeds == 1
    assert table.footer()["problems_only"] == ["plain"]


def test_a_collapse_of_some_seeds(home: SyntheticHome) -> None:
    home.want("plain")
    for seed in (1, 2):
        home.run("plain", seed, right=RIGHT)
    home.run("plain", 3, right=RIGHT, steps=12, events=(collapsed(12),))
    (row,) = home.table().rows
    assert row.outcome == "collapsed at step 12 (1 of 3 seeds)"
    assert (row.seeds, row.steps, row.scores["greedy"].graded) == ((1, 2, 3), 20, 18)


def test_a_collapse_names_its_rule(home: SyntheticHome) -> None:
    for arm in ("plain", "masked", "cut"):
        home.want(arm)
    for seed, step in ((1, 12), (2, 12), (3, 9)):
        home.run("plain", seed, right=RIGHT, steps=step, events=(collapsed(step),))
    other = {"event": "collapsed", "step": 4, "rule": "actor/pg_loss is not finite"}
    home.run("masked", 1, events=(collapsed(5),))
    home.run("masked", 2, events=(other,))
    home.run("cut", 1, right=RIGHT, events=(collapsed(31),))  # later than where it is read
    table = home.table()
    low, last = "reward/mean < 0.02", "actor/pg_loss is not finite"
    assert [[(collapse.seed, collapse.step, collapse.rule) for collapse in row.collapses] for row in table.rows] == [
        [(1, 12, low), (2, 12, low), (3, 9, low)],
        [(1, 5, low), (2, 4, last)],
        [],
    ]
    assert [line for line in footnotes(table) if line.startswith("Collapsed")] == [
        f"Collapsed by the rule {low}: PLAIN seeds 1 2 at step 12; PLAIN seed 3 at step 9; MASKED seed 1 at step 5.",
        f"Collapsed by the rule {last}: MASKED seed 2 at step 4.",
    ]
    plain, _, cut = table.to_dict()["rows"]
    assert plain["collapses"][2] == {"seed": 3, "step": 9, "rule": low}
    assert "collapses" not in cut


@pytest.mark.parametrize(
    ("is_evaluated", "events", "expected"),
    [
        # A collapse after the step of the table leaves the evaluation there.
        (True, (collapsed(31),), ("complete", (1,), None)),
        (False, (collapsed(4),), ("collapsed at step 4, not evaluated", (), "collapsed at step 4, not evaluated")),
        # A run that was resumed is no longer failed.
        (False, (failed(3, "machine"), {"event": "resumed", "step": 2}), ("stopped at step 2", (), None)),
    ],
)
def test_the_end_of_a_run(
    home: SyntheticHome,
    is_evaluated: bool,
    events: tuple[dict[str, Any], ...],
    expected: tuple[str, tuple[int, ...], str | None],
) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, right=RIGHT if is_evaluated else None, events=events)
    outcome, seeds, reason = only_row(home)
    assert (outcome, seeds) == expected[:2]
    assert str(reason).startswith(str(expected[2] or ("None" if seeds else outcome)))


@pytest.mark.parametrize(("age", "expected"), [(0, "running"), (3600, "stopped at step 7")])
def test_running_or_stopped(home: SyntheticHome, age: int, expected: str) -> None:
    home.want("plain", (1,))
    folder = home.run("plain", 1, events=({"event": "checkpoint", "step": 7},))
    lease_of_another_node(folder, age=age)
    assert only_row(home)[0] == expected


def test_a_run_whose_owner_lives_here_is_running_however_old_its_heartbeat(home: SyntheticHome) -> None:
    """Its disk may be full, or it is suspended."""
    home.want("plain", (1,))
    folder = home.run("plain", 1, events=({"event": "checkpoint", "step": 7},))
    with RunLock(folder):
        os.utime(folder.lease_file, (time.time() - 3600,) * 2)
        assert only_row(home)[0] == "running"
    assert only_row(home)[0] == "stopped at step 7"


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
    outcome, _, reason = only_row(home)
    assert outcome == "records damaged"
    assert "1 of 18 rows repeat a sample" in str(reason)


def test_the_untrained_model_is_read_at_step_zero_and_is_never_the_best(full_home: SyntheticHome) -> None:
    for seed in (1, 2, 3):
        full_home.run("plain", seed, right={"greedy": [0] * 6, "sampled": [0, 0, 1]}, events=())
        full_home.run("absent", seed, right={"greedy": [0] * 6, "sampled": [0, 1, 1]})
    del full_home.rows["masked"], full_home.rows["partial"]
    table = full_home.table("base")
    assert table.base is not None
    assert (table.base.steps, table.base.scores["greedy"].correct) == (0, 1)
    (panel,) = [panel for panel in panels(table) if len(panel.rows) > 1]
    assert panel.best["greedy"] == 0.0
    assert {row.arm for row in panel.comparable} == {"plain", "absent"} - {row.arm for row in table.rows if row.suspect}
    assert table.base_reason is None


def test_an_absent_untrained_model_has_a_reason(full_home: SyntheticHome) -> None:
    full_home.want("base", (5,), panel=None)
    values = full_home.table("base").to_dict()
    assert values["base"] is None
    assert values["base_reason"] == "not run"


def test_the_best_is_among_complete_rows_of_as_many_seeds(full_home: SyntheticHome) -> None:
    table = full_home.table("base")
    _, panel = panels(table)
    # One of three seeds of "partial" is there: its mean over the survivors competes with nobody's.
    assert [row.arm for row in panel.comparable] == ["plain", "masked"]
    assert panel.best["greedy"] == pytest.approx(100 * 15 / 18)
    assert panel.best["sampled"] == pytest.approx(100 * 24 / 36)
    assert panel.best["avg"] == pytest.approx(100 * 39 / 54)
    partial = table.rows[-1]
    assert partial.scores["greedy"].percent == 100.0
    assert table.footer()["seeds"] == [1, 2, 3]


def test_rows_of_other_seeds_or_steps_are_never_the_best(full_home: SyntheticHome) -> None:
    full_home.want("single", (1,))
    full_home.rows["late"] = replace(full_home.want("late"), steps=40)
    full_home.run("single", 1, right={"greedy": [1] * 6, "sampled": [4, 4, 3]})
    for seed in (1, 2, 3):
        full_home.run("late", seed, right={"greedy": [1] * 6, "sampled": [4, 4, 3]}, steps=40)
    rows = full_home.table("base").rows
    assert [row.arm for row in comparable_rows(rows)] == ["plain", "masked"]
    assert [row.arm for row in comparable_rows([row for row in rows if row.arm != "masked"])] == ["late"]
    assert best(rows[:1], full_home.table("base")) == {}


def test_arms_are_compared_with_their_parents_over_common_seeds(full_home: SyntheticHome) -> None:
    comparisons = full_home.table("base").comparisons
    assert [(one.arm, one.parent, one.seeds) for one in comparisons] == [
        ("masked", "plain", (1, 2, 3)),
        ("collapsing", "plain", (1, 2, 3)),
        ("partial", "plain", (2,)),
    ]
    assert comparisons[0].difference == pytest.approx(100 * (39 - 26) / 54, abs=1e-4)
    assert comparisons[2].verdict == "not resolved (fewer than 3 seeds)"
    tested, alone = comparisons[:2], comparisons[2]
    assert all(one.p_holm is not None and one.p is not None and one.p_holm >= one.p for one in tested)
    # Two of the three are corrected together: one seed gives no verdict, and costs the others nothing.
    assert min(one.p_holm / one.p for one in tested) < 2.001
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
    assert [one.arm for one in table.comparisons].count("masked") == 1
    assert len({run["id"] for run in table.footer()["runs"]}) == len(table.footer()["runs"])


def test_different_problems_are_refused(home: SyntheticHome) -> None:
    home.want("plain", (1, 2))
    home.run("plain", 1, right=RIGHT)
    columns = columns_of(SUITE, RIGHT)
    columns["problem"] = [problem.replace("greedy-0", "greedy-9") for problem in columns["problem"]]
    home.run("plain", 2, columns=columns)
    with pytest.raises(RecordError, match="different problems of greedy"):
        home.table()
