"""What a run leaves on disk. These files are the truth; every table and MLflow can be made again from them.

HOME/runs/<arm>-<profile>-s<seed>-<hash>/
    run.json                      the resolved run, its identity and provenance
    events.jsonl                  what happened to it, one JSON object a line
    metrics.jsonl                 one JSON object a training step, in order, each step once
    generations/step-000020.parquet   one row a graded generation (`GENERATION_COLUMNS`)
    tokens/step-000020.json       a few of the step's responses, token by token (`TOKEN_COLUMNS`)
    checkpoints/step-000015/      model, optimizer, position; see `tepo_lab.train.checkpoint`
    trial.log                     what the trial's process said
    lease.json                    who is running it, with a heartbeat
    attempt.json                  how often it failed by the machine's fault in the session that runs it
HOME/provenance/<hash>.patch      how the source tree differed from its commit, once for each content

A line of events.jsonl has `time` (Unix seconds), `event` and `step`. Events are started, resumed, checkpoint,
validated, evaluated, suspect, and the ends of a run: complete, collapsed, stopped (by a search) and failed.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from tepo_lab.errors import RecordError
from tepo_lab.records.run_file import fault_of
from tepo_lab.schema.step_metrics import EVALUATED_MISMATCH

#: Columns of generations/*.parquet. `correct` is 0 or 1; `tokens` counts the response with its end token.
GENERATION_COLUMNS = (
    "benchmark",
    "problem",
    "sample",
    "prompt",
    "answer",
    "response",
    "tokens",
    "truncated",
    "extracted",
    "correct",
    "how",
    "grader",
)

#: Lists of a response in tokens/*.json, one value a token; the prompt's `problem`, `prompt` and `answer` stand with the
#: group, `reward`, `advantage`, `truncated` and `length` (tokens in all, of which the first may be listed) with the
#: response. Log-probabilities and entropies are in nats, the `old_` ones before the step's updates, the others after
#: them; `ratio` is exp(log_prob - old_log_prob), `weight` the importance weight that the objective makes of it, `mask`
#: (0 or 1; absent without a penalty) where the objective's penalty would act on the responses listed.
TOKEN_COLUMNS = ("tokens", "log_prob", "old_log_prob", "ratio", "weight", "entropy", "entropy_change", "mask")

#: What readers take for granted of events.
_EVENT_KEYS = {
    "validated": ("step", "value"),
    "evaluated": ("step",),
    "collapsed": ("step", "rule"),
    "stopped": ("step", "by"),
    "failed": ("kind", "error"),
}

#: Of what an event's line holds, the texts and the numbers.
_EVENT_TEXTS = ("rule", "by", "kind", "error")
_EVENT_NUMBERS = ("time", "value", "seconds", "cpu_seconds")

#: No step and no Unix time is as large.
_LARGEST = 1e12

#: Beyond it a step metric is not finite, and stands as null.
_FINITE = sys.float_info.max

#: What mends a damaged run.json.
_MEND = "the command that ran it writes it anew."

_PARQUET_MARK = b"PAR1"

#: Longer than any line of a log.
_LINE_BYTES = 65_536

#: Bytes read from the end of a log for its last lines: several lines of either.
TAIL_BYTES = 16_384


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run's records."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def run_file(self) -> Path:
        return self.path / "run.json"

    @cached_property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @cached_property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @cached_property
    def lease_file(self) -> Path:
        return self.path / "lease.json"

    @property
    def log_file(self) -> Path:
        return self.path / "trial.log"

    @property
    def attempt_file(self) -> Path:
        return self.path / "attempt.json"

    @cached_property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:06d}"

    def generations(self, step: int) -> Path:
        return self.path / "generations" / f"step-{step:06d}.parquet"

    def tokens(self, step: int) -> Path:
        return self.path / "tokens" / f"step-{step:06d}.json"

    def token_steps(self) -> list[int]:
        """Steps with a token file, ascending."""
        return sorted(map(step_of, self.path.glob("tokens/step-*.json")))

    def checkpoint_steps(self) -> list[int]:
        """Steps with a checkpoint, damaged ones among them, ascending."""
        return sorted(map(step_of, self.checkpoints.glob("step-*")))

    def evaluated_steps(self) -> list[int]:
        """Steps whose generations lie on disk in full, ascending. A file that was cut off does not count."""
        return sorted(map(step_of, filter(_is_whole_parquet, self.path.glob("generations/step-*.parquet"))))

    def metrics(self) -> list[dict[str, Any]]:
        """The steps' metrics in order: `step` counts, all else is a number or None. Raises as `read_lines`."""
        return list(read_lines(self.metrics_file))

    def whole_metrics(self) -> list[dict[str, Any]]:
        """The metrics of every step from the first on. Raises `RecordError` also where one is missing or repeated."""
        metrics = self.metrics()
        for number, line in enumerate(metrics, start=1):
            if line["step"] != number:
                raise RecordError(
                    f"{self.metrics_file} has step {line['step']} in the place of step {number}: put the file back, or "
                    "remove the folder to run it again."
                )
        return metrics

    def events(self) -> list[dict[str, Any]]:
        """What happened to the run, in order, each with what its kind always has. Raises as `read_lines`."""
        return list(read_lines(self.events_file))

    def run(self) -> dict[str, Any]:
        """The contents of run.json. Raises `RecordError` when it is missing, damaged, or no run's."""
        try:
            values = json.loads(self.run_file.read_bytes())
        except FileNotFoundError:
            raise RecordError(f"{self.run_file} is missing: the folder holds no run; remove it.") from None
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{self.run_file} is damaged ({error}): {_MEND}") from None
        if (fault := fault_of(values, self.name)) is not None:
            raise RecordError(f"{self.run_file} is damaged ({fault}): {_MEND}")
        run: dict[str, Any] = values
        return run


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint or a file, such as step-000020.parquet."""
    return int(path.name.partition(".")[0].removeprefix("step-"))


def run_folders(home: Path) -> list[RunFolder]:
    """The folders under HOME/runs that hold a run.json, by name."""
    return [RunFolder(path.parent) for path in sorted(home.glob("runs/*/run.json"))]


def readable_runs(home: Path, *, tell: bool = False) -> Iterator[tuple[RunFolder, dict[str, Any]]]:
    """The runs of a home with the contents of their run.json, by name. One that is damaged is passed over.

    Args: `tell`, whether to name it on standard error.
    """
    for folder in run_folders(home):
        try:
            values = folder.run()
        except RecordError as error:
            if tell:
                tell_passed_over(folder, error)
            continue
        yield folder, values


def tell_passed_over(folder: RunFolder, error: RecordError) -> None:
    """Say in a line on standard error that a run is left out because its records are damaged."""
    sys.stderr.write(f"tepo-lab: note: run {folder.name} is passed over: {error}\n")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a JSON-lines file; none when there is no file.

    A last line that is cut off or cannot be read is left out: its writer, or the machine, died while writing it.
    Raises `RecordError` for any other line that cannot be read, and for one that does not hold what a line of a run's
    events or step metrics must.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    yield from lines_of(text, path)


def lines_of(text: bytes, path: Path, *, before: int = 0) -> Iterator[dict[str, Any]]:
    """The JSON objects of the last part of a JSON-lines file, as `read_lines`. Args: `before`, lines before it."""
    check = _line_check(path)
    lines = text.rpartition(b"\n")[0].split(b"\n")
    for number, line in enumerate(lines, start=before + 1):
        if not line.strip():
            continue
        values = parsed_line(line)
        if values is not None:
            if (fault := check(values)) is not None:
                raise RecordError(f"{path}:{number} cannot be read ({fault}): remove that line.")
            yield values
        elif number < before + len(lines):
            raise RecordError(f"{path}:{number} cannot be read (not a JSON object): remove that line.")


def _line_check(path: Path) -> Callable[[dict[str, Any]], str | None]:
    """Says in a phrase what is wrong with a line of this file; None when nothing is, or nothing can be known."""
    return {"events.jsonl": _fault_of_event, "metrics.jsonl": _fault_of_metrics}.get(path.name, lambda values: None)


def _fault_of_event(values: dict[str, Any]) -> str | None:
    event = values.get("event")
    if event is None:
        return "it has no 'event'"
    if not isinstance(event, str):
        return "its 'event' is no text"
    for key in _EVENT_KEYS.get(event, ()):
        if key not in values:
            return f"it has no {key!r}"
    for key, value in values.items():
        if key == "step" and not _is_step(value):
            return "its 'step' is no count"
        if key in _EVENT_TEXTS and not isinstance(value, str):
            return f"its {key!r} is no text"
        if key in _EVENT_NUMBERS and not _is_number(value):
            return f"its {key!r} is no number"
        if key == EVALUATED_MISMATCH and value is not None and not _is_metric(value):
            return f"its {EVALUATED_MISMATCH!r} is no number"
        if key == "benchmarks" and not (isinstance(value, dict) and all(map(_is_tally, value.values()))):
            return "its 'benchmarks' are no counts"
    return None


def _fault_of_metrics(values: dict[str, Any]) -> str | None:
    if "step" not in values:
        return "it has no 'step'"
    if not _is_step(values["step"]):
        return "its 'step' is no count"
    for key, value in values.items():
        if value is not None and not _is_metric(value):
            return f"its {key!r} is no number"
    if "time" in values and not _is_number(values["time"]):
        return "its 'time' is no number"
    return None


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_metric(value: Any) -> bool:
    return type(value) in (int, float) and -_FINITE <= value <= _FINITE


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < _LARGEST


def _is_tally(value: Any) -> bool:
    return isinstance(value, dict) and _is_step(value.get("correct")) and _is_step(value.get("graded"))


def tail(path: Path, most: int = 20) -> list[dict[str, Any]]:
    """The last `most` JSON objects of a JSON-lines file, as far as `TAIL_BYTES` go back; unreadable lines left out.

    For display alone: what counts is read in full by `RunFolder.metrics` and `RunFolder.events`.
    """
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - TAIL_BYTES))
            text = stream.read()
    except FileNotFoundError:
        return []
    lines = text.rpartition(b"\n")[0].splitlines()
    check = _line_check(path)
    parsed = map(parsed_line, reversed(lines[1:] if size > TAIL_BYTES else lines))
    found = (values for values in parsed if values is not None and check(values) is None)
    return list(islice(found, most))[::-1]


def append_line(path: Path, values: Mapping[str, Any]) -> None:
    """Append one JSON object as a line, and have it on disk before returning.

    A last line that is cut off or cannot be read is dropped first, or it would spoil this one.
    """
    line = json.dumps(values, separators=(",", ":"), allow_nan=False) + "\n"
    with path.open("ab+") as stream:
        _drop_unfinished_line(stream)
        stream.write(line.encode())
        stream.flush()
        os.fsync(stream.fileno())


def _drop_unfinished_line(stream: BinaryIO) -> None:
    size = stream.seek(0, os.SEEK_END)
    start = max(0, size - _LINE_BYTES)
    stream.seek(start)
    text = stream.read()
    before, newline, cut = text.rpartition(b"\n")
    last = before.rpartition(b"\n")[2]
    if newline and last.strip() and parsed_line(last) is None:
        stream.truncate(start + len(before) - len(last))
    elif cut:
        stream.truncate(start + len(text) - len(cut))


def parsed_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object that a line (or a file) holds; None for anything else."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def _is_whole_parquet(path: Path) -> bool:
    """Whether a Parquet file begins and ends with its mark: one that was cut off does not."""
    try:
        with path.open("rb") as stream:
            begins = stream.read(len(_PARQUET_MARK)) == _PARQUET_MARK
            stream.seek(-len(_PARQUET_MARK), os.SEEK_END)
            return begins and stream.read() == _PARQUET_MARK
    except OSError:
        return False


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Writers in two containers may have the same number.
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError as error:
        # On a full disk what was written would take the room that others wait for.
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path: Path, values: Any) -> None:
    """Write `values` as indented JSON, whole or not at all."""
    write_whole(path, (json.dumps(values, indent=1, sort_keys=False, allow_nan=False) + "\n").encode())
