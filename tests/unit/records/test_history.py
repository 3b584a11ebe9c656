"""One history of a run: records -> state, step, outcome, evaluations; torn and damaged records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tepo_lab.errors import RecordError
from tepo_lab.records.events import Evaluated, Tally
from tepo_lab.records.files import RunFolder
from tepo_lab.records.generations import GENERATION_COLUMNS, read_generations, write_generations
from tepo_lab.records.history import RunHistory, State, append_event, read_histories
from tepo_lab.records.lock import RunLock
from tests.leases import lease_of_another_node

NAME = "tepo-nano-s1-0123abcd"
RUN: dict[str, Any] = {
    "id": "0123abcd4567",
    "family": "feedbeef0123",
    "created": 1.0,
    "spec": {
        "arm": {"name": "tepo", "parent": "tepo_no_kl", "trained": True},
        "profile": {"name": "nano"},
        "suite": {"benchmarks": {"sum3": {"problems": 2, "samples": 1}}},
        "trainer": {"steps": 4},
        "seed": 1,
    },
    "provenance": {"commit": "abc", "dirty": False},
}
ROW = {"prompt": "1+2=", "answer": "3", "response": "3", "tokens": 2, "truncated": False, "extracted": "3"}
END = {"event": "complete", "step": 4}
EVALUATED = {"event": "evaluated", "step": 4, "benchmarks": {"sum3": {"correct": 1, "graded": 2}}}


def rows(correct: int = 1) -> list[dict[str, Any]]:
    return [
        ROW | {"benchmark": "sum3", "problem": f"p{n}", "sample": 0, "correct": correct, "how": "exact", "grader": "g"}
        for n in range(2)
    ]


def make(
    home: Path,
    events: list[dict[str, Any]],
    *,
    generations: tuple[int, ...] = (4,),
    checkpoints: tuple[int, ...] = (4,),
) -> RunFolder:
    """A run whose records are these."""
    folder = RunFolder(home / "runs" / NAME)
    folder.path.mkdir(parents=True)
    folder.run_file.write_text(json.dumps(RUN))
    lines = [{"time": float(number), **event} for number, event in enumerate(events)]
    folder.events_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step in generations:
        write_generations(folder.generations(step), rows())
    for step in checkpoints:
        folder.checkpoint(step).mkdir(parents=True)
    return folder


START = {"event": "started", "step": 0}


@pytest.mark.parametrize(
    ("events", "options", "state", "step"),
    [
        ([], {}, State.PENDING, 0),
        ([START], {}, State.INTERRUPTED, 0),
        ([START, {"event": "checkpoint", "step": 2}], {}, State.INTERRUPTED, 2),
        ([START, EVALUATED, END], {}, State.COMPLETE, 4),
        ([START, EVALUATED, {"event": "collapsed", "step": 4, "rule": "r"}], {}, State.COLLAPSED, 4),
        ([START, {"event": "stopped", "step": 3, "by": "asha"}], {}, State.STOPPED, 3),
        ([START, {"event": "failed", "step": 2, "kind": "user", "error": "e"}], {}, State.FAILED, 2),
        # Going on: what the earlier attempt made after the step is void.
        ([START, EVALUATED, END, {"event": "resumed", "step": 4}], {}, State.INTERRUPTED, 4),
        ([START, {"event": "checkpoint", "step": 3}, {"event": "resumed", "step": 2}], {}, State.INTERRUPTED, 2),
        # The evaluation at the end is missing: made again from a checkpoint, damaged without one.
        ([START, EVALUATED, END], {"generations": ()}, State.INTERRUPTED, 4),
        ([START, EVALUATED, END], {"generations": (), "checkpoints": (2,)}, State.INTERRUPTED, 4),
        ([START, EVALUATED, END], {"generations": (), "checkpoints": ()}, State.DAMAGED, 4),
        ([START, END], {"checkpoints": ()}, State.DAMAGED, 4),
        # An event of a later release is passed over.
        ([START, {"event": "renamed", "step": 1, "to": "x"}, EVALUATED, END], {}, State.COMPLETE, 4),
    ],
)
def test_records_to_state(tmp_path, events, options, state, step):
    history = RunHistory.read(make(tmp_path, events, **options))
    assert (history.state, history.step) == (state, step)
    assert (history.damage is not None) == (state is State.DAMAGED)


def test_a_history_has_what_its_readers_need(tmp_path):
    validated = {"event": "validated", "step": 2, "value": 40.0}
    suspect = {"event": "suspect", "step": 3, "why": "2 nats"}
    history = RunHistory.read(make(tmp_path, [START, validated, suspect, EVALUATED | {"seconds": 3.0}, END]))
    assert (history.id, history.family, history.arm, history.parent, history.seed, history.asked_steps) == (
        *(RUN["id"], RUN["family"], "tepo", "tepo_no_kl", 1, 4),
    )
    assert history.evaluations[4].counts == {"sum3": Tally(correct=1, graded=2)}
    assert (history.evaluations[4].seconds, history.complete_evaluations) == (3.0, (4,))
    assert (history.validations, history.suspect, history.checkpoints) == ({2: 40.0}, ("2 nats",), (4,))
    assert (history.started, history.updated, history.commit) == (0.0, 4.0, "abc")
    assert [each.name for each in read_histories(tmp_path)] == [NAME]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", b"{"),
        ("run.json", b"[]"),
        ("run.json", json.dumps(RUN | {"id": "ffff"}).encode()),
        ("run.json", json.dumps(RUN | {"spec": {}}).encode()),
        ("run.json", None),
        ("events.jsonl", b'{"event": "started", "step": 0}\nnonsense\n{"event": "complete", "step": 4}\n'),
        ("events.jsonl", b'{"event": "collapsed", "step": 4}\n{"event": "complete", "step": 4}\n'),
        ("events.jsonl", b'{"event": "started", "step": true}\n{"event": "complete", "step": 4}\n'),
        ("events.jsonl", b'{"event": "failed", "kind": "moon", "error": "e"}\n{"event": "complete", "step": 4}\n'),
        ("events.jsonl", "folder"),
    ],
)
def test_damage_is_one_state_that_names_the_file(tmp_path, name, content):
    folder = make(tmp_path, [START, EVALUATED, END])
    (folder.path / name).unlink()
    if content == "folder":
        (folder.path / name).mkdir()
    elif content is not None:
        (folder.path / name).write_bytes(content)
    history = RunHistory.read(folder)
    assert history.state is State.DAMAGED
    assert str(folder.path / name) in history.damage
    assert not history.evaluations


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10_000))
def test_an_events_file_cut_at_any_byte_is_the_history_of_its_lines(tmp_path_factory, cut):
    folder = make(tmp_path_factory.mktemp("home"), [START, {"event": "checkpoint", "step": 2}, EVALUATED, END])
    text = folder.events_file.read_bytes()
    folder.events_file.write_bytes(text[: cut % (len(text) + 1)])
    whole_lines = folder.events_file.read_bytes().count(b"\n")
    history = RunHistory.read(folder)
    expected = [State.PENDING, *[State.INTERRUPTED] * 3, State.COMPLETE][whole_lines]
    assert (history.state, history.step) == (expected, [0, 0, 2, 4, 4][whole_lines])
    # The next writer drops what is left of a torn line.
    append_event(folder, Evaluated(step=5, benchmarks={}))
    assert len(RunHistory.read(folder).events) == whole_lines + 1


def test_an_owned_run_is_running_to_others_and_not_to_its_owner(tmp_path):
    folder = make(tmp_path, [START])
    with RunLock(folder):
        assert RunHistory.read(folder).state is State.RUNNING
        assert RunHistory.read(folder, owned_by_us=True).state is State.INTERRUPTED
    assert RunHistory.read(folder).state is State.INTERRUPTED
    lease_of_another_node(folder)
    assert RunHistory.read(folder).state is State.RUNNING


def test_metrics_miss_no_step(tmp_path):
    folder = make(tmp_path, [START, EVALUATED, END])
    write = lambda *steps: folder.metrics_file.write_text("".join(f'{{"step":{n},"reward/mean":0.5}}\n' for n in steps))  # noqa: E731
    write(1, 2, 3, 4)
    assert len(RunHistory.read(folder).metrics()) == 4
    for steps in [(1, 2, 4), (1, 2, 3), (1, 2, 2, 3)]:
        write(*steps)
        with pytest.raises(RecordError, match=r"metrics\.jsonl"):
            RunHistory.read(folder).metrics()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-50]),
        lambda path: path.write_bytes(b"PAR1" + b"x" * 200 + b"PAR1"),
        lambda path: write_generations(path, rows(correct=7)),
        lambda path: write_generations(path, rows() + rows()[:1]),
        lambda path: write_generations(path, [row | {"correct": None} for row in rows()]),
        lambda path: write_generations(path, [row | {"truncated": 1} for row in rows()]),
        lambda path: path.unlink(),
    ],
)
def test_damaged_generations_are_refused_by_name(tmp_path, change):
    path = tmp_path / "generations" / "step-000004.parquet"
    write_generations(path, rows())
    assert read_generations(path, GENERATION_COLUMNS).num_rows == 2
    change(path)
    with pytest.raises(RecordError, match=r"step-000004\.parquet"):
        read_generations(path)


def test_a_flipped_bit_is_refused(tmp_path):
    path = tmp_path / "step-000004.parquet"
    write_generations(path, [row | {"sample": number} for number in range(200) for row in rows()])
    content = bytearray(path.read_bytes())
    content[60] ^= 4
    path.write_bytes(content)
    with pytest.raises(RecordError, match="damaged"):
        read_generations(path, GENERATION_COLUMNS)


def test_files_of_other_names_are_ignored(tmp_path):
    folder = make(tmp_path, [START, EVALUATED, END])
    (folder.path / "generations" / "step-000002 (1).parquet").write_bytes(b"x")
    (folder.checkpoints / "step-best").mkdir()
    assert (folder.generation_steps(), folder.checkpoint_steps()) == ([4], [4])
