"""Registries of a test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def user_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a user's registry of files, by path without .yaml, and points TEPO_LAB_REGISTRY at it."""

    def make(**files: str) -> Path:
        folder = tmp_path / "user's, own registry"
        for name, text in files.items():
            path = folder / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setenv("TEPO_LAB_REGISTRY", str(folder))
        return folder

    return make


@pytest.fixture
def sweep_file(tmp_path: Path) -> Callable[..., str]:
    """Writes a sweep somewhere on disk and returns its path."""

    def write(text: str, name: str = "mine") -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        return str(path)

    return write
