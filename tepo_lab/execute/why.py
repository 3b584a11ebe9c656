"""Why runs are not done: failures grouped by cause, each with the end of its log and the mend."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.text import Text

from tepo_lab.errors import RecordError
from tepo_lab.execute.lease import is_held
from tepo_lab.execute.ledger import anew, lost_for_good
from tepo_lab.schema.record import RunFolder, tail

#: Lines of trial.log shown for a cause.
LOG_LINES = 12

_LOG_BYTES = 65_536

#: Runs named for a cause; of more, only the number.
_NAMED = 5

#: What to do about an error of the machine, by what its text holds.
_MACHINE_MENDS = (
    (
        ("no space left", "quota"),
        "free space (tepo-lab clean shows what could go), then give the same command again.",
    ),
    (
        ("out of memory", "outofmemory", "cannot allocate", "memoryerror"),
        "lower rollout.sequences_per_batch or trainer.micro_batch_tokens, or run fewer at once (resources.cpus or "
        "resources.gpus); then give the same command again.",
    ),
    (
        ("hubunreachable",),
        "check the connection, or set model.path to a local folder; then give the same command again.",
    ),
    (
        ("died", "killed", "sigkill", "exit code"),
        "a process was killed, often for want of memory: see the machine's log; the same command goes on.",
    ),
)

#: Errors of ours, whose line ends with the mend.
_TOLD = ("ConfigError", "ObjectiveError", "DataError", "ModelError", "RecordError", "ResourceError")

#: Sequences that colour a terminal or move in it.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")

_NOT_FINITE = ("nan", "not finite", "infinite", "inf ")


@dataclass
class Cause:
    """Runs that failed alike: kind ("user", "machine", "stopped" for a run that ended without a word, or "damaged" for
    one whose records cannot be read, or are lost for good)."""

    kind: str
    fingerprint: str
    error: str
    mend: str
    runs: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "error": self.error,
            "mend": self.mend,
            "runs": self.runs,
            "log": self.log,
        }


def causes(folders: Iterable[RunFolder]) -> list[Cause]:
    """The causes for which runs are not done now, those with the most runs first. Runs that are going on have none."""
    found: dict[tuple[str, str], Cause] = {}
    for folder in folders:
        if (damage := _damage(folder)) is not None:
            found[damage.kind, folder.name] = damage
            continue
        events = tail(folder.events_file)
        if events and (lost := _lost(folder, events[-1])) is not None:
            found[lost.kind, folder.name] = lost
            continue
        if not events or events[-1].get("event") in ("complete", "collapsed", "stopped") or is_held(folder):
            continue
        each = _cause(folder, events[-1])
        cause = found.setdefault((each.kind, each.fingerprint), each)
        cause.runs.append(folder.name)
        cause.log = log_tail(folder) or cause.log
    return sorted(found.values(), key=lambda cause: -len(cause.runs))


def _damage(folder: RunFolder) -> Cause | None:
    """Why the records of a run cannot be read, if they cannot."""
    try:
        if folder.run_file.exists():
            folder.run()
        folder.events()
    except RecordError as error:
        said, _, mend = str(error).rpartition(": ")
        return Cause("damaged", "", said, mend, [folder.name])
    return None


def _lost(folder: RunFolder, last: dict[str, Any]) -> Cause | None:
    """Why a run that trained to its end counts for nothing, and is not gone on with, if that is so."""
    # How far the run was to go is asked last: thousands of run.json take a second.
    if lost_for_good(folder, last, 0) is None or not folder.run_file.exists() or is_held(folder):
        return None
    said = lost_for_good(folder, last, int(folder.run()["spec"]["trainer"]["steps"]))
    return Cause("damaged", "", said, f"{anew(folder, int(last['step']))}.", [folder.name]) if said else None


def _cause(folder: RunFolder, last: dict[str, Any]) -> Cause:
    if last.get("event") != "failed":
        error = "ended without a word (killed, or the machine went down)"
        return Cause("stopped", "", error, "give the same command again; it goes on from the newest checkpoint.")
    kind, error = str(last.get("kind")), str(last.get("error"))
    mend = _machine_mend(error) if kind == "machine" else _user_mend(folder, last, error)
    return Cause(kind, str(last.get("fingerprint") or error), error, mend)


def _machine_mend(error: str) -> str:
    said = error.lower()
    for parts, mend in _MACHINE_MENDS:
        if any(part in said for part in parts):
            return mend
    return "mend the machine, then give the same command again; it goes on from the newest checkpoint."


def _user_mend(folder: RunFolder, last: dict[str, Any], error: str) -> str:
    if last.get("error_type") in _TOLD:
        return "as the error says; then give the same command again."
    if any(part in error.lower() for part in _NOT_FINITE):
        return (
            "a value was not finite: lower trainer.learning_rate, or add a stop rule such as "
            '{when: "actor/pg_loss is not finite"} so that it counts as a collapse.'
        )
    return f"mend the code that the last lines of {folder.log_file} name, then give the same command again."


def log_tail(folder: RunFolder, lines: int = LOG_LINES) -> list[str]:
    """The last lines of the run's trial.log, without what could steer a terminal; none when there is no log."""
    try:
        with folder.log_file.open("rb") as stream:
            stream.seek(max(0, folder.log_file.stat().st_size - _LOG_BYTES))
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return list(map(_printable, text.splitlines()[-lines:]))


def _printable(text: str) -> str:
    """The text without what could steer a terminal."""
    return "".join(each for each in _ESCAPES.sub("", text) if each.isprintable() or each == "\t")


def causes_text(found: Iterable[Cause]) -> Group:
    """The causes for a terminal or a pipe."""
    blocks: list[Text] = []
    for cause in found:
        named = ", ".join(cause.runs[:_NAMED])
        more = f" and {len(cause.runs) - _NAMED} more" if len(cause.runs) > _NAMED else ""
        count = f"{len(cause.runs)} {'run' if len(cause.runs) == 1 else 'runs'}"
        mark = f" [{cause.fingerprint}]" if cause.fingerprint else ""
        blocks.append(Text(_printable(f"{count}, {cause.kind}{mark}: {cause.error}"), style="bold"))
        blocks.append(Text(f"  runs: {named}{more}"))
        blocks.append(Text(_printable(f"  mend: {cause.mend}")))
        if cause.log:
            blocks.append(Text(f"  trial.log of {cause.runs[-1]}, its end:"))
            blocks += [Text(f"    {line}", style="dim") for line in cause.log]
        blocks.append(Text(""))
    return Group(*blocks) if blocks else Group(Text("No run has failed."))
