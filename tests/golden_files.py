"""Texts against the files in tests/golden, rewritten when UPDATE_GOLDEN is set."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tepo_lab.report.render import formats

GOLDEN = Path(__file__).parent / "golden"
ENDINGS = {"text": "txt", "md": "md", "latex": "tex", "html": "html", "csv": "csv", "json": "json"}

#: Numbers in full precision may differ in their last digits between machines.
TOLERANCE = 1e-6


def assert_golden(name: str, form: str, rendered: str) -> None:
    """Compare a rendering with tests/golden/NAME with the form's ending.

    Text, Markdown, LaTeX and HTML to the letter, a page's style by the name it has in the code; the numbers of JSON and
    CSV to six digits.
    """
    style = (Path(formats.__file__).parent / "templates" / "table.css").read_text()
    rendered = rendered.replace(style, "STYLE\n")
    path = GOLDEN / f"{name}.{ENDINGS[form]}"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rendered)
    expected = path.read_text()
    if form == "json":
        assert_alike(json.loads(rendered), json.loads(expected))
    elif form == "csv":
        assert_alike(_cells(rendered), _cells(expected))
    else:
        assert rendered == expected


def _cells(text: str) -> list[list[Any]]:
    return [[_value(cell) for cell in row] for row in csv.reader(io.StringIO(text))]


def _value(cell: str) -> Any:
    try:
        return float(cell)
    except ValueError:
        return cell


def assert_alike(found: Any, expected: Any, where: str = "") -> None:
    """Equal values, numbers to `TOLERANCE`; keys in the same order."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE), where
    elif isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key, value in expected.items():
            assert_alike(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, value in enumerate(expected):
            assert_alike(found[number], value, f"{where}[{number}]")
    else:
        assert found == expected, where
