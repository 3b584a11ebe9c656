from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder, append_line
from tepo_lab.report.table.budget import equal_budget
from tepo_lab.report.table.scan import FoundRun, missing_reason


def run_of(
    path: Path, family: str, tokens: list[int], evaluated: tuple[int, ...], status: dict[str, Any] | None = None
) -> FoundRun:
    folder = RunFolder(path / family)
    folder.path.mkdir()
    for step, count in enumerate(tokens, 1):
        append_line(folder.metrics_file, {"step": step, "rollout/tokens": count, "seconds/step": 2.0})
    status = status or {"event": "complete", "step": len(tokens)}
    return FoundRun(folder, family, family, family, None, 1, None, status, len(tokens), False, evaluated, evaluated)


def test_each_run_is_read_at_its_last_evaluation_within_the_smallest_total(tmp_path: Path) -> None:
    short = run_of(tmp_path, "short", [100] * 6, (2, 4, 6))
    long_winded = run_of(tmp_path, "long", [250] * 6, (2, 4, 6))
    at_tokens = equal_budget([short, long_winded], "tokens")
    # The short one has spent 600 at its end; the other 500 at step 2 and 1000 at step 4.
    assert (at_tokens.limit, at_tokens.steps) == (600, {("short", 1): 6, ("long", 1): 2})
    at_seconds = equal_budget([short, long_winded], "seconds")
    assert (at_seconds.limit, at_seconds.steps) == (12, {("short", 1): 6, ("long", 1): 6})
    assert "600 tokens" in at_tokens.note
    assert "evaluate_at" not in at_tokens.note


def test_a_run_whose_first_evaluation_is_beyond_the_budget_has_none(tmp_path: Path) -> None:
    thrifty = run_of(tmp_path, "thrifty", [10] * 4, (4,))
    costly = run_of(tmp_path, "costly", [100] * 4, (4,))
    found = equal_budget([thrifty, costly], "tokens")
    assert (found.steps, found.beyond) == ({("thrifty", 1): 4}, 1)
    assert found.note.endswith(
        "1 run has none: run the sweep in another home (--home) with trainer.evaluate_at=[...] set to earlier steps."
    )
    assert missing_reason(costly, None)[1] == "not evaluated within the budget"


def test_a_collapsed_run_keeps_its_evaluation_and_does_not_lower_the_budget(tmp_path: Path) -> None:
    going = run_of(tmp_path, "going", [100] * 6, (3, 6))
    collapsed = run_of(tmp_path, "collapsed", [100] * 2, (2,), {"event": "collapsed", "step": 2})
    found = equal_budget([going, collapsed], "tokens")
    assert (found.limit, found.steps) == (600, {("going", 1): 6, ("collapsed", 1): 2})


def test_without_any_evaluation_there_is_no_budget(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no budget to read it at"):
        equal_budget([run_of(tmp_path, "none", [10], ())], "tokens")
