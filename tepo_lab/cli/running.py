"""Commands that run sweeps and show how they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tepo_lab.cli.common import (
    HOME,
    Home,
    ListFormat,
    Name,
    Overrides,
    Runs,
    TableFormat,
    app,
    check_home,
    console_of,
    print_json,
)
from tepo_lab.cli.printing import print_tables, rendered
from tepo_lab.errors import ConfigError
from tepo_lab.tables import plain, sweep_tables

if TYPE_CHECKING:
    pass


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
    check_home(home)
    # Progress goes to standard error, so that the table alone is on standard output.
    console = console_of(stderr=True)
    with run_sweep(home, expansion, console=console, address=address, mlflow=mlflow) as session:
        from tepo_lab.report.page import build_page

        tables, command = sweep_tables(home, name, overrides or [])
        session.log_table(rendered(tables, TableFormat.md), plain(tables), build_page(tables, home))
    print_tables(tables, format)
    session.say_what_it_cost()
    where = "" if home == HOME else f" --home {home}"
    console.print(
        f"Results: {home.resolve()}\nNext: {command}{where}\n      tepo-lab ui{where}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
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
        print_json(made.as_json(cpus=cpus, gpus=gpus))
    else:
        console_of().print(plan_table(made, cpus=cpus, gpus=gpus))


@app.command()
def status(
    names: Runs = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing them until all are over.")] = False,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
    home: Home = HOME,
) -> None:
    """Show every run: its state, step, reward and time left."""
    from tepo_lab.execute import status as told
    from tepo_lab.execute.chosen import chosen_folders

    check_home(home)
    folders = chosen_folders(home, names or [])
    if watch and format is ListFormat.json:
        raise ConfigError("--watch is for people; scripts call status --format json again.")
    console = console_of()
    if watch:
        told.watch(lambda: told.statuses(folders), console)
    elif format is ListFormat.json:
        print_json(told.as_json(told.statuses(folders)))
    elif console.is_terminal:
        console.print(told.status_table(told.statuses(folders)))
    else:
        found = told.statuses(folders)
        typer.echo("\n".join([*map(told.status_line, found), told.summary(found)]))


@app.command()
def why(
    names: Runs = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
    home: Home = HOME,
) -> None:
    """Say why runs are not done: failures by cause, the end of their log, and the mend."""
    from tepo_lab.execute.chosen import chosen_folders
    from tepo_lab.execute.why import causes, causes_text

    check_home(home)
    found = causes(chosen_folders(home, names or []))
    if format is ListFormat.json:
        print_json([cause.as_json() for cause in found])
    else:
        console_of().print(causes_text(found), soft_wrap=True)


@app.command()
def clean(
    names: Runs = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; else it is only shown.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it, as without --yes.")] = False,
    keep: Annotated[int | None, typer.Option(min=0, help="Checkpoints kept of runs that are over.")] = None,
    unknown: Annotated[bool, typer.Option("--unknown", help="Also checkpoints of runs that no sweep has.")] = False,
    home: Home = HOME,
) -> None:
    """Show what could be removed (leftovers, checkpoints beyond policy), and with --yes remove it. Never a record."""
    from tepo_lab.execute.chosen import chosen_folders
    from tepo_lab.execute.clean import leftovers, leftovers_text, remove

    if yes and dry_run:
        raise ConfigError("--yes removes and --dry-run does not: give one of them.")
    check_home(home)
    found = leftovers(home, chosen_folders(home, names or []), keep=keep, unknown=unknown)
    if yes:
        remove(found)
    console_of().print(leftovers_text(home, found, removed=yes))


@app.command()
def ui(
    home: Home = HOME,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    mlflow: Annotated[str | None, typer.Option(help="MLflow tracking URI; else the database in the home.")] = None,
) -> None:
    """Serve MLflow's pages over the home's runs until interrupted."""
    from tepo_lab.track.ui import serve

    check_home(home)
    serve(
        home,
        lambda address: typer.echo(f"MLflow: {address}  (Ctrl-C ends it)"),
        port=port,
        host=host,
        tracking_uri=mlflow,
        on_start=lambda: typer.echo("Starting MLflow (about 20 seconds) ...", err=True),
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
    check_home(home)
    typer.echo(f"MLflow shows {rebuild_mirror(home, mlflow)} runs of {home.resolve()}.")
