"""Why runs are not done: failures grouped by cause, each with the end of its log and the mend."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.ledger import anew, fault_at_end
from tepo_lab.records.files import RunFolder
from tepo_lab.records.footers import generations_of
from tepo_lab.records.lease_file import is_held

#: Lines of trial.log shown for a cause.
LOG_LINES = 12

_LOG_BYTES = 65_536

#: Runs named for a cause; of more, only the number.
_NAMED = 5

#: What to do about an error of the machine, by what its text holds.
_MACHINE_MENDS = (
    (
        ("vllm cannot start", "grading worker cannot start"),
        "as the error says; then give the same command again.",
    ),
    (
        ("no space left", "quota"),
        "free space (tepo-lab clean shows what could go), then give the same command again.",
    ),
    (
        ("out of memory", "outofmemory", "cannot allocate", "memoryerror", "_alloc_failed"),
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
    """Runs that failed alike: kind ("user", "machine", "stopped" for a run that ended without a word, or whose
    evaluation will be made anew, or "damaged" for one whose records cannot be read, or are lost for good)."""

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
        each = _cause(folder)
        if each is None:
            continue
        # No two runs are damaged alike, and no log says how.
        is_own = each.kind == "damaged"
        cause = found.setdefault((each.kind, folder.name if is_own else each.fingerprint or each.error), each)
        cause.runs.append(folder.name)
        cause.log = ([] if is_own else log_tail(folder)) or cause.log
    return sorted(found.values(), key=lambda cause: -len(cause.runs))


def _cause(folder: RunFolder) -> Cause | None:
    """Why a run is not done, if it is not and nobody works on it."""
    try:
        spec = folder.run()["spec"] if folder.run_file.exists() else None
        events = folder.events()
    except RecordError as damage:
        fault, _, mend = str(damage).rpartition(": ")
        return Cause("damaged", "", fault, mend)
    if not events or is_held(folder):
        return None
    last = events[-1]
    if last["event"] in ("complete", "collapsed", "stopped"):
        return None if spec is None else _cause_at_end(folder, events, spec)
    if last["event"] != "failed":
        said = "ended without a word (killed, or the machine went down)"
        return Cause("stopped", "", said, "give the same command again; it goes on from the newest checkpoint.")
    kind, error = str(last.get("kind")), str(last.get("error"))
    mend = _machine_mend(error) if kind == "machine" else _user_mend(folder, last, error)
    return Cause(kind, str(last.get("fingerprint") or error), error, mend)


def _cause_at_end(folder: RunFolder, events: list[dict[str, Any]], spec: dict[str, Any]) -> Cause | None:
    """What is amiss with a run that has come to its end: the evaluation there, or the metrics, are not whole."""
    steps = int(spec["trainer"]["steps"]) if spec["arm"].get("trained", True) else 0
    fault = fault_at_end(folder, events, steps, generations_of(spec.get("suite")))
    if fault is None:
        return _cause_in_metrics(folder, int(events[-1].get("step") or 0))
    return Cause("damaged" if fault.is_lost else "stopped", "", fault.said, f"{fault.mend}.")


def _cause_in_metrics(folder: RunFolder, steps: int) -> Cause | None:
    if _looks_whole(folder.metrics_file, steps):
        return None
    try:
        found = len(folder.whole_metrics())
    except RecordError as damage:
        fault, _, mend = str(damage).rpartition(": ")
        return Cause("damaged", "", fault, mend)
    if found >= steps:
        return None
    fault = f"{folder.metrics_file} has the first {found} of its {steps} steps"
    return Cause("damaged", "", fault, f"put the file back, or {anew(folder)}.")


def _looks_whole(metrics: Path, steps: int) -> bool:
    """Whether each line begins and ends as that of its step: to read those of thousands of runs takes many seconds."""
    lines = metrics.read_bytes().splitlines() if metrics.exists() else []
    return len(lines) == steps and all(
        line.startswith(b'{"step":%d,' % step) and line.endswith(b"}") for step, line in enumerate(lines, 1)
    )


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
