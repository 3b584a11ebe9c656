"""What a search chose, as the labels of its rows say it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.actions import Entry
from tepo_lab.execute.planning.selection import FILE, selection_notes, write_selection
from tepo_lab.records.files import RunFolder, append_line, write_json
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import load_sweep, planned


def test_what_was_chosen_stands_while_runs_are_blocked(tmp_path):
    sweep = load_sweep("explore-learning-rate")[0]
    entries = []
    for rate, score in (("1e-4", 80.0), ("2e-4", 20.0)):
        run = planned(compose_run("tepo", "nano", (f"trainer.learning_rate={rate}",), seed=1))
        folder = RunFolder(tmp_path / "runs" / run.folder)
        folder.path.mkdir(parents=True)
        append_line(folder.events_file, {"time": 1.0, "event": "validated", "step": 4, "value": score})
        entries.append(Entry(run, folder, "complete", 4, ""))
    write_selection(tmp_path, sweep, entries)
    path = tmp_path / "sweeps" / sweep.name / FILE
    written = path.read_text()
    assert list(json.loads(written)["chosen"]) == [entries[0].planned.family]
    for state in ("other files", "past", "damaged"):
        write_selection(tmp_path, sweep, [replace(entries[0], state=state), entries[1]])
        assert path.read_text() == written
    write_selection(tmp_path, sweep, [replace(entries[0], state="failed"), entries[1]])
    assert list(json.loads(path.read_text())["chosen"]) == [entries[1].planned.family]


def test_a_chosen_point_says_among_how_many(tmp_path):
    write_json(tmp_path / "sweeps" / "explore" / FILE, {"chosen": {"abc": {"arm": "tepo", "points": 4}}})
    assert selection_notes(tmp_path) == {"abc": "chosen among 4 points"}


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"chosen": []}', '{"chosen": {"abc": {}}}', "\xff"])
def test_a_damaged_choice_is_named_with_the_mend(tmp_path, content):
    path = tmp_path / "sweeps" / "explore" / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(RecordError, match=r"selection\.json is damaged .*: running the sweep again writes it anew\."):
        selection_notes(tmp_path)
