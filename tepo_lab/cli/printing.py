"""How commands print tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tepo_lab.cli.common import TableFormat, console_of, echo

if TYPE_CHECKING:
    from tepo_lab.report.table.frame import Table


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
