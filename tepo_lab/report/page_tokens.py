"""The token files behind a table, as the data of a page's token view."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tepo_lab.errors import RecordError
from tepo_lab.report.figures_series import ArmRuns

#: Tokens that one page holds at most; each has seven values, some fifty bytes in all.
PAGE_TOKENS = 300_000


def token_data(arms: Sequence[ArmRuns]) -> tuple[list[dict[str, Any]], int]:
    """The runs with token files, each with its steps and their groups, and how many groups were left out.

    Runs share `PAGE_TOKENS` evenly; of a run's steps the last ones are kept first. Raises `RecordError` for a damaged
    file.
    """
    held = {run.folder.name: (arm.label, run) for arm in arms for run in arm.runs if run.folder.token_steps()}
    runs, left_out = [], 0
    for label, run in held.values():
        room = PAGE_TOKENS // len(held)
        steps: list[dict[str, Any]] = []
        for step in reversed(run.folder.token_steps()):
            groups = _read(run.folder.tokens(step))
            kept = []
            for group in groups:
                room -= sum(len(response["tokens"]) for response in group["responses"])
                if room >= 0:
                    kept.append(group)
            left_out += len(groups) - len(kept)
            if kept or not groups:
                steps.insert(0, {"step": step, "groups": kept})
        if steps:
            runs.append({"label": f"{label}, seed {run.seed}", "run": run.folder.name, "steps": steps})
    return runs, left_out


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        groups: list[dict[str, Any]] = json.loads(path.read_text())["groups"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise RecordError(f"{path} is damaged ({error}): remove it; the page is then made without it.") from None
    return groups
