"""Where runs are read so that all have spent the same."""

from __future__ import annotations

import pytest
from synthetic_home import RIGHT, SUITE, SyntheticHome, collapsed, columns_of, complete, outcome, parquet_at

from tepo_lab.errors import RecordError
from tepo_lab.records.files import append_line
from tepo_lab.report.table.budget import Budget, EqualBudget, equal_budget
from tepo_lab.report.table.runs import read_runs
from tepo_lab.report.table.wanted import graded_benchmarks


def spend(home: SyntheticHome, arm: str, tokens: list[int], evaluated: tuple[int, ...], end: str = "complete") -> None:
    """A run of one seed that spent these tokens, and two seconds, at its steps."""
    last = len(tokens)
    folder = home.run(arm, 1, asked=last, events=())
    for step in evaluated:
        parquet_at(folder, step, columns_of(SUITE, RIGHT))
    append_line(folder.events_file, {"time": 1.7e9} | (collapsed(last) if end != "complete" else complete(last)))
    for step, count in enumerate(tokens, 1):
        append_line(folder.metrics_file, {"step": step, "rollout/tokens": count, "seconds/step": 2.0})
    home.want(arm, (1,))


def budget_of(home: SyntheticHome, kind: Budget) -> tuple[EqualBudget, dict[str, int]]:
    """The budget, and by arm where it is read."""
    arms = {row.family: arm for arm, row in home.rows.items()}
    budget = equal_budget(read_runs(home.path, home.rows.values(), graded_benchmarks(SUITE)), kind)
    return budget, {arms[family]: step for (family, _), step in budget.steps.items()}


def test_each_run_is_read_at_its_last_evaluation_within_the_smallest_total(home: SyntheticHome) -> None:
    spend(home, "short", [100] * 6, (2, 4, 6))
    spend(home, "long", [250] * 6, (2, 4, 6))
    # The short one has spent 600 at its end; the other 500 at step 2 and 1000 at step 4.
    budget, steps = budget_of(home, "tokens")
    assert (budget.limit, steps, budget.beyond) == (600, {"short": 6, "long": 2}, 0)
    assert "600 tokens" in budget.note
    budget, steps = budget_of(home, "seconds")
    assert (budget.limit, steps) == (12, {"short": 6, "long": 6})


def test_a_run_whose_first_evaluation_is_beyond_the_budget_has_none(home: SyntheticHome) -> None:
    spend(home, "thrifty", [10] * 4, (4,))
    spend(home, "costly", [100] * 4, (4,))
    budget, steps = budget_of(home, "tokens")
    assert (steps, budget.beyond) == ({"thrifty": 4}, 1)
    assert "trainer.evaluate_at" in budget.note
    assert outcome(home.table(equal="tokens"), "costly") == "not evaluated within the budget"


def test_a_collapsed_run_keeps_its_evaluation_and_does_not_lower_the_budget(home: SyntheticHome) -> None:
    spend(home, "going", [100] * 6, (3, 6))
    spend(home, "collapsed", [100] * 2, (2,), "collapsed")
    budget, steps = budget_of(home, "tokens")
    assert (budget.limit, steps) == (600, {"going": 6, "collapsed": 2})


def test_without_any_evaluation_there_is_no_budget(home: SyntheticHome) -> None:
    spend(home, "none", [10], ())
    with pytest.raises(RecordError, match="no budget"):
        budget_of(home, "tokens")
