"""The command line. One small function per command; what a command needs is imported when it runs."""

# ruff: noqa: I001 - the order of imports is the order of commands
from __future__ import annotations

import errno
import os
import sys

import typer

# In the order that --help lists their commands.
from tepo_lab.cli import running
from tepo_lab.cli import reporting
from tepo_lab.cli import registry
from tepo_lab.cli import problems
from tepo_lab.cli import bench
from tepo_lab.cli.common import INTERRUPTED, app
from tepo_lab.errors import TepoLabError

__all__ = ["app", "bench", "main", "problems", "registry", "reporting", "running"]

#: No library that a command loads reports its use, unless the environment says otherwise.
NO_TELEMETRY = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}

#: A line longer than this repeats what somebody pasted.
_LONGEST_LINE = 2000

#: So much of a file's name that is too long tells which it is.
_LONGEST_NAME = 100


def main() -> None:
    """The `tepo-lab` command: a user's error is one line on standard error and exit code 2."""
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    command = typer.main.get_command(app)
    try:
        code = command.main(prog_name="tepo-lab", standalone_mode=False)
    except TepoLabError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            _fail(
                f"{str(error.filename)[:_LONGEST_NAME]}: the name is too long for a file or folder; give a shorter one."
            )
        from tepo_lab.execute.running.failures import machine_trouble

        said = machine_trouble(error)
        if said is None:
            raise
        _fail(said, code=1)
    except Exception as error:
        # Errors of the parser itself (an unknown option, a missing argument) carry their own message and exit code.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            # A group named alone is a question, not a mistake.
            print(message())  # noqa: T201
            sys.exit(0)
        context = getattr(error, "ctx", None)
        asked = context.command_path if context is not None else "tepo-lab"
        said = message().replace("Value error, ", "").replace("Input should be", "must be").rstrip(".")
        _fail(f"{said}. See {asked} --help.", code=getattr(error, "exit_code", 2))
    if code == INTERRUPTED:
        _fail("interrupted; the same command goes on from here.", code=INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, *, code: int = 2) -> None:
    line = " ".join(message.split())
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}"
    # What was pasted may hold what this terminal's encoding, or none, can write.
    sys.stderr.write(f"tepo-lab: {line}\n".encode(sys.stderr.encoding or "utf-8", "replace").decode(errors="replace"))
    sys.exit(code)
