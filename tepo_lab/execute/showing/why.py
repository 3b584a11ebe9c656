"""Why runs are not done: failures grouped by cause, each with the end of its log and how to fix it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group
from rich.text import Text

from tepo_lab.errors import RecordError
from tepo_lab.execute.showing.text import counted
from tepo_lab.records.events import Failed
from tepo_lab.records.files import RunFolder, open_record
from tepo_lab.records.history import RunHistory, State

#: Lines of trial.log shown for a cause.
LOG_LINES = 12

_LOG_BYTES = 65_536

#: Runs named for a cause; of more, only the number.
_NAMED = 5

#: Errors of ours, whose line ends with the fix.
_OURS = ("ConfigError", "ObjectiveError", "DataError", "ModelError", "RecordError", "ResourceError")

_AGAIN = "give the same command again; it continues from the newest checkpoint"


@dataclass
class FailureCause:
    """Runs that failed alike. `kind`: "user", "machine", "stopped" (ended without recording an end) or "damaged"."""

    kind: str
    fingerprint: str
    error: str
    fix: str
    runs: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def causes(folders: Iterable[RunFolder]) -> list[FailureCause]:
    """The causes for which runs are not done now, those with the most runs first. Running ones have none."""
    by_key: dict[tuple[str, str], FailureCause] = {}
    for folder in folders:
        cause = _cause(RunHistory.read(folder))
        if cause is None:
            continue
        is_own = cause.kind == "damaged"  # no two runs are damaged alike, and no log says how
        known = by_key.setdefault((cause.kind, folder.name if is_own else cause.fingerprint or cause.error), cause)
        known.runs.append(folder.name)
        known.log = ([] if is_own else log_tail(folder)) or known.log
    return sorted(by_key.values(), key=lambda cause: -len(cause.runs))


def _cause(history: RunHistory) -> FailureCause | None:
    if history.state is State.DAMAGED:
        fault, _, fix = str(history.damage).rpartition(": ")
        return FailureCause("damaged", "", fault, fix)
    if history.state is State.INTERRUPTED:
        return FailureCause(
            "stopped", "", "ended without recording an end (a kill, or the machine stopped)", f"{_AGAIN}."
        )
    failed = history.outcome
    if history.state is not State.FAILED or not isinstance(failed, Failed):
        return None
    if failed.kind == "machine":
        fix = f"fix what the error names (memory, disk, connection), then {_AGAIN}."
    elif failed.error_type in _OURS:
        fix = "as the error says; then give the same command again."
    else:
        fix = f"fix the code that the last lines of {history.folder.log_file} name, then give the same command again."
    return FailureCause(failed.kind, failed.fingerprint or failed.error, failed.error, fix)


def log_tail(folder: RunFolder, lines: int = LOG_LINES) -> list[str]:
    """The last lines of the run's trial.log; none when there is no log."""
    try:
        with open_record(folder.log_file) as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _LOG_BYTES))
            text = stream.read().decode(errors="replace")
    except (OSError, RecordError):
        return []
    return list(map(_printable, text.splitlines()[-lines:]))


def _printable(text: str) -> str:
    """The text without what could steer a terminal."""
    return "".join(character for character in text if character.isprintable() or character == "\t")


def causes_text(causes: Iterable[FailureCause]) -> Group:
    """The causes for a terminal or a pipe."""
    blocks: list[Text] = []
    for cause in causes:
        names = ", ".join(cause.runs[:_NAMED])
        more = f" and {len(cause.runs) - _NAMED} more" if len(cause.runs) > _NAMED else ""
        mark = f" [{cause.fingerprint}]" if cause.fingerprint else ""
        head = f"{counted(len(cause.runs), 'run')}, {cause.kind}{mark}: {cause.error}"
        blocks += [Text(_printable(head), style="bold"), Text(f"  runs: {names}{more}")]
        blocks.append(Text(_printable(f"  fix: {cause.fix}")))
        if cause.log:
            blocks.append(Text(f"  the end of trial.log of {cause.runs[-1]}:"))
            blocks += [Text(f"    {line}", style="dim") for line in cause.log]
        blocks.append(Text(""))
    return Group(*blocks) if blocks else Group(Text("No run has failed."))
