"""Commands that print, draw, pack and check results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tepo_lab.cli.common import (
    HOME,
    Home,
    ListFormat,
    Overrides,
    TableFormat,
    app,
    check_home,
    check_out,
    complete_reports,
    console_of,
    echo,
    examples,
    print_json,
    print_tables,
    writing,
)
from tepo_lab.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from tepo_lab.report.table.frame import Table
    from tepo_lab.tables import HomeReport


#: Endings of a page's file.
PAGE_SUFFIXES = (".html", ".htm")

ReportName = Annotated[
    str,
    typer.Argument(
        metavar="REPORT",
        help="A table's, figure's or sweep's name (tepo-lab ls), or the path of a YAML file.",
        autocompletion=complete_reports,
    ),
]

Panels = Annotated[list[str] | None, typer.Option(help="Only this panel; may be given again.")]

TargetPercent = Annotated[
    float | None,
    typer.Option(min=0, max=100, metavar="PERCENT", help="Instead: steps until the training reward was there."),
]

TargetMetric = Annotated[
    str | None, typer.Option(help="With --target: reward/mean (the default), or a search's validation score.")
]

TargetWindow = Annotated[
    int | None, typer.Option(min=1, help="With --target: steps of the moving mean; 5 unless given.")
]


@app.command(
    epilog=examples(
        "report table3 --panel e",
        "report table3 --format latex > table3.tex",
        "report dynamics --out dynamics.pdf",
        "report my-sweep.yaml",
        json="an object with table, profile, benchmarks, base, rows (each with cells), comparisons and footer; a list "
        "of them where there are several tables. Numbers are not rounded.",
    )
)
def report(
    name: ReportName,
    overrides: Overrides = None,
    panel: Panels = None,
    format: Annotated[TableFormat, typer.Option(help="How the table is printed.")] = TableFormat.text,
    against: Annotated[
        Literal["published"] | None,
        typer.Option(help="Set the paper's numbers beside ours, where profile and suite are its own."),
    ] = None,
    equal: Annotated[
        Literal["steps", "tokens", "seconds"], typer.Option(help="What runs have spent alike where they are read.")
    ] = "steps",
    pass_at: Annotated[
        str | None, typer.Option(metavar="K,K,...", help="Also avg@n and pass@k, such as 1,4,8, with intervals.")
    ] = None,
    target: TargetPercent = None,
    metric: TargetMetric = None,
    window: TargetWindow = None,
    page: Annotated[bool, typer.Option("--page", help="Write one HTML page: tables, figures, single tokens.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Figure: a .png, .svg or .pdf file; page: a .html file; replaced where it exists; else in the home."
        ),
    ] = None,
    home: Home = HOME,
) -> None:
    """Print a table, draw a figure, or write a page of results.

    A row without a score has the reason instead. A home without any run is an error.
    """
    from tepo_lab.registry.reports import load_report
    from tepo_lab.report.render.formats import render
    from tepo_lab.report.render.terminal import renderable
    from tepo_lab.report.table.budget import BUDGETS
    from tepo_lab.report.table.target import METRICS, make_target
    from tepo_lab.schema.figure import FigureReport
    from tepo_lab.tables import beside_published, tables_of, target_of

    loaded = load_report(name)
    is_figure = isinstance(loaded, FigureReport)
    of_target = {"--metric": metric, "--window": window}
    of_table = {"--pass-at": pass_at, "--against": against, "--page": page, "--equal": equal != "steps"}
    _check_options(name, is_figure, format, target, of_target, of_table)
    if is_figure:
        _write_figures(home, name, overrides or [], panels=panel or [], out=out)
        return
    _check_place(name, format, page, out)
    samples = _numbers(pass_at)
    aim = None if target is None else make_target(target, metric or METRICS[0], window)
    resolved = _resolved(home, name, overrides or [], panel or [])
    if aim is not None:
        steps = target_of(home, resolved, aim)
        if format is TableFormat.text and sys.stdout.isatty():
            console_of().print(renderable(steps))
        else:
            echo(render(steps, format.value), nl=False)
        return
    tables = tables_of(home, resolved, BUDGETS[equal], samples)
    if against is not None:
        tables = [beside_published(table, loaded) for table in tables]
    if page:
        _write_page(home, tables, out)
    else:
        print_tables(tables, format)


def _check_options(
    name: str,
    is_figure: bool,
    format: TableFormat,
    target: float | None,
    of_target: Mapping[str, object],
    of_table: Mapping[str, object],
) -> None:
    """Raises `ConfigError` for options that do not go together."""
    for option, value in of_target.items():
        if value is not None and target is None:
            raise ConfigError(f"{option} belongs to --target PERCENT.")
    for option, given in of_table.items():
        if given and target is not None:
            raise ConfigError(f"{option} and --target: give one.")
    if is_figure and (target is not None or any(of_table.values()) or format is not TableFormat.text):
        raise ConfigError(f"{name} is a figure: it takes panels, overrides and --out; a page has the figures too.")


def _check_place(name: str, format: TableFormat, page: bool, out: Path | None) -> None:
    """Raises `ConfigError` for a table with a file, or a page in anything but an HTML file that can be written."""
    if not page:
        if out is not None:
            raise ConfigError(
                f"--out is for figures and pages; a table is printed: tepo-lab report {shlex.quote(name)} > "
                f"{shlex.quote(str(out))}"
            )
        return
    if format is not TableFormat.text:
        raise ConfigError("--page and --format: give one; a page is HTML.")
    if out is not None:
        if out.suffix.lower() not in PAGE_SUFFIXES:
            raise ConfigError(f"--out {out}: a page is written as {PAGE_SUFFIXES[0]}; give the file that ending.")
        check_out(out)


def _numbers(text: str | None) -> tuple[int, ...]:
    """The k of --pass-at."""
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--pass-at {text}: give numbers of samples from 1 up, such as 1,4,8.")
    return tuple(int(part) for part in parts)


def _resolved(home: Path, name: str, overrides: list[str], panels: list[str], *, note: bool = True) -> HomeReport:
    """What a report asks for of a home with runs; with `note`, a note on standard error when none is of its rows.

    Raises `ConfigError` when the home is not there or has no run at all.
    """
    from tepo_lab.records.files import run_folders
    from tepo_lab.tables import check_runs, resolved_reports

    resolved = resolved_reports(home, name, overrides, panels=panels)
    check_runs(home, name, resolved)
    if note and not (resolved.has_runs or resolved.has_base):
        profiles = ", ".join(each.profile for each in resolved.reports)
        echo(
            f"Not one of the {len(run_folders(home))} runs under {home} is of {name} (profile {profiles}): give the "
            "overrides that they were run with, or name another profile or home.",
            err=True,
        )
    return resolved


@app.command(epilog=examples("bundle table3", "bundle table3 --panel e --out panel-e.tar.gz"))
def bundle(
    name: ReportName,
    overrides: Overrides = None,
    panel: Panels = None,
    out: Annotated[Path | None, typer.Option(help="The archive, which must not exist; else NAME.tar.gz here.")] = None,
    home: Home = HOME,
) -> None:
    """Pack what a table or figure is made from, to make it elsewhere."""
    from tepo_lab.execute.maintain.bundle import write_bundle
    from tepo_lab.report.figures.series import shown_arms
    from tepo_lab.schema.figure import FigureReport
    from tepo_lab.tables import plain, tables_of

    resolved = _resolved(home, name, overrides or [], panel or [], note=False)
    path = out or Path(f"{resolved.reports[0].report.name}.tar.gz")
    families = {row.run.family for each in resolved.reports for row in each.rows}
    families |= {each.base.family for each in resolved.reports}
    arguments = [*(overrides or []), *(text for each in panel or [] for text in ("--panel", each))]
    tables = tables_of(home, resolved)
    with writing(path):
        packed = write_bundle(
            path,
            home,
            families=families,
            tables=plain(tables),
            arms=[arm for table in tables for arm in shown_arms(table)],
            report=name,
            arguments=arguments,
            is_figure=isinstance(resolved.reports[0].report, FigureReport),
        )
    echo(f"Bundle: {path.resolve()} ({len(packed)} runs)")


@app.command(
    epilog=examples(
        "audit",
        "audit mine.csv --counts mine.yaml --strict",
        json="an object with findings (each with its place and why) and rules: what was checked, and how.",
    )
)
def audit(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE.csv]", help="Printed tables; else the paper's.")] = None,
    counts: Annotated[
        Path | None, typer.Option(help="What the tables were graded on; else the YAML of the same name beside the CSV.")
    ] = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is any finding.")] = False,
) -> None:
    """Check printed tables against their counts and themselves.

    FILE.csv has the columns table,panel,model,row,label,benchmark,percent, and benchmark `avg` for averages. The counts
    are a YAML file such as: benchmarks: {aime24: {problems: 30, samples: 32}, math500: {problems: 500}}
    """
    from tepo_lab.audit.audit import audit as audit_tables
    from tepo_lab.audit.printed import read_printed, read_published
    from tepo_lab.registry.locations import package_root

    if file is None and counts is not None:
        raise ConfigError("--counts belongs to a table of your own: name its CSV file as well.")
    tables = read_published(package_root() / "reports" / "published") if file is None else read_printed(file, counts)
    found = audit_tables(tables)
    if format is ListFormat.json:
        print_json(found.to_dict())
    else:
        echo(found.text(), nl=False)
    if strict and found.findings:
        raise typer.Exit(1)


@app.command(
    epilog=examples(
        "theory",
        "theory --seed 1 --out theory.pdf",
        json="an object with seed, checks (how often each statement held), reading, runs, and figures (the files).",
    )
)
def theory(
    seed: Annotated[int, typer.Option(min=0, help="Of the random policies and the nano run.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Figure: a .png, .svg or .pdf file, replaced where it exists; else in the home.")
    ] = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
    home: Home = HOME,
) -> None:
    """Check the paper's theory by numbers, and draw it.

    Prints how often each lemma held; about 20 seconds on one core.
    """
    from tepo_lab.report.figures.style import SUFFIXES, check_suffix, save

    if out is not None:
        check_suffix(out)
        check_out(out)
    check_home(home)
    # PyTorch takes seconds to load: wrong arguments are refused before.
    from tepo_lab.theory.plots import draw
    from tepo_lab.theory.report import check_theory

    found = check_theory(home, seed)
    figure = draw(found).figure
    paths = [out] if out is not None else [home / "figures" / f"theory{suffix}" for suffix in SUFFIXES]
    for path in paths:
        with writing(path):
            save(figure, path)
    if format is ListFormat.json:
        print_json(found.to_dict() | {"figures": [str(path.resolve()) for path in paths]})
    else:
        echo(found.text())
        for path in paths:
            echo(f"Figure: {path.resolve()}")


def _write_figures(home: Path, name: str, overrides: list[str], *, panels: list[str], out: Path | None) -> None:
    """Draw a figure for each profile: to `out`, else as every kind of file under HOME/figures."""
    from tepo_lab.report.figures.draw import draw, together
    from tepo_lab.report.figures.style import SUFFIXES, check_suffix, save
    from tepo_lab.schema.figure import FigureReport
    from tepo_lab.tables import figure_inputs

    if out is not None:
        check_suffix(out)
        check_out(out)
    resolved = _resolved(home, name, overrides, panels, note=False)
    if out is None:
        check_home(home)
    if not resolved.has_runs:
        arms = ", ".join(dict.fromkeys(row.run.spec.arm.name for each in resolved.reports for row in each.rows))
        raise RecordError(
            f"{name}: {home} has no run of its arms ({arms}) on profile {' or '.join(resolved.tried)}: run a sweep "
            "with them first, or name another home; give the same overrides here as there."
        )
    if resolved.note:
        echo(resolved.note, err=True)
    undrawn = []
    for each in resolved.reports:
        assert isinstance(each.report, FigureReport)
        rows, table = figure_inputs(home, each, resolved.families)
        try:
            drawn = draw(each.report, rows, table, profile=each.profile, home=home)
        except RecordError as reason:
            undrawn.append(reason)
            continue
        for gap in together(drawn.gaps):
            echo(f"Missing or cut short: {gap}", err=True)
        own = out if out is None or len(resolved.reports) == 1 else out.with_stem(f"{out.stem}-{each.profile}")
        plain = home / "figures" / f"{drawn.name}-{each.profile}"
        for path in [own] if own else [plain.with_name(plain.name + suffix) for suffix in SUFFIXES]:
            with writing(path):
                save(drawn.figure, path)
            echo(f"Figure: {path.resolve()}")
    if len(undrawn) == len(resolved.reports):
        raise undrawn[0]
    for error in undrawn:
        echo(f"Missing: {error}", err=True)


def _write_page(home: Path, tables: list[Table], out: Path | None) -> None:
    from tepo_lab.records.files import write_atomically
    from tepo_lab.report.render.page import build_page

    if out is None:
        check_home(home)
    path = out or home / "pages" / f"{tables[0].name}.html"
    content = build_page(tables, home).encode()
    with writing(path):
        write_atomically(path, content)
    echo(f"Page: {path.resolve()}")
