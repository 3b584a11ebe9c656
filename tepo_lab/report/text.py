"""A table for a terminal, with rich."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from tepo_lab.report import lines
from tepo_lab.report.frame import Cell, Row, Table

#: Characters a row takes at most with seven benchmarks.
WIDTH = 120

BEST = "*"

_LABEL_WIDTH = 20


def text(table: Table, width: int = WIDTH) -> str:
    """The table as plain text, `width` columns wide at most unless the numbers themselves take more."""
    stream = io.StringIO()
    console = Console(file=stream, width=max(width, _needed_width(table)), color_system=None, legacy_windows=False)
    console.print(renderable(table, width), soft_wrap=False)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def renderable(table: Table, width: int = WIDTH) -> RenderableType:
    """The table for a rich console: rows by panel, comparisons, footnotes."""
    widths = _widths(table)
    spare = width - _needed_width(table)
    if spare >= len(widths):
        widths = [each + 1 for each in widths]
    label_width = max(_LABEL_WIDTH, width - sum(widths) - len(widths))
    parts: list[RenderableType] = [Text(lines.caption(table), style="bold"), Text("")]
    best = table.best()
    blocks = list(lines.by_panel(table))
    if table.base is not None:
        blocks.insert(0, (None, [table.base]))
    for number, (title, rows) in enumerate(blocks):
        if title is not None:
            parts.append(Text(title, style="italic"))
        marks = {} if rows[0] is table.base else best
        parts.append(_block(table, rows, marks, [label_width, *widths], header=number == 0))
    if table.comparisons:
        parts += [Text("Against the parent", style="italic"), _comparisons(table)]
    parts += [Text(line, style="dim") for line in lines.footnotes(table)]
    return Group(*parts)


def _block(
    table: Table, rows: Sequence[Row], best: dict[str, float], widths: Sequence[int], *, header: bool
) -> RichTable:
    block = RichTable(box=box.SIMPLE_HEAD, show_header=header, pad_edge=False, padding=0, show_edge=False)
    block.add_column("", width=widths[0], overflow="fold")
    names = [*(column.label for column in table.columns), lines.AVERAGE, lines.MACRO]
    for name, width in zip(names, widths[1:], strict=True):
        block.add_column(_header(name), width=width, justify="right", overflow="fold")
    for row in rows:
        label = Text.assemble((row.label, "bold"), "\n", (f"{lines.seeds(row)}, {row.outcome}", "dim"))
        cells = [_cell(row.cells[column.name], best.get(column.name)) for column in table.columns]
        block.add_row(label, *cells, _average(row, best.get("average")), _macro(row, best.get("macro")))
    block.add_row()
    return block


def _cell(cell: Cell, best: float | None) -> Text:
    if cell.percent is None:
        return Text(lines.percent(cell), style="dim")
    return _stack(_marked(cell.percent, best), f"{cell.correct}/{cell.graded}", *lines.published_words(cell))


def _average(row: Row, best: float | None) -> Text:
    average = row.average
    if average.generation_weighted is None:
        return Text(average.missing or "not run", style="dim")
    below = [lines.interval(average.ci95), *lines.published_words(average)]
    few = lines.few_seeds(row)
    return _stack(_marked(average.generation_weighted, best), *below, *([few] if few else []))


def _macro(row: Row, best: float | None) -> Text:
    macro = row.average.macro
    return Text(row.average.missing or "not run", style="dim") if macro is None else _marked(macro, best)


def _marked(value: float, best: float | None) -> Text:
    # The mark stands besides bold type, so that plain text keeps it.
    return Text(f"{BEST}{value:.2f}", style="bold green") if value == best else Text(f"{value:.2f}")


def _stack(first: Text, *below: str) -> Text:
    return Text("\n", justify="right").join([first, *(Text(line, style="dim") for line in below)])


def _comparisons(table: Table) -> RichTable:
    block = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for name in lines.COMPARISON_HEADER:
        words = name in {"Arm", "Parent", "Verdict"}
        block.add_column(name, justify="left" if words else "right", no_wrap=not words)
    for comparison in table.comparisons:
        block.add_row(*(Text(cell) for cell in lines.comparison_cells(comparison, table)))
    block.add_row()
    return block


def _header(label: str) -> str:
    """A label with line breaks where it may be broken: at spaces, after hyphens and inside CamelCase."""
    return "\n".join(re.split(r" |(?<=-)|(?<=[a-z])(?=[A-Z])", label)) if len(label) > 8 else label


def _widths(table: Table) -> list[int]:
    """Columns that hold their widest line: benchmarks, average, macro."""
    widths = []
    for column in table.columns:
        cells = [row.cells[column.name] for row in table.all_rows]
        widths.append(_longest([_header(column.label), *(_cell(cell, cell.percent).plain for cell in cells)]))
    averages = [_average(row, row.average.generation_weighted).plain for row in table.all_rows]
    macros = [_macro(row, row.average.macro).plain for row in table.all_rows]
    return [*widths, _longest([lines.AVERAGE, *averages]), _longest([lines.MACRO, *macros])]


def _longest(held: Sequence[str]) -> int:
    return max(len(line) for each in held for line in each.splitlines())


def _needed_width(table: Table) -> int:
    widths = _widths(table)
    return _LABEL_WIDTH + sum(widths) + len(widths)
