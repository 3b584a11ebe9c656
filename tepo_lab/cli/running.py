"""Commands that run sweeps and show their status."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from tepo_lab.cli.common import (
    HOME,
    ExistingHome,
    Format,
    Home,
    ListFormat,
    Mlflow,
    Name,
    Names,
    Overrides,
    Runs,
    TableFormat,
    app,
    check_home,
    console_of,
    echo,
    examples,
    print_json,
    print_note,
    print_tables,
    rendered,
)
from tepo_lab.errors import ConfigError

#: Seconds that the mirror may take to catch up when all runs are over.
MIRROR_SECONDS = 60.0

#: Upper bound of a cluster's resources as options; keeps infinities out.
MOST = 1_000_000


@app.command(
    epilog=examples(
        "run panel-e",
        "run panel-a 'seeds=[1]' trainer.steps=12",
        "run my-sweep.yaml --home /data/runs",
        "run table3 profile=qwen2.5-7b --address 10.0.0.1:6379",
        json="the table at the end, as tepo-lab report prints it; progress goes to standard error.",
    )
)
def run(
    name: Name,
    overrides: Overrides = None,
    home: Home = HOME,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Join this Ray cluster.", show_default="a Ray of its own on this machine"
        ),
    ] = None,
    mlflow: Mlflow = None,
    format: Annotated[TableFormat, typer.Option(help="How the table at the end is printed.")] = TableFormat.text,
) -> None:
    """Train and evaluate a sweep's missing runs, then print its table.

    Interrupted at any moment, the same command goes on from the checkpoints; runs that are done are not run again.
    Exit code: 0 when all runs came to their end, 1 when some failed (see tepo-lab why), 2 for a wrong input.
    """
    from tepo_lab.execute.planning.actions import find_folder
    from tepo_lab.execute.running.run_sweep import run_sweep
    from tepo_lab.execute.showing.session import ConsoleObserver
    from tepo_lab.registry.expand import expand, load_sweep
    from tepo_lab.report.render.page import build_page
    from tepo_lab.tables import plain, sweep_tables
    from tepo_lab.track.thread import MirrorThread

    expansion = expand(*load_sweep(name, overrides or []))
    check_home(home)
    for note in expansion.notes:
        print_note(note)
    # Progress goes to standard error, so that the table alone is on standard output.
    console = console_of(stderr=True)
    observer = ConsoleObserver(expansion, console)
    folders = [find_folder(home, run) for run in expansion.runs]
    mirror = MirrorThread(home, mlflow, expansion.sweep.name, folders, observer.note)
    observer.on_start = mirror.start
    try:
        result = run_sweep(home, expansion, observer, address=address)
        tables, command = sweep_tables(home, name, overrides or [])
        result.write_table(rendered(tables, TableFormat.md), plain(tables), build_page(tables, home))
    finally:
        mirror.stop(timeout_seconds=MIRROR_SECONDS)
    print_tables(tables, format)
    observer.ended(result)
    where = "" if home == HOME else f" --home {shlex.quote(str(home))}"
    console.print(
        f"Results: {home.resolve()}\nNext: {command}{where}\n      tepo-lab ui{where}",
        soft_wrap=True,
    )
    if result.failed:
        raise typer.Exit(1)


@app.command(
    epilog=examples(
        "plan panel-e",
        "plan table1 table2 table3 table4",
        "plan table3 profile=qwen2.5-7b --gpus 64",
        json="an object with training_runs, base_evaluations, seconds, gpu_hours, wall_seconds (null where a run "
        "does not fit) on so many cpus and gpus, disk_bytes, notes, and runs: a list of id, name, arm, label, profile, "
        "seed, steps, action, reason, seconds, gpu_hours, basis, gpu_memory (GB by part, null without GPUs).",
    )
)
def plan(
    names: Names,
    home: Home = HOME,
    cpus: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=MOST,
            help="Cores of the cluster that would run them.",
            show_default="this machine's, or what runs on the GPUs take",
        ),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(
            min=0, max=MOST, help="GPUs of the cluster that would run them.", show_default="as many as one run takes"
        ),
    ] = None,
    gpu_memory_gb: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=MOST,
            help="Memory of one GPU, in GB; runs that need more are refused.",
            show_default="as profiles say",
        ),
    ] = None,
    format: Format = ListFormat.text,
) -> None:
    """Show what running sweeps would do and cost; nothing is started.

    Run by run: what would happen to it and why, and how long it would take. Nothing is written.
    """
    from tepo_lab.execute.planning.gpu_memory import check_memory
    from tepo_lab.execute.planning.plan import make_plan
    from tepo_lab.execute.planning.preflight import missing_data
    from tepo_lab.execute.running.cluster import check_learners
    from tepo_lab.execute.showing.listing import disk_bytes, plan_table
    from tepo_lab.registry.expand import expand, load_sweep

    sweeps = [each for each in names if "=" not in each]
    overrides = [each for each in names if "=" in each]
    if not sweeps:
        raise ConfigError("name at least one sweep, such as tepo-lab plan panel-e.")
    expansions = [expand(*load_sweep(each, overrides)) for each in sweeps]
    made = make_plan(home, expansions)
    for each in made.pending:
        check_learners(each)
    check_memory((each.planned.spec for each in made.pending), gpu_memory_gb)
    notes = list(dict.fromkeys(note for each in expansions for note in each.notes))
    notes += missing_data(each.planned.spec for each in made.pending)
    if format is ListFormat.json:
        print_json(made.as_json(cpus=cpus, gpus=gpus) | {"disk_bytes": disk_bytes(made)[0], "notes": notes})
        return
    asked = sum(len(each.runs) for each in expansions)
    console_of().print(plan_table(made, cpus=cpus, gpus=gpus, asked=asked, gpu_memory_gb=gpu_memory_gb))
    for note in notes:
        print_note(note)


@app.command(
    epilog=examples(
        "status",
        "status panel-e --watch",
        "status table3 profile=nano",
        json="an object with states (how many runs are in each) and runs: a list of name, state, step, steps, reward, "
        "seconds_left, detail, updated.",
    )
)
def status(
    names: Runs = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on showing them until all are over.")] = False,
    format: Format = ListFormat.text,
    home: ExistingHome = HOME,
) -> None:
    """Show every run: its state, step, reward and time left.

    Of a sweep given with overrides, runs of other seeds that the home has are shown too.
    """
    from tepo_lab.execute.planning.named_runs import chosen_folders
    from tepo_lab.execute.showing import status as showing

    folders = chosen_folders(home, names or [], any_seed=True)
    if watch and format is ListFormat.json:
        raise ConfigError("--watch is for people; scripts call status --format json again.")
    console = console_of()
    if watch:
        showing.watch(lambda: showing.statuses(folders), console)
    elif format is ListFormat.json:
        print_json(showing.as_json(showing.statuses(folders)))
    elif console.is_terminal:
        console.print(showing.status_table(showing.statuses(folders)))
    else:
        runs = showing.statuses(folders)
        echo("\n".join([*map(showing.status_line, runs), showing.summary(runs)]))


@app.command(
    epilog=examples(
        "why",
        "why panel-e",
        "why tepo-nano-s1",
        json="a list, one object for each cause: kind, fingerprint, error, fix, runs, log (its end).",
    )
)
def why(
    names: Runs = None,
    format: Format = ListFormat.text,
    home: ExistingHome = HOME,
) -> None:
    """Show why runs are not done, by cause, with how to fix it."""
    from tepo_lab.execute.planning.named_runs import chosen_folders
    from tepo_lab.execute.showing.why import causes, causes_text

    found = causes(chosen_folders(home, names or [], any_seed=True))
    if format is ListFormat.json:
        print_json([cause.as_json() for cause in found])
    else:
        console_of().print(causes_text(found), soft_wrap=True)


@app.command(
    epilog=examples(
        "clean",
        "clean panel-e --keep 0 --yes",
        json="an object with removed (true or false), bytes, and leftovers: a list of path, why, bytes, run (null for "
        "the home's own).",
    )
)
def clean(
    names: Runs = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; else it is only shown.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show it, as without --yes.")] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Checkpoints to keep of finished runs; without any a run takes no more steps.",
            show_default="trainer.keep_checkpoints",
        ),
    ] = None,
    unknown: Annotated[bool, typer.Option("--unknown", help="Also checkpoints of runs that no sweep has.")] = False,
    format: Format = ListFormat.text,
    home: ExistingHome = HOME,
) -> None:
    """Show what could be removed, and with --yes remove it.

    Leftovers of killed processes, and checkpoints beyond what the runs keep; never a record.
    """
    from tepo_lab.execute.maintain.clean import leftovers, leftovers_json, leftovers_text, remove
    from tepo_lab.execute.planning.named_runs import chosen_folders

    if yes and dry_run:
        raise ConfigError("--yes removes and --dry-run does not: give one of them.")
    if yes:
        check_home(home)
    found = leftovers(home, chosen_folders(home, names or []), keep=keep, unknown=unknown)
    if yes:
        remove(found)
    if format is ListFormat.json:
        print_json(leftovers_json(home, found, removed=yes))
    else:
        console_of().print(leftovers_text(home, found, removed=yes))


@app.command(epilog=examples("ui", "ui --port 5001 --home /data/runs"))
def ui(
    home: Home = HOME,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine reach it on 0.0.0.0.")] = (
        "127.0.0.1"
    ),
    mlflow: Mlflow = None,
) -> None:
    """Serve MLflow's pages over the home's runs until interrupted."""
    from tepo_lab.track.ui import serve

    check_home(home)
    serve(
        home,
        lambda address: echo(f"MLflow: {address}  (Ctrl-C ends it)"),
        port=port,
        host=host,
        tracking_uri=mlflow,
        on_start=lambda: echo("Starting MLflow (about 20 seconds) ...", err=True),
    )


@app.command(epilog=examples("mirror", "mirror --rebuild --mlflow http://host:5000"))
def mirror(
    home: Home = HOME,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Delete what MLflow shows of the home, and make all of it again.")
    ] = False,
    mlflow: Mlflow = None,
) -> None:
    """Bring MLflow's runs up to date with the records.

    What is missing is made; runs whose records were deleted are deleted. Exit code 1 when a run is not shown because
    its records are damaged.
    """
    from tepo_lab.records.files import run_folders

    check_home(home)
    if not run_folders(home):
        raise ConfigError(f"--home {home}: there is no run to mirror; tepo-lab run panel-e makes some.")
    from tepo_lab.execute.showing.text import counted
    from tepo_lab.track.rebuild import mirror_home

    problems: list[str] = []
    shown = mirror_home(home, mlflow, problems.append, rebuild=rebuild)
    for problem in problems:
        print_note(problem)
    echo(f"MLflow shows {counted(shown, 'run')} of {home.resolve()}.")
    if problems:
        raise typer.Exit(1)
