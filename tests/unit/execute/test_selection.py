"""What a search chose, as the labels of its rows say it."""

from __future__ import annotations

import pytest

from tepo_lab.errors import RecordError
from tepo_lab.execute.selection import FILE, selection_notes
from tepo_lab.schema.record import write_json


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
