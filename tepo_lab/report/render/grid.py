"""A plain table of words and numbers, in every format: what stands beside a table's scores."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

GREEK = "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"
CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"

#: A box as wide as the line where its content is wider, and as its content otherwise.
LATEX_FIT = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"

LATEX_CHARACTERS = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "−": "$-$",
    "–": "--",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "∇": r"$\nabla$",
    "…": r"\ldots{}",
    **{letter: f"$\\{name}$" for letter, name in zip("αβγδεζηθκλμνξπρστφχψω", GREEK.split(), strict=True)},
    **{letter: f"$\\{name}$" for letter, name in zip("ΓΔΘΛΞΠΣΦΨΩ", CAPITALS.split(), strict=True)},
}


@dataclass(frozen=True)
class Grid:
    """A title, a header, and rows of cells as text. `words` are the columns that hold words: they are set left."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)


def grid_text(grid: Grid) -> RichTable:
    """For a terminal, without the title."""
    block = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for place, name in enumerate(grid.header):
        words = place in grid.words
        block.add_column(name, justify="left" if words else "right", no_wrap=not words)
    for row in grid.rows:
        block.add_row(*(Text(cell) for cell in row))
    block.add_row()
    return block


def grid_markdown(grid: Grid) -> list[str]:
    """Lines of a pipe table under its title."""
    rule = ["---" if place in grid.words else "---:" for place in range(len(grid.header))]
    rows = [pipe([markdown_words(cell) for cell in row]) for row in (grid.header, *grid.rows)]
    return ["", f"*{markdown_words(grid.title)}*", "", rows[0], pipe(rule), *rows[1:]]


def grid_latex(grid: Grid) -> list[str]:
    """Lines of a booktabs tabular without the title, as wide as the line at most."""
    spec = "".join("l" if place in grid.words else "r" for place in range(len(grid.header)))
    rows = [" & ".join(latex_words(cell) for cell in row) + " \\\\" for row in (grid.header, *grid.rows)]
    return [
        LATEX_FIT,
        f"\\begin{{tabular}}{{{spec}}}",
        "\\toprule",
        rows[0],
        "\\midrule",
        *rows[1:],
        "\\bottomrule",
        "\\end{tabular}}",
    ]


def grid_html(grid: Grid) -> str:
    """A table element with the title as its caption."""
    heads = "".join(
        f'<th scope="col"{_words(place, grid)}>{escape(each)}</th>' for place, each in enumerate(grid.header)
    )
    rows = (
        "<tr>" + "".join(_html_cell(place, cell, grid) for place, cell in enumerate(row)) + "</tr>" for row in grid.rows
    )
    body = "\n".join(rows)
    return (
        f"<table>\n<caption>{escape(grid.title)}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )


def _html_cell(place: int, cell: str, grid: Grid) -> str:
    return f"<td{_words(place, grid)}>{escape(cell)}</td>"


def _words(place: int, grid: Grid) -> str:
    return ' class="words"' if place in grid.words else ""


def pipe(cells: list[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def markdown_words(words: str) -> str:
    """Text with what Markdown would read as markup escaped."""
    return re.sub(r"([\\`*_|]|<(?=[A-Za-z/!]))", r"\\\1", words)


def latex_words(words: str) -> str:
    """Text as LaTeX."""
    return "".join(LATEX_CHARACTERS.get(character, character) for character in words)
