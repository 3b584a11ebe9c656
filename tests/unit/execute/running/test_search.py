"""Which runs a search ends, and which it never does."""

from __future__ import annotations

from types import SimpleNamespace

from tepo_lab.execute.running.search import scheduler
from tepo_lab.schema.base import validate
from tepo_lab.schema.sweep import Search

SEARCH = {
    "metric": "validation/average",
    "every": 2,
    "grace_steps": 2,
    "reduction_factor": 2,
    "validation": {
        "chain": {"label": "Chain", "problems": 4, "data": {"kind": "chain", "split": "validation", "terms": [2]}}
    },
}


def test_a_worse_run_is_ended_on_the_way_but_never_at_its_last_step():
    stopped = []
    halving = scheduler(
        validate(Search, SEARCH, where="search"), steps=4, stopped=lambda trial, step: stopped.append((trial, step))
    )
    good, bad = (SimpleNamespace(trial_id=name, config={"folder": name}) for name in ("good", "bad"))
    for trial in (good, bad):
        halving.on_trial_add(None, trial)

    def decision(trial, step, value):
        return halving.on_trial_result(None, trial, {"step": step, "validation/average": value})

    assert decision(good, 2, 90.0) == "CONTINUE"
    assert decision(good, 4, 90.0) == "CONTINUE"
    assert decision(bad, 4, 10.0) == "CONTINUE"
    assert decision(bad, 2, 10.0) == "STOP"
    assert stopped == [(bad, 2)]
