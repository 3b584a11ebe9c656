"""The files of a run, and how they are written and read.

HOME/runs/<arm>-<profile>-s<seed>-<hash>/
    run.json                      the resolved run, its identity and provenance
    events.jsonl                  what happened to it, one event a line (`tepo_lab.records.events`)
    metrics.jsonl                 one JSON object a training step, in order, each step once
    generations/step-000020.parquet   one row a graded generation (`tepo_lab.records.generations`)
    tokens/step-000020.json       a few of the step's responses, token by token (`TOKEN_COLUMNS`)
    checkpoints/step-000015/      model, optimizer, position; see `tepo_lab.train.checkpoint`
    trial.log                     what the trial's process printed
    run.lock, lease.json          who runs it (`tepo_lab.records.lock`)
    attempt.json                  how often the machine made it fail in the session that runs it
HOME/provenance/<hash>.patch      how the source tree differed from its commit, once for each content

These files are the truth; every table and MLflow can be made again from them. `RunHistory.read` reads them.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from tepo_lab.errors import RecordError, is_machine_failure, write_note

#: Lists of a response in tokens/*.json, one value a token; `problem`, `prompt` and `answer` are the group's, `reward`,
#: `advantage`, `truncated` and `length` (tokens in all, of which the first may be listed) the response's. Log-probs and
#: entropies are in nats, the `old_` ones before the step's updates, the others after them; `ratio` is
#: exp(log_prob - old_log_prob), `weight` the importance weight that the objective makes of it, `mask` (0 or 1; absent
#: without a penalty) where the objective's penalty would act on the responses listed.
TOKEN_COLUMNS = ("tokens", "log_prob", "old_log_prob", "ratio", "weight", "entropy", "entropy_change", "mask")

#: No line of a log is longer, in bytes.
_LINE_BYTES = 65_536

#: Bytes read from the end of a log for its last lines.
TAIL_BYTES = 16_384

_STEP = re.compile(r"step-(\d{6,})(?:\.[a-z]+)?")


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run's records."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def home(self) -> Path:
        return self.path.parent.parent

    @cached_property
    def run_file(self) -> Path:
        return self.path / "run.json"

    @cached_property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @cached_property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def lock_file(self) -> Path:
        return self.path / "run.lock"

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

    def is_run(self) -> bool:
        """Whether it contains a run.json, or cannot be looked into (another user's, a loop of links): a damaged run."""
        try:
            self.run_file.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:06d}"

    def generations(self, step: int) -> Path:
        return self.path / "generations" / f"step-{step:06d}.parquet"

    def tokens(self, step: int) -> Path:
        return self.path / "tokens" / f"step-{step:06d}.json"

    def token_steps(self) -> list[int]:
        """Steps with a token file, ascending."""
        return _steps_in(self.path / "tokens", ".json")

    def checkpoint_steps(self) -> list[int]:
        """Steps with a checkpoint, damaged ones among them, ascending."""
        return _steps_in(self.checkpoints, "")

    def generation_steps(self) -> list[int]:
        """Steps with a file of generations, ascending."""
        return _steps_in(self.path / "generations", ".parquet")

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every training step from the first on: `step` counts, all else is a number or None.

        Raises `RecordError` for a line that cannot be read, and where a step is missing or repeated.
        """
        metrics = list(read_lines(self.metrics_file))
        for number, line in enumerate(metrics, start=1):
            if line.get("step") != number or not all(map(_is_number, line.values())):
                raise RecordError(
                    f"{self.metrics_file}:{number} is not step {number}'s metrics: put the file back, or remove "
                    f"{self.path} to run it again."
                )
        return metrics

    def last_metrics(self, most: int = 1) -> list[dict[str, Any]]:
        """The last `most` steps' metrics, as far as `TAIL_BYTES` go back, for display: damaged lines are left out."""
        return [line for line in tail(self.metrics_file, most) if all(map(_is_number, line.values()))]


def _steps_in(folder: Path, suffix: str) -> list[int]:
    """Steps of the files or folders in `folder` named step-NNNNNN and `suffix`; what has another name is ignored."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    matches = (_STEP.fullmatch(name) for name in names if Path(name).suffix == suffix)
    return sorted(int(match[1]) for match in matches if match)


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) <= sys.float_info.max)


def run_folders(home: Path) -> list[RunFolder]:
    """The folders under HOME/runs that contain a run.json, or cannot be looked into, by name.

    Raises `RecordError` where HOME/runs cannot be read.
    """
    runs = home / "runs"
    try:
        names = os.listdir(runs)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RecordError(f"{runs} cannot be read ({error.strerror}): make it readable.") from None
    return [folder for folder in (RunFolder(runs / name) for name in sorted(names)) if folder.is_run()]


def is_inside(path: Path, home: Path) -> bool:
    """Whether a path is in a home when its links are followed: what is elsewhere is not ours to copy or to delete.

    HOME/runs may be a link to another disk: what is behind it is in the home.
    """
    try:
        return any(path.resolve().is_relative_to(root.resolve()) for root in (home, home / "runs"))
    except (OSError, RuntimeError):
        # A loop of links.
        return False


def open_record(path: Path) -> BufferedReader:
    """A record's file, open for reading.

    Raises `FileNotFoundError`, and `RecordError` where it is no file that can be read: a folder, a pipe (which would
    be waited for), a loop of links, another user's.
    """
    try:
        stream = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115 - the caller's
    except FileNotFoundError:
        raise
    except OSError as error:
        if is_machine_failure(error):
            raise
        raise RecordError(f"{path} cannot be read ({error.strerror}): make it readable, or remove it.") from None
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise RecordError(f"{path} is not a file: remove it.")
    return stream


def read_record(path: Path) -> bytes:
    """The content of a record. Raises `FileNotFoundError`, and `RecordError` where it is no file that can be read."""
    with open_record(path) as stream:
        return stream.read()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a JSON-lines file; none when there is no file.

    A last line that is cut off or cannot be read is left out: its writer, or the machine, died while writing it.
    Raises `RecordError` for any other line that cannot be read.
    """
    try:
        text = read_record(path)
    except FileNotFoundError:
        return
    lines = text.rpartition(b"\n")[0].split(b"\n")
    for number, line in enumerate(lines, start=1):
        values = parsed_line(line)
        if values is not None:
            yield values
        elif line.strip() and number < len(lines):
            raise RecordError(f"{path}:{number} cannot be read (not a JSON object): restore the file, or remove it.")


def tail(path: Path, most: int = 20) -> list[dict[str, Any]]:
    """The last `most` JSON objects of a JSON-lines file, as far as `TAIL_BYTES` go back; unreadable lines left out."""
    try:
        with open_record(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - TAIL_BYTES))
            lines = stream.read().rpartition(b"\n")[0].splitlines()
    except (OSError, RecordError):
        return []
    parsed = map(parsed_line, lines[1:] if size > TAIL_BYTES else lines)
    return [values for values in parsed if values is not None][-most:]


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
    """The JSON object that a line (or a file) contains; None for anything else."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Writers in two containers may have the same process number.
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


def report_left_out(folder: RunFolder, reason: str) -> None:
    """Print on standard error that a run is left out, and why."""
    write_note(f"run {folder.name} is left out: {reason}")


def write_json(path: Path, values: Any) -> None:
    """Write `values` as indented JSON, atomically."""
    write_atomically(path, (json.dumps(values, indent=1, sort_keys=False, allow_nan=False) + "\n").encode())
