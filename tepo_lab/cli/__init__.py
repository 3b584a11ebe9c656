"""The command line. One small function per command; what a command needs is imported when it runs."""

# ruff: noqa: I001 - the order of imports is the order of commands
from __future__ import annotations

import codecs
import errno
import io
import logging
import os
import signal
import sys
from typing import NoReturn

import typer

# In the order that --help lists their commands.
from tepo_lab.cli import running
from tepo_lab.cli import reporting
from tepo_lab.cli import registry
from tepo_lab.cli import problems
from tepo_lab.cli import bench
from tepo_lab.cli.common import INTERRUPTED, TERMINATED, app, print_error
from tepo_lab.errors import TepoLabError, Terminated, raise_terminated

__all__ = ["app", "bench", "main", "problems", "registry", "reporting", "running"]

#: No library that a command loads reports its use, unless the environment says otherwise.
NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}

#: Longest message printed; a longer one repeats what somebody pasted.
_LONGEST_LINE = 2000

#: Characters of our own tables, for encodings that do not have them.
_PLAIN = {"─": "-", "━": "-", "−": "-", "–": "-", "…": "...", "≤": "<=", "≥": ">=", "±": "+-", "×": "x", "·": "."}

#: Longest part printed of a file's name that is too long.
_LONGEST_NAME = 100


def main() -> None:
    """The `tepo-lab` command: a user's error is one line on standard error and exit code 2."""
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, raise_terminated)
    # That a HOME cannot be written is no news of a table's.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    _open_closed_streams()
    codecs.register_error("tepo_lab", _plainly)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # An encoding that cannot write a character is no reason to end.
            stream.reconfigure(errors="tepo_lab")
    try:
        code = typer.main.get_command(app).main(prog_name="tepo-lab", standalone_mode=False)
    except TepoLabError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except OSError as error:
        from tepo_lab.execute.running.failures import machine_trouble

        if error.errno == errno.ENAMETOOLONG:
            name = str(error.filename)[:_LONGEST_NAME]
            _fail(f"{name}: the name is too long for a file or folder; give a shorter one.")
        message = machine_trouble(error)
        if message is None:
            raise
        _fail(message, code=1)
    except Exception as error:
        # Errors of the parser itself (an unknown option, a missing argument) carry their own message and exit code.
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            # A group named alone is a question, not a mistake.
            print(error.format_message())  # noqa: T201
            sys.exit(0)
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "tepo-lab"
        message = error.format_message().replace("Value error, ", "").replace("Input should be", "must be")
        _fail(f"{message.rstrip('.')}. See {command} --help.", code=getattr(error, "exit_code", 2))
    if code == INTERRUPTED:
        code = TERMINATED if Terminated.received else INTERRUPTED
        _fail("interrupted; the same command goes on from here.", code=code)
    sys.exit(code if isinstance(code, int) else 0)


def _open_closed_streams() -> None:
    """Have the null device where a standard stream is closed: the next file opened would take its number, and get what
    libraries and child processes print."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free.
            os.open(os.devnull, os.O_RDWR)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """An error handler: characters that an encoding does not have in ASCII, or as an escape sequence."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign) or sign.encode("unicode_escape").decode() for sign in text), error.end


def _fail(message: str, *, code: int = 2) -> NoReturn:
    line = " ".join(message.split())
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}"
    print_error(line)
    sys.exit(code)
