"""The token files behind a table, as the data of a page's token view."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tepo_lab.errors import RecordError
from tepo_lab.records.files import TOKEN_COLUMNS, RunFolder
from tepo_lab.report.figures.series import ArmRuns, SeedRun

#: Tokens that one page holds at most; each has seven values, some fifty bytes in all.
PAGE_TOKENS = 300_000


def token_data(arms: Sequence[ArmRuns]) -> tuple[list[dict[str, Any]], int]:
    """The runs with token files, each with its steps and their groups, and how many groups were left out.

    Runs share `PAGE_TOKENS` evenly; of a run's steps the last ones are kept first. A damaged file is left out and named
    on standard error.
    """
    held = _held(arms)
    runs, left_out = [], 0
    for label, run in held.values():
        steps: list[dict[str, Any]] = []
        for step, _, kept, more in _groups(run.folder, PAGE_TOKENS // len(held)):
            left_out += more
            if kept or not more:
                steps.insert(0, {"step": step, "groups": kept})
        if steps:
            runs.append({"label": f"{label}, seed {run.seed}", "run": run.folder.name, "steps": steps})
    return runs, left_out


def shown_files(arms: Iterable[ArmRuns]) -> Iterator[tuple[Path, bytes]]:
    """The token files of which a page of these runs shows anything (`token_data`), each with what it holds."""
    held = _held(arms)
    for _, run in held.values():
        for step, content, kept, more in _groups(run.folder, PAGE_TOKENS // len(held)):
            if kept or not more:
                yield run.folder.tokens(step), content


def _held(arms: Iterable[ArmRuns]) -> dict[str, tuple[str, SeedRun]]:
    """The runs that have token files, each once, with the label of their arm."""
    return {run.folder.name: (arm.label, run) for arm in arms for run in arm.runs if run.folder.token_steps()}


def _groups(folder: RunFolder, room: int) -> Iterator[tuple[int, bytes, list[dict[str, Any]], int]]:
    """Of each of a run's token files, the last one first: its step, its bytes, groups until `room` tokens are full, and
    how many are left."""
    for step in reversed(folder.token_steps()):
        content = folder.tokens(step).read_bytes()
        try:
            groups = _parsed(folder.tokens(step), content)
        except RecordError as error:
            sys.stderr.write(f"tepo-lab: note: {error}\n")
            continue
        kept = []
        for group in groups:
            room -= sum(len(response["tokens"]) for response in group["responses"])
            if room >= 0:
                kept.append(group)
        yield step, content, kept, len(groups) - len(kept)


def _parsed(path: Path, content: bytes) -> list[dict[str, Any]]:
    """The groups of the token file at `path`. Raises `RecordError` when it is damaged or holds anything else."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is damaged ({error}) and left out of the page: remove it.") from None
    groups = values.get("groups") if isinstance(values, dict) else None
    if not isinstance(groups, list) or not all(map(_is_group, groups)):
        raise RecordError(f"{path} is damaged (it holds no token values) and left out of the page: remove it.")
    return groups


def _is_group(group: Any) -> bool:
    responses = group.get("responses") if isinstance(group, dict) else None
    return isinstance(responses, list) and all(map(_is_response, responses))


def _is_response(response: Any) -> bool:
    """Whether it has its tokens and as many values of each column; the mask may be missing."""
    if not isinstance(response, dict) or not isinstance(response.get("tokens"), list):
        return False
    columns = [response.get(name, response["tokens"] if name == "mask" else None) for name in TOKEN_COLUMNS]
    return all(isinstance(column, list) and len(column) == len(response["tokens"]) for column in columns)
