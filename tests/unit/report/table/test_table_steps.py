"""At which step a table is read, and what it says of runs that did not come so far."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synthetic_home import RIGHT, SUITE, SyntheticHome, collapsed, columns_of, failed, only_row, outcome, parquet_at

from tepo_lab.report.render.document import panels
from tests.leases import lease_of_another_node


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
            lease_of_another_node(folder, age=age)
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
        assert not any(panel.comparable for panel in panels(table))
        (comparison,) = table.comparisons
        assert comparison.verdict == "not resolved (MASKED: failed: user at step 15)"
        assert (comparison.p_holm, comparison.smallest_detectable) == (None, None)
        assert home.table(steps=10).comparisons[0].verdict == "not resolved"

    def test_they_cost_the_others_nothing(self, home: SyntheticHome) -> None:
        """Nothing is tested of a comparison that gets no verdict, so that it has no part in Holm's correction."""
        columns = {"greedy": [1] * 6, "sampled": [4] * 3}
        for arm, parent, right in (("plain", None, RIGHT), ("masked", "plain", columns)):
            home.want(arm)
            for seed in (1, 2, 3):
                home.run(arm, seed, right=right, steps=10, parent=parent)
        (alone,) = home.table().comparisons
        home.want("cut")
        for seed in (1, 2, 3, 4):
            events = (failed(15),) if seed == 3 else ({"event": "complete", "step": 10},)
            home.run("cut", seed, right=RIGHT, steps=10, asked=20, parent="plain", events=events)
        beside, cut = home.table().comparisons
        assert (beside.p_holm, beside.verdict) == (alone.p_holm, alone.verdict)
        assert alone.p_holm == alone.p is not None
        assert cut.verdict == "not resolved (CUT: failed: user at step 15)"
        assert cut.p is not None
        # A seed that is not compared does not matter.
        home.rows["cut"] = replace(home.rows["cut"], seeds=(1, 2, 3, 4))
        home.run("cut", 3, right=RIGHT, steps=10, parent="plain")
        home.run("cut", 4, right=RIGHT, steps=10, asked=20, parent="plain", events=(failed(15),))
        assert [one.p_holm is None for one in home.table().comparisons] == [False, False]

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
        parquet_at(folder, 20, columns_of(SUITE, more))
        assert home.table(steps=10).rows[0].scores["greedy"].correct == 2
        assert home.table(steps=20).rows[0].scores["greedy"].correct == 6

    def test_the_largest_when_none_is_asked_for(self, home: SyntheticHome) -> None:
        home.want("plain", (1,))
        parquet_at(home.run("plain", 1, right=RIGHT, steps=10), 15, columns_of(SUITE, RIGHT))
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
        assert table.rows[1].reason == "not evaluated at step 20 (evaluated steps: 10)"

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
