"""Failures of a run: the user's or the machine's, how they are recorded, and how long a retry waits."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import traceback
from collections.abc import Sequence
from typing import Any, Literal

from tepo_lab.errors import RecordError, TepoLabError, is_machine_failure
from tepo_lab.records.events import Failed
from tepo_lab.records.files import RunFolder, read_record, write_json
from tepo_lab.records.history import RunHistory, State, append_event

#: Seconds before the first retry after a failure of the machine; each further one waits `RETRY_GROWTH` times as long.
RETRY_SECONDS = 2.0
RETRY_GROWTH = 4
LONGEST_RETRY_SECONDS = 120.0


def machine_trouble(error: OSError) -> str | None:
    """What the machine is short of and how to fix it, in a line; None for an error that is not the machine's."""
    if not is_machine_failure(error):
        return None
    where = f"{error.filename}: " if error.filename else ""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    fix = "free space (tepo-lab clean shows what can be removed)" if is_full else "fix the machine"
    return f"{where}{error.strerror or error}; {fix}, then give the same command again: it goes on from here."


def retry_seconds(failures: int) -> float:
    """Seconds to wait before going on after so many failures of the machine in one session: 0, 2, 8, 32, ... 120."""
    return min(LONGEST_RETRY_SECONDS, RETRY_SECONDS * RETRY_GROWTH ** (failures - 1)) if failures else 0.0


def fingerprint(error: BaseException) -> str:
    """12 hex digits, equal for errors of the same kind raised at the same place in the code."""
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    return hashlib.sha256(json.dumps([type(error).__name__, frames]).encode()).hexdigest()[:12]


def text_fingerprint(text: str) -> str:
    """12 hex digits of an error known by its text alone, equal whatever its numbers (process, address, size)."""
    return hashlib.sha256(re.sub(r"\b(0x[0-9a-f]+|[0-9a-f]*\d[0-9a-f]*)\b", "#", text).encode()).hexdigest()[:12]


def record_user_failure(folder: RunFolder, errors: Sequence[BaseException]) -> bool:
    """Record that the user's configuration or code failed the run, which ends it: by the first of its errors.

    Returns False, and records nothing, where any is the machine's, or there is none: a retry may help.
    """
    if not errors or any(map(is_machine_failure, errors)):
        return False
    error = errors[0]
    text = str(error) if isinstance(error, TepoLabError) else f"{type(error).__name__}: {error}"
    _record(folder, "user", text, fingerprint(error), type(error).__name__)
    end_attempt(folder)
    return True


def record_machine_failure(folder: RunFolder, text: str) -> None:
    """Record that retries did not help. Args: `text` of the last error, which ends with its message."""
    lines = [line for line in text.splitlines() if line.strip()]
    message = lines[-1] if lines else "Ray Tune gave no reason"
    _record(folder, "machine", message, text_fingerprint(message), "RuntimeError")


def _record(folder: RunFolder, kind: Literal["user", "machine"], text: str, mark: str, error_type: str) -> None:
    history = RunHistory.read(folder, owned_by_us=True)
    if history.state is State.DAMAGED:
        return
    error = " ".join(text.split())[:500]
    append_event(folder, Failed(step=history.step, kind=kind, error=error, error_type=error_type, fingerprint=mark))


def log_error(folder: RunFolder, error: BaseException) -> None:
    """Append the traceback to the run's trial.log, as far as the disk takes it."""
    text = "".join(traceback.format_exception(error))
    try:
        with folder.log_file.open("a", encoding="utf-8") as log:
            log.write(text)
    except OSError as full:
        # A full disk is often the very error that is to be logged, and must not be hidden by one of logging it.
        error.add_note(f"{folder.log_file} could not be written: {full}")


def begin_attempt(folder: RunFolder, session: str) -> int:
    """Count an attempt at a run. Returns how many of this session's attempts died before it.

    The count is in a file because the process that failed may be dead.
    """
    before = _attempt(folder)
    failures = int(before["failures"]) + 1 if before.get("session") == session else 0
    write_json(folder.attempt_file, {"session": session, "failures": failures})
    return failures


def end_attempt(folder: RunFolder) -> None:
    """Forget the count: the attempt ended by itself, whatever its outcome."""
    folder.attempt_file.unlink(missing_ok=True)


def _attempt(folder: RunFolder) -> dict[str, Any]:
    try:
        values = json.loads(read_record(folder.attempt_file))
    except (OSError, RecordError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) and isinstance(values.get("failures"), int) else {}
