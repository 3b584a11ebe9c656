"""What all commands share: the application, its options, and how it prints."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tepo_lab.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from tepo_lab.schema.run import RunSpec

app = typer.Typer(
    name="tepo-lab",
    help="Declare, run and report ablations of RL objectives for reasoning models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
model_app = typer.Typer(help="Models that come with the package.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(model_app, name="model")
data_app = typer.Typer(help="Problems of a profile.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")


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


Home = Annotated[
    Path, typer.Option("--home", envvar="TEPO_LAB_HOME", help="Where runs, records and MLflow's database lie.")
]
HOME = Path("outputs")

#: Exit code after Ctrl-C.
INTERRUPTED = 130
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value, such as trainer.steps=5 seeds=[1] profile=nano", show_default=False),
]
Name = Annotated[str, typer.Argument(help="A sweep's name, or the path of its YAML file.")]
Runs = Annotated[
    list[str] | None,
    typer.Argument(help="Sweeps (with key=value overrides) or runs; else all of the home.", show_default=False),
]


def check_home(home: Path) -> None:
    existing = home
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"--home {home}: {existing} is not a folder that can be read and written; name another.")


def resolved_arm(arm: str, overrides: list[str] | None) -> RunSpec:
    from tepo_lab.registry.compose import compose_run

    profile, rest = _taken(overrides or [], "profile")
    return compose_run(arm, profile or "nano", rest)


def _taken(overrides: list[str], key: str) -> tuple[str | None, list[str]]:
    """The value of the last `key=value` among the overrides, and the others."""
    values = [each.partition("=")[2] for each in overrides if each.partition("=")[0] == key]
    return (values[-1] if values else None), [each for each in overrides if each.partition("=")[0] != key]


def print_json(values: Any) -> None:
    typer.echo(json.dumps(values, indent=1, allow_nan=False))


def console_of(*, stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr)
    # A pipe has no width of its own; wide enough that no name is broken for whoever reads it.
    return console if console.is_terminal else Console(stderr=stderr, width=160)
