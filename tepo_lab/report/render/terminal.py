"""A table for a terminal, with rich."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from tepo_lab.report.render.document import Block, Cell, Document, Grid, Line, document
from tepo_lab.report.table.frame import Table
from tepo_lab.report.table.target import TargetTable

#: Characters a row takes at most with seven benchmarks.
WIDTH = 120

#: Marks the best besides bold type, so that plain text has it too.
BEST = "*"

_LABEL_WIDTH = 20

#: A heading of as many characters or fewer is not broken.
_ONE_LINE = 9


def text(shown: Document, width: int = WIDTH) -> str:
    """The document as plain text, `width` columns wide at most unless the numbers themselves take more."""
    stream = io.StringIO()
    least = max((_LABEL_WIDTH + sum(_widths(grid)) for grid in shown.grids if not grid.title), default=0)
    console = Console(file=stream, width=max(width, least), color_system=None, legacy_windows=False)
    console.print(_group(shown, width), soft_wrap=False)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def renderable(table: Table | TargetTable, width: int = WIDTH) -> RenderableType:
    """The table for a rich console: rows by panel, comparisons, footnotes."""
    return _group(document(table), width)


def _group(shown: Document, width: int) -> Group:
    parts: list[RenderableType] = [Text(shown.caption, style="bold"), Text("")]
    for grid in shown.grids:
        parts += _small_grid(grid) if grid.title else _main_grid(grid, width)
    return Group(*parts, *(Text(note, style="dim") for note in shown.footnotes))


def _main_grid(grid: Grid, width: int) -> list[RenderableType]:
    """A table for each block, with the same widths: the label takes what the numbers leave."""
    widths = _widths(grid)
    if _LABEL_WIDTH + sum(widths) + len(widths) <= width:
        widths = [taken + 1 for taken in widths]
    label_width = max(_LABEL_WIDTH, width - sum(widths))
    parts: list[RenderableType] = []
    for number, block in enumerate(grid.blocks):
        if block.title is not None:
            parts.append(Text(block.title, style="italic"))
        made = RichTable(box=box.SIMPLE_HEAD, show_header=number == 0, pad_edge=False, padding=0, show_edge=False)
        made.add_column("", width=label_width, overflow="fold")
        for heading, taken in zip(grid.headings[1:], widths, strict=True):
            # One character of each column is the space before the next.
            made.add_column(_wrapped(heading, taken - 1), width=taken - 1, justify="right", overflow="fold")
        _add_lines(made, block)
        parts.append(made)
    return parts


def _add_lines(made: RichTable, block: Block) -> None:
    for line in block.lines:
        label = Text.assemble((line.cells[0].text, "bold"), "\n", (_small(line.cells[0]), _style(line)))
        made.add_row(label, *(_stacked(cell) for cell in line.cells[1:]))
    made.add_row()


def _small(cell: Cell) -> str:
    return ", ".join(cell.small)


def _style(line: Line) -> str:
    return "red" if line.is_suspect else "dim"


def _stacked(cell: Cell) -> Text:
    """A cell's text over what goes with it."""
    marked = f"{BEST}{cell.text}" if cell.is_best else cell.text
    first = Text(marked, style="bold green" if cell.is_best else "dim" if cell.is_missing else "")
    return Text("\n", justify="right").join([first, *(Text(line, style="dim") for line in cell.small)])


def _small_grid(grid: Grid) -> list[RenderableType]:
    made = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for heading, is_text in zip(grid.headings, grid.is_text, strict=True):
        made.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text)
    for line in grid.lines:
        made.add_row(*(Text(cell.text) for cell in line.cells))
    made.add_row()
    return [Text(grid.title, style="italic"), made]


def _widths(grid: Grid) -> list[int]:
    """What each column but the label takes: its widest line or the longest piece of its heading, and a space."""
    widths = []
    for place, heading in enumerate(grid.headings[1:], start=1):
        lines = [line for row in grid.lines for line in _stacked(row.cells[place]).plain.splitlines()]
        # The best of a column may be in any row.
        numbers = max((len(line) for line in lines), default=0)
        pieces = max(len(piece.rstrip()) for piece in _pieces(heading))
        widths.append(1 + max(numbers, pieces, min(len(heading), _ONE_LINE)))
    return widths


def _pieces(heading: str) -> Sequence[str]:
    """Where a heading may be broken: at spaces, after hyphens and inside CamelCase."""
    return re.split(r"(?<= )|(?<=-)|(?<=[a-z])(?=[A-Z])", heading)


def _wrapped(heading: str, width: int) -> str:
    """A heading in lines of at most `width`."""
    lines = [""]
    for piece in _pieces(heading):
        if lines[-1] and len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)
