"""A table for a terminal, with rich."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from tepo_lab.report.render import words as lines
from tepo_lab.report.render.grid import grid_text
from tepo_lab.report.render.words import Block
from tepo_lab.report.table.frame import Cell, Row, Table

#: Characters a row takes at most with seven benchmarks.
WIDTH = 120

BEST = "*"

_LABEL_WIDTH = 20

#: A header of as many characters or fewer is not broken.
_ONE_LINE = 8


def text(table: Table, width: int = WIDTH) -> str:
    """The table as plain text, `width` columns wide at most unless the numbers themselves take more."""
    stream = io.StringIO()
    widths = _widths(table, width)
    console = Console(file=stream, width=max(width, _taken(widths)), color_system=None, legacy_windows=False)
    console.print(_laid_out(table, width, widths), soft_wrap=False)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def renderable(table: Table, width: int = WIDTH) -> RenderableType:
    """The table for a rich console: rows by panel, comparisons, footnotes."""
    return _laid_out(table, width, _widths(table, width))


def _laid_out(table: Table, width: int, widths: Sequence[int]) -> Group:
    label_width = max(_LABEL_WIDTH, width - sum(widths) - len(widths))
    parts: list[RenderableType] = [Text(lines.caption(table), style="bold"), Text("")]
    for number, block in enumerate(lines.blocks(table)):
        if block.title is not None:
            parts.append(Text(block.title, style="italic"))
        parts.append(_block(table, block, [label_width, *widths], header=number == 0))
    for grid in lines.grids(table):
        parts += [Text(grid.title, style="italic"), grid_text(grid)]
    parts += [Text(line, style="dim") for line in lines.footnotes(table)]
    return Group(*parts)


def _block(table: Table, block: Block, widths: Sequence[int], *, header: bool) -> RichTable:
    made = RichTable(box=box.SIMPLE_HEAD, show_header=header, pad_edge=False, padding=0, show_edge=False)
    made.add_column("", width=widths[0], overflow="fold")
    names = [*(column.label for column in table.columns), lines.AVERAGE, lines.MACRO]
    for name, width in zip(names, widths[1:], strict=True):
        made.add_column(_header(name, width), width=width, justify="right", overflow="fold")
    for row in block.rows:
        best = block.best_for(row)
        label = Text.assemble((row.label, "bold"), "\n", (lines.described(row, table), "red" if row.suspect else "dim"))
        cells = [_cell(row.cells[column.name], best.get(column.name)) for column in table.columns]
        made.add_row(label, *cells, _average(row, best.get("average")), _macro(row, best.get("macro")))
    made.add_row()
    return made


def _cell(cell: Cell, best: float | None) -> Text:
    if cell.percent is None:
        return _stack(Text(lines.percent(cell), style="dim"), *lines.published_words(cell))
    return _stack(_marked(cell.percent, best), f"{cell.correct}/{cell.graded}", *lines.published_words(cell))


def _average(row: Row, best: float | None) -> Text:
    average = row.average
    if average.generation_weighted is None:
        return _stack(Text(average.missing or "not run", style="dim"), *lines.published_words(average))
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


def _header(label: str, width: int) -> str:
    """A label in lines of at most `width`, broken where it may be: at spaces, after hyphens and inside CamelCase."""
    held: list[str] = []
    for piece in _pieces(label):
        if held and len((held[-1] + piece).rstrip()) <= width:
            held[-1] += piece
        else:
            held.append(piece)
    return "\n".join(line.rstrip() for line in held)


def _pieces(label: str) -> list[str]:
    return re.split(r"(?<= )|(?<=-)|(?<=[a-z])(?=[A-Z])", label)


def _header_width(label: str, *, roomy: bool) -> int:
    """The least width that a label takes: in two lines at most where it is roomy, in one where it is short."""
    if len(label) <= _ONE_LINE:
        return len(label)
    pieces = _pieces(label)
    if not roomy:
        return max(len(piece.rstrip()) for piece in pieces)
    ends = range(1, len(pieces) + 1)
    return min(max(len("".join(part).rstrip()) for part in (pieces[:end], pieces[end:])) for end in ends)


def _widths(table: Table, width: int) -> list[int]:
    """Columns that hold their widest line: benchmarks, average, macro. Headers take two lines where `width` has room
    for that, else more; what is left is spread."""
    held = []
    for column in table.columns:
        cells = [row.cells[column.name] for row in table.all_rows]
        held.append(_longest([_cell(cell, cell.percent).plain for cell in cells]))
    averages = [_average(row, row.average.generation_weighted).plain for row in table.all_rows]
    macros = [_macro(row, row.average.macro).plain for row in table.all_rows]
    last = [_longest([lines.AVERAGE, *averages]), _longest([lines.MACRO, *macros])]
    for roomy in (True, False):
        headers = [_header_width(column.label, roomy=roomy) for column in table.columns]
        widths = [*map(max, held, headers), *last]
        if _taken(widths) <= width:
            break
    return [each + 1 for each in widths] if width - _taken(widths) >= len(widths) else widths


def _longest(held: Sequence[str]) -> int:
    return max((len(line) for each in held for line in each.splitlines()), default=0)


def _taken(widths: Sequence[int]) -> int:
    return _LABEL_WIDTH + sum(widths) + len(widths)
