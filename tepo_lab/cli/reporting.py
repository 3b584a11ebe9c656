"""Commands that print, draw, pack and check results."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo_lab.cli.common import (
    HOME,
    Home,
    ListFormat,
    Overrides,
    TableFormat,
    app,
    check_home,
    print_json,
)
from tepo_lab.cli.printing import print_tables
from tepo_lab.errors import ConfigError, RecordError
from tepo_lab.tables import build_tables, plain, resolved_reports, table_of, wanted_rows

if TYPE_CHECKING:
    from tepo_lab.report.budget import Budget
    from tepo_lab.report.frame import Table
    from tepo_lab.schema.table import Report


class Equal(StrEnum):
    """What runs are compared at."""

    steps = "steps"
    tokens = "tokens"
    seconds = "seconds"


class Against(StrEnum):
    """What a table is set beside."""

    published = "published"


@app.command()
def report(
    name: Annotated[str, typer.Argument(help="A table's, figure's or sweep's name, or the path of a YAML file.")],
    overrides: Overrides = None,
    panel: Annotated[list[str] | None, typer.Option(help="Only this panel; may be given again.")] = None,
    format: Annotated[TableFormat, typer.Option(help="How the table is printed.")] = TableFormat.text,
    against: Annotated[
        Against | None, typer.Option(help="Set the paper's numbers beside ours, where profile and suite are its own.")
    ] = None,
    equal: Annotated[Equal, typer.Option(help="What runs have spent alike where they are read.")] = Equal.steps,
    page: Annotated[bool, typer.Option("--page", help="Write one HTML page: tables, figures, single tokens.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Figure: a .png, .svg or .pdf file; page: a .html file; else in the home.")
    ] = None,
    home: Home = HOME,
) -> None:
    """Print a table from the records in the home, draw a figure, or write a page."""
    from tepo_lab.registry.reports import load_report
    from tepo_lab.schema.figure import FigureReport

    check_home(home)
    if isinstance(load_report(name), FigureReport):
        if page or format is not TableFormat.text:
            raise ConfigError(f"{name} is a figure: --page and --format are for tables; a page has the figures too.")
        _write_figures(home, name, overrides or [], panels=panel or [], out=out)
        return
    if out is not None and not page:
        raise ConfigError(f"--out is for figures and pages; a table is printed: tepo-lab report {name} > {out}")
    budgets: dict[Equal, Budget | None] = {Equal.steps: None, Equal.tokens: "tokens", Equal.seconds: "seconds"}
    tables = build_tables(home, name, overrides or [], panels=panel or [], equal=budgets[equal])
    if against is not None:
        tables = [_beside_published(table, load_report(name)) for table in tables]
    if page:
        _write_page(home, tables, out)
    else:
        print_tables(tables, format)


def _beside_published(table: Table, loaded: Report) -> Table:
    from tepo_lab.registry.locations import package_root
    from tepo_lab.report.published import against_published, load_published

    if loaded.published is None:
        raise ConfigError(f"{loaded.name} is not one of the paper's tables: it has no published numbers.")
    return against_published(table, load_published(package_root() / "reports" / "published", loaded.published))


@app.command()
def bundle(
    name: Annotated[str, typer.Argument(help="A table's or sweep's name, or the path of a YAML file.")],
    overrides: Overrides = None,
    panel: Annotated[list[str] | None, typer.Option(help="Only this panel; may be given again.")] = None,
    out: Annotated[Path | None, typer.Option(help="The archive; else NAME.tar.gz here.")] = None,
    home: Home = HOME,
) -> None:
    """Pack the records of a table into an archive from which it can be rendered again."""
    from tepo_lab.execute.bundle import write_bundle

    check_home(home)
    resolved, held = resolved_reports(home, name, overrides or [], panels=panel or [])
    path = out or Path(f"{resolved[0].report.name}.tar.gz")
    families = {row.run.family for each in resolved for row in each.rows} | {each.base.family for each in resolved}
    arguments = [*(overrides or []), *(text for each in panel or [] for text in ("--panel", each))]
    tables = plain([table_of(home, each, held) for each in resolved])
    packed = write_bundle(path, home, families=families, tables=tables, report=name, arguments=arguments)
    typer.echo(f"Bundle: {path.resolve()} ({len(packed)} runs)")


@app.command()
def audit(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE.csv]", help="Printed tables; else the paper's.")] = None,
    counts: Annotated[
        Path | None, typer.Option(help="What the tables were graded on; else the YAML of the same name beside the CSV.")
    ] = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there is any finding.")] = False,
) -> None:
    """Check printed tables against the counts behind them and against themselves.

    FILE.csv has the columns table,panel,model,row,label,benchmark,percent, and benchmark `avg` for averages. The counts
    are a YAML file such as: benchmarks: {aime24: {problems: 30, samples: 32}, math500: {problems: 500}}
    """
    from tepo_lab.registry.locations import package_root
    from tepo_lab.report.audit import audit as audit_tables
    from tepo_lab.report.audit_input import read_printed, read_published

    if file is None and counts is not None:
        raise ConfigError("--counts belongs to a table of your own: name its CSV file as well.")
    tables = read_published(package_root() / "reports" / "published") if file is None else read_printed(file, counts)
    found = audit_tables(tables)
    if format is ListFormat.json:
        print_json(found.to_dict())
    else:
        typer.echo(found.text(), nl=False)
    if strict and found.findings:
        raise typer.Exit(1)


@app.command()
def theory(
    seed: Annotated[int, typer.Option(min=0, help="Of the random policies and the nano run.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Figure: a .png, .svg or .pdf file; else in the home.")] = None,
    format: Annotated[ListFormat, typer.Option(help="text, or json for scripts.")] = ListFormat.text,
    home: Home = HOME,
) -> None:
    """Check the paper's theory by numbers, print how often it held, and draw it (about 20 seconds on one core)."""
    from tepo_lab.report.figures_style import SUFFIXES, check_suffix, save
    from tepo_lab.theory.figure import draw
    from tepo_lab.theory.report import check_theory

    if out is not None:
        check_suffix(out)
    check_home(home)
    found = check_theory(home, seed)
    figure = draw(found).figure
    paths = [out] if out is not None else [home / "figures" / f"theory{suffix}" for suffix in SUFFIXES]
    for path in paths:
        save(figure, path)
    if format is ListFormat.json:
        print_json(found.to_dict() | {"figures": [str(path.resolve()) for path in paths]})
    else:
        typer.echo(found.text())
        for path in paths:
            typer.echo(f"Figure: {path.resolve()}")


def _write_figures(home: Path, name: str, overrides: list[str], *, panels: list[str], out: Path | None) -> None:
    """Draw a figure for each profile: to `out`, else as every kind of file under HOME/figures."""
    from tepo_lab.report.figures import draw
    from tepo_lab.report.figures_style import SUFFIXES, check_suffix, save
    from tepo_lab.schema.figure import FigureReport

    if out is not None:
        check_suffix(out)
    resolved, held = resolved_reports(home, name, overrides, panels=panels)
    undrawn = []
    for each in resolved:
        assert isinstance(each.report, FigureReport)
        rows, table = wanted_rows(home, each, held), partial(table_of, home, each, held)
        try:
            drawn = draw(each.report, rows, table, profile=each.profile, home=home)
        except RecordError as reason:
            undrawn.append(reason)
            continue
        for gap in drawn.gaps:
            typer.echo(f"Missing or cut short: {gap}", err=True)
        own = out if out is None or len(resolved) == 1 else out.with_stem(f"{out.stem}-{each.profile}")
        plain = home / "figures" / f"{drawn.name}-{each.profile}"
        for path in [own] if own else [plain.with_name(plain.name + suffix) for suffix in SUFFIXES]:
            save(drawn.figure, path)
            typer.echo(f"Figure: {path.resolve()}")
    if len(undrawn) == len(resolved):
        raise undrawn[0]
    for error in undrawn:
        typer.echo(f"Missing: {error}", err=True)


def _write_page(home: Path, tables: list[Table], out: Path | None) -> None:
    from tepo_lab.report.page import build_page
    from tepo_lab.schema.record import write_whole

    path = out or home / "pages" / f"{tables[0].name}.html"
    write_whole(path, build_page(tables, home).encode())
    typer.echo(f"Page: {path.resolve()}")
