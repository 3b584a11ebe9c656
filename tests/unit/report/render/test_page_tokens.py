"""A page's tokens: what their files hold, and those that hold anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tepo_lab.records.files import TOKEN_COLUMNS, RunFolder, write_json
from tepo_lab.records.history import RunHistory
from tepo_lab.report.figures.series import ArmRuns, SeedRun
from tepo_lab.report.render.page_tokens import token_data

RESPONSE = {name: [0.5, 0.25] for name in TOKEN_COLUMNS if name != "mask"} | {"tokens": ["a", "b"]}
GROUPS = [{"problem": "p", "responses": [RESPONSE]}]


def shown(folder: RunFolder) -> list[dict[str, Any]]:
    runs, _ = token_data([ArmRuns("tepo", "TEPO", None, (SeedRun(1, RunHistory(folder)),))])
    return runs[0]["steps"] if runs else []


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"groups": 5},
        {"groups": [5]},
        {"groups": [{}]},
        {"groups": [{"responses": 5}]},
        {"groups": [{"responses": [5]}]},
        {"groups": [{"responses": [{}]}]},
        {"groups": [{"responses": [RESPONSE | {"tokens": 5}]}]},
        {"groups": [{"responses": [RESPONSE | {"ratio": [0.5]}]}]},
        {"groups": [{"responses": [RESPONSE | {"mask": 1}]}]},
    ],
)
def test_a_file_that_holds_no_tokens_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any
) -> None:
    folder = RunFolder(tmp_path)
    write_json(folder.tokens(1), {"step": 1, "groups": GROUPS})
    write_json(folder.tokens(2), content)
    assert shown(folder) == [{"step": 1, "groups": GROUPS}]
    [note] = capsys.readouterr().err.splitlines()
    assert note.startswith("tepo-lab: note: ")
    assert "step-000002.json is damaged" in note


@pytest.mark.parametrize("value", [b"\xff{", b"NaN", b"1e400", b'"\\ud800"'])
def test_a_file_that_no_page_can_hold_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: bytes
) -> None:
    folder = RunFolder(tmp_path)
    folder.tokens(1).parent.mkdir()
    content = json.dumps({"groups": [{"problem": "p", "responses": [RESPONSE | {"tokens": [0, 0]}]}]})
    folder.tokens(1).write_bytes(content.encode().replace(b'"tokens": [0', b'"tokens": [' + value))
    assert shown(folder) == []
    assert "step-000001.json is damaged" in capsys.readouterr().err
