"""The command line. One small function per command; what a command needs is imported when it runs."""

# ruff: noqa: I001 - the order of imports is the order of commands
from __future__ import annotations

import sys

import typer

# In the order that --help lists their commands.
from tepo_lab.cli import running
from tepo_lab.cli import reporting
from tepo_lab.cli import registry
from tepo_lab.cli import problems
from tepo_lab.cli.common import INTERRUPTED, app
from tepo_lab.errors import TepoLabError

__all__ = ["app", "main", "problems", "registry", "reporting", "running"]


def main() -> None:
    """The `tepo-lab` command: a user's error is one line on standard error and exit code 2."""
    command = typer.main.get_command(app)
    try:
        code = command.main(prog_name="tepo-lab", standalone_mode=False)
    except TepoLabError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        # Errors of the parser itself (an unknown option, a missing argument) carry their own message and exit code.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _fail(f"{message()} See tepo-lab --help.", code=getattr(error, "exit_code", 2))
    if code == INTERRUPTED:
        _fail("interrupted; the same command goes on from here.", code=INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, *, code: int = 2) -> None:
    line = " ".join(message.split())
    print(f"tepo-lab: {line}", file=sys.stderr)  # noqa: T201
    sys.exit(code)
