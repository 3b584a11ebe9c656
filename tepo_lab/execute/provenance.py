"""What a run was made with: commit, versions, hardware, command."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

#: Distributions whose versions can change a number.
_DISTRIBUTIONS = ("tepo-lab", "torch", "transformers", "ray", "numpy", "math-verify", "vllm")


@cache
def provenance() -> dict[str, Any]:
    """Commit and state of the source tree (None outside one), versions, hardware, command. Plain values."""
    commit, dirty = _commit()
    return {
        "commit": commit,
        "dirty": dirty,
        "versions": {"python": platform.python_version()} | _versions(),
        "hardware": {"machine": platform.machine(), "system": platform.system(), "cpus": os.cpu_count()},
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> tuple[str | None, bool | None]:
    """The commit of the checkout this package runs from, and whether tracked files differ from it."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None, None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit, bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
