"""Every arm, profile and sweep resolves to its golden file."""

from __future__ import annotations

import difflib

from golden_registry import GOLDEN, golden_texts


def test_golden_files_are_up_to_date():
    texts = golden_texts()
    held = {str(path.relative_to(GOLDEN)): path.read_text(encoding="utf-8") for path in GOLDEN.rglob("*.*")}
    stale = sorted(name for name in texts.keys() | held.keys() if texts.get(name) != held.get(name))
    shown = [
        line
        for name in stale[:3]
        for line in difflib.unified_diff(
            held.get(name, "").splitlines(), texts.get(name, "").splitlines(), f"golden/{name}", "resolved", n=1
        )
    ][:40]
    advice = "make them again with: python tests/unit/registry/golden_registry.py"
    assert not stale, "\n".join([f"{len(stale)} stale golden files ({advice}): {stale[:5]}", *shown])
