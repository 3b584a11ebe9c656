"""The command line. One small function per command; what a command needs is imported when it runs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tepo_lab.errors import ConfigError, TepoLabError

if TYPE_CHECKING:
    from rich.console import Console

    from tepo_lab.registry.reports import ResolvedReport
    from tepo_lab.report.frame import Table

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


class Kind(StrEnum):
    """What can be listed."""

    arms = "arms"
    sweeps = "sweeps"
    profiles = "profiles"
    tables = "tables"


Home = Annotated[
    Path, typer.Option("--home", envvar="TEPO_LAB_HOME", help="Where runs, records and MLflow's database lie.")
]
HOME = Path("outputs")
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value, such as trainer.steps=5 seeds=[1] profile=nano", show_default=False),
]
Name = Annotated[str, typer.Argument(help="A sweep's name, or the path of its YAML file.")]


@app.command()
def run(
    name: Name,
    overrides: Overrides = None,
    home: Home = HOME,
    address: Annotated[str | None, typer.Option(help="Join this Ray cluster; else one is started here.")] = None,
    mlflow: Annotated[str | None, typer.Option(help="MLflow tracking URI; else a database in the home.")] = None,
    format: Annotated[TableFormat, typer.Option(help="How the table at the end is printed.")] = TableFormat.text,
) -> None:
    """Train and evaluate the runs of a sweep that are not done yet, then print its table."""
    from tepo_lab.execute.session import run_sweep
    from tepo_lab.registry.expand import expand, load_sweep

    sweep, rest = load_sweep(name, overrides or [])
    expansion = expand(sweep, rest)
    _check_home(home)
    # Progress goes to standard error, so that the table alone is on standard output.
    console = _console(stderr=True)
    with run_sweep(home, expansion, console=console, address=address, mlflow=mlflow) as session:
        tables, command = _sweep_tables(home, name, overrides or [])
        session.log_table(_rendered(tables, TableFormat.md), _plain(tables))
    _print_tables(tables, format)
    session.say_what_it_cost()
    where = "" if home == HOME else f" --home {home}"
    console.print(f"Results: {home.resolve()}\nNext: {command}{where}\n      tepo-lab ui{where}", highlight=False)
    if session.failed:
        raise typer.Exit(1)


@app.command()
def plan(
    names: Annotated[list[str], typer.Argument(help="Sweeps (names or YAML files), and key=value overrides.")],
    home: Home = HOME,
    cpus: Annotated[float | None, typer.Option(min=0, help="Cores of the cluster; else this machine's.")] = None,
    gpus: Annotated[float | None, typer.Option(min=0, help="GPUs of the cluster; else those of one run.")] = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
) -> None:
    """Say what running sweeps now would do, run by run, and what it would cost. Starts and writes nothing."""
    from tepo_lab.execute.listing import plan_table
    from tepo_lab.execute.plan import make_plan
    from tepo_lab.registry.expand import expand, load_sweep

    sweeps = [each for each in names if "=" not in each]
    overrides = [each for each in names if "=" in each]
    if not sweeps:
        raise ConfigError("name at least one sweep, such as tepo-lab plan panel-e.")
    made = make_plan(home, [expand(*load_sweep(each, overrides)) for each in sweeps])
    if format is ListFormat.json:
        _print_json(made.as_json(cpus=cpus, gpus=gpus))
    else:
        _console().print(plan_table(made, cpus=cpus, gpus=gpus))


@app.command()
def report(
    name: Annotated[str, typer.Argument(help="A table's name, a sweep's name, or the path of a YAML file.")],
    overrides: Overrides = None,
    panel: Annotated[list[str] | None, typer.Option(help="Only this panel; may be given again.")] = None,
    format: Annotated[TableFormat, typer.Option(help="How the table is printed.")] = TableFormat.text,
    home: Home = HOME,
) -> None:
    """Print a table from the records in the home."""
    _check_home(home)
    _print_tables(_tables(home, name, overrides or [], panels=panel or []), format)


@app.command()
def ui(
    home: Home = HOME,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    mlflow: Annotated[str | None, typer.Option(help="MLflow tracking URI; else the database in the home.")] = None,
) -> None:
    """Serve MLflow's pages over the home's runs until interrupted."""
    from tepo_lab.track.ui import serve

    _check_home(home)
    typer.echo("Starting MLflow (about 20 seconds) ...", err=True)
    serve(
        home,
        lambda address: typer.echo(f"MLflow: {address}  (Ctrl-C ends it)"),
        port=port,
        host=host,
        tracking_uri=mlflow,
    )


@app.command()
def mirror(
    home: Home = HOME,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make the mirror again from the records.")] = False,
    mlflow: Annotated[str | None, typer.Option(help="MLflow tracking URI; else the database in the home.")] = None,
) -> None:
    """Bring MLflow up to date with the records."""
    from tepo_lab.track.mirror import rebuild as rebuild_mirror

    if not rebuild:
        raise ConfigError("say what to do: tepo-lab mirror --rebuild makes MLflow's runs again from the records.")
    _check_home(home)
    typer.echo(f"MLflow shows {rebuild_mirror(home, mlflow)} runs of {home.resolve()}.")


@app.command("ls")
def list_registry(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; everything when left out.")] = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
) -> None:
    """List arms, sweeps, profiles and tables."""
    from tepo_lab.execute.listing import registry_listing, registry_tables

    listing = registry_listing([kind.value] if kind else [each.value for each in Kind])
    if format is ListFormat.json:
        _print_json(listing)
    else:
        for table in registry_tables(listing):
            _console().print(table)


@app.command()
def show(
    arm: Annotated[str, typer.Argument(help="An arm's name.")],
    overrides: Overrides = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
) -> None:
    """Print an arm's resolved configuration, each value with its source."""
    from tepo_lab.execute.listing import arm_table

    spec = _resolved(arm, overrides)
    if format is ListFormat.json:
        _print_json(spec.model_dump(mode="json"))
    else:
        _console().print(arm_table(spec))


@app.command()
def diff(
    left: Annotated[str, typer.Argument(help="An arm's name.")],
    right: Annotated[str, typer.Argument(help="Another arm's name.")],
    overrides: Overrides = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
) -> None:
    """Print what differs between two arms' resolved configurations."""
    from tepo_lab.execute.listing import difference_table
    from tepo_lab.registry.difference import difference

    found = difference(_resolved(left, overrides), _resolved(right, overrides))
    if format is ListFormat.json:
        _print_json({key: {left: pair[0], right: pair[1]} for key, pair in found.items()})
    else:
        _console().print(difference_table(left, right, found))


class SchemaKind(StrEnum):
    """A kind of YAML file."""

    sweep = "sweep"
    arm = "arm"
    profile = "profile"
    report = "report"


@app.command()
def schema(kind: Annotated[SchemaKind, typer.Argument(help="The kind of YAML file.")]) -> None:
    """Print the JSON Schema of a kind of YAML file, for editors."""
    from tepo_lab.registry.json_schema import json_schema

    _print_json(json_schema(kind.value))


@model_app.command("build-nano")
def build_nano_model(
    out: Annotated[Path, typer.Argument(help="Folder to write the checkpoint to; must not exist.")],
) -> None:
    """Make the embedded base model again from its recipe (minutes on one core)."""
    from tepo_lab.train.nano import NanoRecipe, build_nano

    if out.exists():
        raise ConfigError(f"{out} exists: name a folder that does not, so that nothing is overwritten.")
    build_nano(out, NanoRecipe(), on_progress=lambda line: typer.echo(line, err=True))
    typer.echo(f"Checkpoint: {out.resolve()}")


def main() -> None:
    """The `tepo-lab` command: a user's error is one line on standard error and exit code 2."""
    command = typer.main.get_command(app)
    try:
        code = command.main(prog_name="tepo-lab", standalone_mode=False)
    except TepoLabError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted; the same command goes on from here.", code=130)
    except Exception as error:
        # Errors of the parser itself (an unknown option, a missing argument) carry their own message and exit code.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        _fail(f"{message()} See tepo-lab --help.", code=getattr(error, "exit_code", 2))
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, *, code: int = 2) -> None:
    line = " ".join(message.split())
    print(f"tepo-lab: {line}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _check_home(home: Path) -> None:
    existing = home
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"--home {home}: {existing} is not a folder that can be read and written; name another.")


def _resolved(arm: str, overrides: list[str] | None) -> Any:
    from tepo_lab.registry.compose import compose_run

    profile, rest = _taken(overrides or [], "profile")
    return compose_run(arm, profile or "nano", rest)


def _taken(overrides: list[str], key: str) -> tuple[str | None, list[str]]:
    """The value of the last `key=value` among the overrides, and the others."""
    values = [each.partition("=")[2] for each in overrides if each.partition("=")[0] == key]
    return (values[-1] if values else None), [each for each in overrides if each.partition("=")[0] != key]


def _sweep_tables(home: Path, name: str, overrides: list[str]) -> tuple[list[Table], str]:
    """The tables that a sweep feeds, and the command that prints them again."""
    from tepo_lab.registry.expand import load_sweep
    from tepo_lab.registry.reports import shown_by

    sweep, _ = load_sweep(name, overrides)
    report_name, panels = shown_by(name, sweep)
    tables = _tables(home, report_name, overrides, panels=panels, profiles=sweep.profiles)
    options = [f"--panel {panel}" for panel in panels]
    shown = [shlex.quote(each) for each in overrides if not each.startswith("seeds=")]
    return tables, " ".join(["tepo-lab report", shlex.quote(report_name), *options, *shown])


def _tables(
    home: Path, name: str, overrides: list[str], *, panels: list[str], profiles: tuple[str, ...] = ()
) -> list[Table]:
    """A report's tables, one or more for each profile.

    The profiles are those given or overridden; else the report's own if the home has runs of theirs, else those of the
    sweeps behind it, else nano, and the sweeps' own when there is no run at all.
    """
    from tepo_lab.execute.ledger import families
    from tepo_lab.registry.reports import load_report, own_profiles, profiles_asked, resolve_tables

    loaded, held = load_report(name), families(home)
    asked, rest = profiles_asked(overrides)
    chosen = profiles or asked

    def resolved(wanted: tuple[str, ...]) -> list[ResolvedReport]:
        return [
            table
            for profile in wanted
            for table in resolve_tables(loaded, profile, rest, panels=panels, expect_seeds=bool(profiles))
        ]

    if not chosen:
        own = own_profiles(loaded, rest)
        candidates = dict.fromkeys([loaded.profiles, own, ("nano",)])
        chosen = next((each for each in candidates if any(_families(table) & held for table in resolved(each))), own)
    return [_table(home, each, held) for each in resolved(chosen)]


def _families(resolved: ResolvedReport) -> set[str]:
    return {row.run.family for row in resolved.rows}


def _table(home: Path, resolved: ResolvedReport, held: set[str]) -> Table:
    """The table of a resolved report. `held` are the families of the home's runs."""
    from tepo_lab.report.frame import WantedRow
    from tepo_lab.report.table import build_table

    rows = [
        WantedRow(row.panel, row.run.spec.arm.name, row.label, row.run.family, row.seeds)
        for row in resolved.rows
        if not row.extra or row.run.family in held
    ]
    base = WantedRow(None, resolved.base.spec.arm.name, resolved.base.spec.arm.label, resolved.base.family)
    return build_table(
        resolved.report,
        rows,
        base=base,
        home=home,
        suite=resolved.base.spec.suite,
        profile=resolved.profile,
        steps=resolved.steps,
    )


def _plain(tables: list[Table]) -> Any:
    """One table as an object, several as a list."""
    return tables[0].to_dict() if len(tables) == 1 else [table.to_dict() for table in tables]


def _rendered(tables: list[Table], format: TableFormat) -> str:
    from tepo_lab.report.render import render

    if format is TableFormat.json and len(tables) > 1:
        return json.dumps(_plain(tables), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return "\n".join(render(table, format.value) for table in tables)


def _print_tables(tables: list[Table], format: TableFormat) -> None:
    from tepo_lab.report.text import renderable

    if format is TableFormat.text and sys.stdout.isatty():
        console = _console()
        for table in tables:
            console.print(renderable(table, console.width))
    else:
        typer.echo(_rendered(tables, format), nl=False)


def _print_json(values: Any) -> None:
    typer.echo(json.dumps(values, indent=1, allow_nan=False))


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr)
    # A pipe has no width of its own; wide enough that no name is broken for whoever reads it.
    return console if console.is_terminal else Console(stderr=stderr, width=160)
