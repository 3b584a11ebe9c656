"""The token files behind a table, as the data of a page's token view."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tepo_lab.errors import RecordError, write_note
from tepo_lab.records.files import TOKEN_COLUMNS, RunFolder, read_record
from tepo_lab.report.figures.series import ArmRuns, SeedRun

#: Tokens that one page holds at most; each has seven values, some fifty bytes in all.
PAGE_TOKENS = 300_000

#: A token file's step and content, the groups that are shown of it, and how many are not.
TokenFile = tuple[int, bytes, list[dict[str, Any]], int]


def token_data(arms: Sequence[ArmRuns]) -> tuple[list[dict[str, Any]], int]:
    """The runs with token files, each with its steps and their groups, and how many groups were left out.

    Runs share `PAGE_TOKENS` evenly; of a run's steps the last ones are kept first. A damaged file is left out and named
    on standard error.
    """
    runs, left_out = [], 0
    for label, run, files in _shown(arms):
        left_out += sum(more for *_, more in files)
        steps = [{"step": step, "groups": groups} for step, _, groups, more in reversed(files) if groups or not more]
        if steps:
            runs.append({"label": f"{label}, seed {run.seed}", "run": run.folder.name, "steps": steps})
    return runs, left_out


def shown_files(arms: Iterable[ArmRuns]) -> Iterator[tuple[Path, bytes]]:
    """The token files of which a page of these runs shows anything (`token_data`), each with its content."""
    for _, run, files in _shown(arms):
        for step, content, groups, more in files:
            if groups or not more:
                yield run.folder.tokens(step), content


def _shown(arms: Iterable[ArmRuns]) -> Iterator[tuple[str, SeedRun, list[TokenFile]]]:
    """The runs that have token files, each once, with the label of their arm and what is shown of the files."""
    runs = {run.folder.name: (arm.label, run) for arm in arms for run in arm.runs if run.folder.token_steps()}
    for label, run in runs.values():
        yield label, run, list(_files(run.folder, PAGE_TOKENS // len(runs)))


def _files(folder: RunFolder, room: int) -> Iterator[TokenFile]:
    """A run's token files, the last one first, with their groups until `room` tokens are full."""
    for step in reversed(folder.token_steps()):
        try:
            content = read_record(folder.tokens(step))
            groups = _parsed(folder.tokens(step), content)
        except RecordError as error:
            write_note(str(error))
            continue
        shown = []
        for group in groups:
            room -= sum(len(response["tokens"]) for response in group["responses"])
            if room >= 0:
                shown.append(group)
        yield step, content, shown, len(groups) - len(shown)


def _parsed(path: Path, content: bytes) -> list[dict[str, Any]]:
    """The groups of the token file at `path`. Raises `RecordError` when it is damaged or holds anything else."""
    try:
        groups: list[dict[str, Any]] = json.loads(content)["groups"]
        # A page is UTF-8, and its numbers are JSON's: no NaN, no infinity (1e400), no half of a surrogate pair.
        json.dumps(groups, ensure_ascii=False, allow_nan=False).encode()
        responses = [response for group in groups for response in group["responses"]]
        # A run without a penalty has no mask.
        is_intact = all(
            len(response.get(name, response["tokens"] if name == "mask" else ())) == len(response["tokens"])
            for response in responses
            for name in TOKEN_COLUMNS
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        is_intact = False
    if not is_intact:
        raise RecordError(f"{path} is damaged and left out of the page: remove it.")
    return groups
