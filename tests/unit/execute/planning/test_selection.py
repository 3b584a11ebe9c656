"""What a search chose, as the labels of its rows say it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.actions import Action, Entry
from tepo_lab.execute.planning.selection import FILE, selection_notes, write_selection
from tepo_lab.records.files import RunFolder, write_json
from tepo_lab.records.history import RunHistory, State
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import load_sweep, planned


def test_the_point_with_the_best_last_validation_is_chosen_and_stands_while_runs_are_blocked(tmp_path):
    sweep = load_sweep("explore-learning-rate")[0]
    entries = []
    for rate, score in (("1e-4", 80.0), ("2e-4", 20.0)):
        run = planned(compose_run("tepo", "nano", (f"trainer.learning_rate={rate}",), seed=1))
        history = RunHistory(RunFolder(tmp_path), State.COMPLETE, validations={2: 100 - score, 4: score})
        entries.append(Entry(run, history, Action.SKIP, ""))
    write_selection(tmp_path, sweep, entries)
    path = tmp_path / "sweeps" / sweep.name / FILE
    written = path.read_text()
    assert list(json.loads(written)["chosen"]) == [entries[0].planned.family]
    write_selection(tmp_path, sweep, [replace(entries[0], action=Action.BLOCKED), entries[1]])
    assert path.read_text() == written
    failed = replace(entries[0], history=replace(entries[0].history, state=State.FAILED))
    write_selection(tmp_path, sweep, [failed, entries[1]])
    assert list(json.loads(path.read_text())["chosen"]) == [entries[1].planned.family]


def test_a_chosen_point_says_among_how_many(tmp_path):
    write_json(tmp_path / "sweeps" / "explore" / FILE, {"chosen": {"abc": {"arm": "tepo", "points": 4}}})
    assert selection_notes(tmp_path) == {"abc": "chosen among 4 points"}


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"chosen": []}', '{"chosen": {"abc": {}}}', "\xff"])
def test_a_damaged_choice_is_named(tmp_path, content):
    path = tmp_path / "sweeps" / "explore" / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(RecordError, match=r"selection\.json is damaged"):
        selection_notes(tmp_path)
