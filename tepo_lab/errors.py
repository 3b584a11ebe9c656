"""Errors that a user can cause, each one clear line: what is wrong, where, and how to fix it.

Everything that derives from `TepoLabError` is printed by the command line as one line with exit code 2; anything else
is a defect of ours and keeps its traceback, except what `is_machine_failure` recognises.
"""

from __future__ import annotations

import difflib
import errno
import re
import sys
from collections.abc import Iterable
from types import FrameType
from typing import ClassVar


class TepoLabError(Exception):
    """What is wrong, where, and how to fix it, in one line."""


class ConfigError(TepoLabError):
    """A configuration (YAML, override, arm, sweep, profile) says something that cannot be used."""


class ObjectiveError(TepoLabError):
    """An objective names an unknown choice, or was not given what a choice needs."""


class DataError(TepoLabError):
    """A data set or benchmark is missing, empty, or not what its declaration says."""


class ModelError(TepoLabError):
    """A model or checkpoint cannot be loaded or is not the one that was declared."""


class RecordError(TepoLabError):
    """A record on disk is missing, damaged, or belongs to something else."""


class ResourceError(TepoLabError):
    """The machine or the cluster does not have what a run asks for."""


class MachineError(ResourceError):
    """A resource is missing that may be there later, such as memory that others use: the run is tried again."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does.

    `received` says whether one has come: libraries turn the interrupt into errors of their own.
    """

    received: ClassVar[bool] = False


def raise_terminated(number: int, frame: FrameType | None) -> None:
    """A handler of SIGTERM. Raises `Terminated`."""
    Terminated.received = True
    raise Terminated


#: Characters that a terminal acts on instead of showing them (line feed and tab excepted), that reverse the direction
#: of text, or that no encoding can write.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)")


def printable(text: str) -> str:
    r"""Text for a terminal: control characters, such as those of escape sequences, written as `\x1b`."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def write_note(line: str) -> None:
    """Print on standard error what is no error but worth knowing, without control characters."""
    sys.stderr.write(printable(f"tepo-lab: note: {line}\n"))


#: Errors of the machine among operating-system errors.
_MACHINE_ERRNO = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE),
    *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE),
    *(errno.ETIMEDOUT, errno.ECONNRESET, errno.EPIPE),
}

#: Errors of the machine by class name; their modules are not imported for it.
_MACHINE_ERRORS = {"MemoryError", "OutOfMemoryError", "AcceleratorError", "HubUnreachableError", "MachineError"}

#: Errors of the machine that carry no number: safetensors' own, and torch's RuntimeErrors for files that could not be
#: written and for exhausted memory.
_MACHINE_WORDS = re.compile(
    r"no space left on device|disk quota exceeded|PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+|"
    r"DefaultCPUAllocator: .*can't allocate memory|out of memory|_ALLOC_FAILED|can't start new thread",
    re.IGNORECASE,
)

#: How libraries written in Rust give an operating-system error's number.
_NUMBER_IN_WORDS = re.compile(r"\(os error (\d+)\)")

#: A wrong index of a model or an objective, on a GPU.
_DEVICE_ASSERT = "device-side assert"


def is_machine_failure(error: BaseException) -> bool:
    """Whether trying again may help: memory, disk, accelerator or connection, not the configuration or the code."""
    names = {kind.__name__ for kind in type(error).__mro__}
    text = str(error)
    if names & _MACHINE_ERRORS:
        return "AcceleratorError" not in names or _DEVICE_ASSERT not in text
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _MACHINE_ERRNO
    # The errors of tokenizers are plain `Exception`s.
    if isinstance(error, RuntimeError | OSError) or "SafetensorError" in names or type(error) is Exception:
        numbers = {int(number) for number in _NUMBER_IN_WORDS.findall(text)}
        return bool(numbers & _MACHINE_ERRNO) or _MACHINE_WORDS.search(text) is not None
    return False


#: Names listed where none is near; the rest are counted.
LISTED = 20


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one, or the list of all.

    Returns a clause that begins with a space, ready to be appended to a message.
    """
    choices = sorted({str(choice) for choice in known})
    # Half of the letters in common; a name of one or two letters has that with too many.
    close = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.5) if len(str(name)) > 2 else []
    if close:
        return f" Did you mean {close[0]!r}?"
    more = f" and {len(choices) - LISTED} more" if len(choices) > LISTED else ""
    return f" Known: {', '.join(choices[:LISTED])}{more}." if choices else ""
