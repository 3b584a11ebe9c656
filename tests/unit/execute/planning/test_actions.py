"""One decision for each run: what its history and what is asked come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tepo_lab.execute.planning.actions import Action, action, missing_evaluations
from tepo_lab.records.events import Collapsed, Complete, Failed, Stopped
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import Evaluation, RunHistory, State
from tepo_lab.registry.compose import compose_run

FOLDER = RunFolder(Path("home/runs/tepo-nano-s0-01234567"))
COLLAPSED, FAILED = Collapsed(step=4, rule="r"), Failed(step=2, kind="machine", error="e")


def history(state: State, step: int = 0, evaluated=(), outcome=None, checkpoints=(), **fields) -> RunHistory:
    evaluations = {at: Evaluation(at, {}, FOLDER.generations(at), None, 0.0) for at in evaluated}
    return replace(
        RunHistory(FOLDER, state, step=step, evaluations=evaluations, outcome=outcome, checkpoints=checkpoints),
        **fields,
    )


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (history(State.PENDING), Action.RUN),
        (history(State.RUNNING, 2), Action.WAIT),
        (history(State.DAMAGED, damage="x: y"), Action.BLOCKED),
        (history(State.INTERRUPTED, 2), Action.RESUME),
        (history(State.FAILED, 2, outcome=FAILED), Action.RETRY),
        (history(State.COMPLETE, 4, (4,), Complete(step=4)), Action.SKIP),
        (history(State.COLLAPSED, 3, (3,), COLLAPSED), Action.SKIP),
        (history(State.STOPPED, 3, outcome=Stopped(step=3, by="asha")), Action.SKIP),
        # Asked for more steps than it has.
        (history(State.COMPLETE, 2, (2,), Complete(step=2), (2,)), Action.EXTEND),
        (history(State.COMPLETE, 2, (2,), Complete(step=2), (1,)), Action.BLOCKED),
        # Past what is asked: done where it was evaluated there, and not gone back for.
        (history(State.COMPLETE, 8, (4, 8), Complete(step=8), (8,)), Action.SKIP),
        (history(State.COMPLETE, 8, (8,), Complete(step=8), (8,)), Action.BLOCKED),
        (history(State.INTERRUPTED, 6, (4,)), Action.SKIP),
        (history(State.INTERRUPTED, 6), Action.BLOCKED),
        (history(State.COLLAPSED, 6, (6,), Collapsed(step=6, rule="r")), Action.SKIP),
    ],
)
def test_state_and_what_is_asked_to_action(run, expected):
    spec = compose_run("tepo", "nano", ["trainer.steps=4"])
    found, reason = action(run, spec)
    assert found is expected
    assert reason
    assert found.is_pending == (expected in (Action.RUN, Action.RESUME, Action.EXTEND, Action.RETRY))


def test_an_evaluation_on_the_way_that_was_made_once_is_not_asked_for_again():
    spec = compose_run("tepo", "nano", ["trainer.steps=4", "trainer.evaluate_at=[1,2]"])
    assert missing_evaluations(history(State.INTERRUPTED), spec) == [1, 2, 4]
    damaged = history(State.INTERRUPTED, 4, (1, 2, 4))
    evaluations = {at: replace(each, fault="cut off") for at, each in damaged.evaluations.items()}
    assert missing_evaluations(replace(damaged, evaluations=evaluations), spec) == [4]


def test_changed_inputs_block_a_run_that_has_made_something(tmp_path):
    data = tmp_path / "problems.jsonl"
    data.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    spec = compose_run("tepo", "nano", ["data=gsm8k", f"data.path={data}"])
    made = {"data": {"training": {"path": str(data), "sha256": {"problems.jsonl": "0" * 64}}}}
    begun = history(State.INTERRUPTED, 2, checkpoints=(2,), made_with=(made,))
    assert action(begun, spec)[0] is Action.BLOCKED
    assert "training data" in action(begun, spec)[1]
    assert action(replace(begun, checkpoints=()), spec)[0] is Action.RESUME
