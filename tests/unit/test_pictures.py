"""The pictures of the documentation are self-contained."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_no_picture_fetches_anything() -> None:
    for path in DOCS.glob("*.svg"):
        text = path.read_text()
        assert "@font-face" not in text
        fetched = re.findall(r"(?:url\(|(?:xlink:)?href=\"|src=\"|@import\s)(?!#)[^)\"]*", text)
        assert fetched == [], path
