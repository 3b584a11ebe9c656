"""What all commands share: the application, its options, and how it prints."""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tepo_lab.errors import ConfigError, is_machine_failure, printable

if TYPE_CHECKING:
    from rich.console import Console

    from tepo_lab.report.table.frame import Table
    from tepo_lab.schema.run import RunSpec


def examples(*lines: str, json: str = "") -> str:
    """The end of a command's --help: how it is called, and what `--format json` prints.

    Args: `lines`, commands without `tepo-lab` (and, after two spaces and a #, what they do).
    """
    shown = "\n".join(["\b", "Examples:", *(f"  tepo-lab {line}" for line in lines)])
    return f"{shown}\n\n--format json: {json}" if json else shown


def group(name: str, help: str) -> typer.Typer:
    """A group of commands, `tepo-lab NAME ...`; named alone it prints its help."""
    made = typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(made, name=name)
    return made


app = typer.Typer(
    name="tepo-lab",
    help="Declare, run and report ablations of RL objectives for reasoning models.",
    epilog=examples("run panel-e", "report table3 --panel e", "ls", "COMMAND --help"),
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
model_app = group("model", "Models that come with the package.")
data_app = group("data", "Problems of a profile.")


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"tepo-lab {version('tepo-lab')}")
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


class TableFormat(StrEnum):
    """How a table is printed."""

    text = "text"
    md = "md"
    latex = "latex"
    html = "html"
    csv = "csv"
    json = "json"


class ListFormat(StrEnum):
    """How a listing is printed."""

    text = "text"
    json = "json"


def _sweeps(incomplete: str) -> list[str]:
    from tepo_lab.registry.locations import names

    return [each for each in names("sweeps") if each.startswith(incomplete)]


def _sweeps_and_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    runs = Path(ctx.params.get("home") or os.environ.get("TEPO_LAB_HOME") or HOME).glob("runs/*/run.json")
    return _sweeps(incomplete) + sorted(each.parent.name for each in runs if each.parent.name.startswith(incomplete))


def complete_arms(incomplete: str) -> list[str]:
    """The arms whose names begin so, for the shell."""
    from tepo_lab.registry.locations import names

    return [each for each in names("experiments", "arm") if each.startswith(incomplete)]


def complete_reports(incomplete: str) -> list[str]:
    """The tables, figures and sweeps whose names begin so, for the shell."""
    from tepo_lab.registry.locations import names

    reports = [*names("reports"), *names("reports", "figures")]
    return [each for each in dict.fromkeys([*reports, *_sweeps("")]) if each.startswith(incomplete)]


def _home(text: str | Path) -> Path:
    """The home as given; a blank name would be the current folder."""
    if not str(text).strip():
        raise ConfigError("--home: the name is empty; name a folder, or leave it out.")
    return Path(text)


def _readable_home(home: Path) -> Path:
    existing = _nearest_folder(home)
    if existing is None or not os.access(existing, os.R_OK | os.X_OK):
        raise ConfigError(f"--home {home}: {existing or home} is not a folder that can be read; name another.")
    return home


def _existing_home(context: typer.Context, home: Path) -> Path:
    """A home that is named must exist; the default one is made by the first run."""
    _readable_home(home)
    source = context.get_parameter_source("home")
    if source is not None and source.name != "DEFAULT" and not home.is_dir():
        raise ConfigError(f"--home {home}: there is no such folder; name one that tepo-lab run has made.")
    return home


def _nearest_folder(path: Path) -> Path | None:
    """The folder itself or the nearest above it that exists; None where a file or a broken link is in the way."""
    try:
        while not (path.exists() or path.is_symlink()) and path != path.parent:
            path = path.parent
        return path if path.is_dir() else None
    except (OSError, ValueError):
        return None


def _home_option(callback: Callable[..., Path]) -> Any:
    return typer.Option(
        "--home",
        envvar="TEPO_LAB_HOME",
        help="Folder where runs, records and MLflow's database lie.",
        metavar="PATH",
        parser=_home,
        callback=callback,
    )


Home = Annotated[Path, _home_option(_readable_home)]
ExistingHome = Annotated[Path, _home_option(_existing_home)]
HOME = Path("outputs")

#: Exit codes after Ctrl-C and after SIGTERM.
INTERRUPTED, TERMINATED = 130, 143
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value, such as trainer.steps=5 'seeds=[1]' profile=nano", show_default=False),
]
Name = Annotated[
    str, typer.Argument(help="A sweep's name, or the path of its YAML file.", autocompletion=_sweeps, metavar="SWEEP")
]
Names = Annotated[
    list[str],
    typer.Argument(help="Sweeps (names or YAML files), and key=value overrides.", autocompletion=_sweeps),
]
Arm = Annotated[str, typer.Argument(help="An arm's name.", autocompletion=complete_arms)]
Runs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Sweeps (with key=value overrides) or runs (the beginning of a name will do); else all of the home.",
        show_default=False,
        autocompletion=_sweeps_and_runs,
    ),
]
Format = Annotated[ListFormat, typer.Option("--format", help="text for people, json for scripts.")]
Mlflow = Annotated[
    str | None, typer.Option("--mlflow", help="MLflow tracking URI.", show_default="HOME/mlflow.db, a database")
]


def check_home(home: Path) -> None:
    """Raise `ConfigError` unless `home` is a folder to read and write, or can be made."""
    existing = _nearest_folder(home)
    usable = existing is not None and os.access(existing, os.R_OK | os.W_OK | os.X_OK)
    if usable and not (home / "runs").is_dir():
        try:
            # Not every folder that may be written takes another one, such as /proc.
            with tempfile.TemporaryDirectory(prefix=".tepo-lab-", dir=existing):
                pass
        except OSError as error:
            if is_machine_failure(error):
                raise
            usable = False
    if not usable:
        raise ConfigError(
            f"--home {home}: {existing or home} is not a folder that can be read and written; name another."
        )


def resolved_arm(arm: str, overrides: list[str] | None) -> RunSpec:
    """An arm on the profile that `profile=` names, else on nano, with the other overrides."""
    from tepo_lab.registry.compose import compose_run

    given = overrides or []
    profiles = [text.partition("=")[2] for text in given if text.startswith("profile=")]
    return compose_run(
        arm, profiles[-1] if profiles else "nano", [text for text in given if not text.startswith("profile=")]
    )


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text, which may come from a record or a file, without control characters."""
    typer.echo(printable(text), err=err, nl=nl)


def print_json(values: Any) -> None:
    typer.echo(json.dumps(values, indent=1, allow_nan=False))


def print_error(line: str) -> None:
    """Print a line on standard error, as all errors and notes are."""
    echo(f"tepo-lab: {line}", err=True)


def print_note(line: str) -> None:
    """Print on standard error what is no error but worth knowing."""
    print_error(f"note: {line}")


def console_of(*, stderr: bool = False) -> Console:
    """A console that shows text as it is: nothing in it is markup, and no control character reaches the terminal."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    plain: dict[str, Any] = {"stderr": stderr, "markup": False, "highlight": False, "emoji": False}
    console = PlainConsole(**plain)
    # A pipe has no width of its own; wide enough that no name is broken.
    return console if console.is_terminal else PlainConsole(**plain, width=160)


def rendered(tables: list[Table], format: TableFormat) -> str:
    from tepo_lab.report.render.formats import render_all

    return render_all(tables, format.value)


def print_tables(tables: list[Table], format: TableFormat) -> None:
    from tepo_lab.report.render.terminal import renderable

    if format is TableFormat.text and sys.stdout.isatty():
        console = console_of()
        for table in tables:
            console.print(renderable(table, console.width))
    else:
        echo(rendered(tables, format), nl=False)


#: Errors of a full or broken disk: a file of another name would not help.
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})


def check_out(path: Path) -> None:
    """Raises `ConfigError` unless a file may be written there, before anything is worked out for it."""
    folder = path.parent
    if os.path.isdir(path):
        raise ConfigError(f"--out {path}: this is a folder; name a file in it.")
    if not os.path.isdir(folder):
        raise ConfigError(f"--out {path}: there is no folder {folder}; make it, or name another.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--out {path}: {folder} cannot be written; name another folder.")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises `ConfigError` where the place of a file is at fault; errors of a full or broken disk, or of other files,
    stay what they are."""
    try:
        yield
    except OSError as error:
        if error.errno in _OF_THE_DISK or Path(str(error.filename)) not in (path, *path.parents):
            raise
        raise ConfigError(f"{path} cannot be written ({error.strerror}); name another file with --out.") from None
