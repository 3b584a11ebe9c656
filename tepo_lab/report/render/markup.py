"""A table as Markdown, LaTeX and HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import escape

from tepo_lab.report.render import words as lines
from tepo_lab.report.render.grid import LATEX_FIT, grid_html, grid_latex, grid_markdown, pipe
from tepo_lab.report.render.grid import latex_words as _tex
from tepo_lab.report.render.grid import markdown_words as _md
from tepo_lab.report.table.frame import Average, Cell, Row, Table

STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem; }
th, td { padding: .3rem .7rem; text-align: right; vertical-align: top; }
th:first-child, td:first-child, .words { text-align: left; }
thead th { border-top: 2px solid; border-bottom: 1px solid; }
tbody:last-child tr:last-child td { border-bottom: 2px solid; }
th.panel { font-style: italic; font-weight: 400; border-top: 1px solid #999; }
small { color: #666; display: block; }
td.missing { color: #666; }
td:not(:first-child):not(.words) { white-space: nowrap; }
tr.suspect td:first-child small { color: #a33a00; }
footer { color: #555; font-size: .85rem; }
""".strip()


def markdown(table: Table) -> str:
    """A pipe table with k of n in every cell and the best of each column in bold, then comparisons and footnotes."""
    labels = [column.label for column in table.columns]
    header = ["Arm", "Seeds", "Steps", "Outcome", *labels, lines.AVERAGE, lines.MACRO]
    out = [f"**{_md(lines.caption(table))}**", "", pipe(header), pipe(["---"] * 4 + ["---:"] * (len(labels) + 2))]
    for block in lines.blocks(table):
        if block.title is not None:
            out.append(pipe([f"*{_md(block.title)}*", *[""] * (len(header) - 1)]))
        out += [pipe(_md_row(table, row, block.best_for(row))) for row in block.rows]
    out += [line for grid in lines.grids(table) for line in grid_markdown(grid)]
    out += ["", *(f"- {_md(line)}" for line in lines.footnotes(table))]
    return "\n".join(out) + "\n"


def _md_row(table: Table, row: Row, best: Mapping[str, float]) -> list[str]:
    seeds, steps = " ".join(map(str, row.seeds)) or "none", "none" if row.steps is None else str(row.steps)
    cells = [_md_cell(row.cells[column.name], best.get(column.name)) for column in table.columns]
    average = row.average
    weighted = _bold(average.generation_weighted, best.get("average"), average, "**{}**".format)
    notes = [f"[{lines.interval(average.ci95)}]"] if average.ci95 else []
    notes += [each for each in (lines.few_seeds(row), ", ".join(lines.published_words(average))) if each]
    macro = _bold(average.macro, best.get("macro"), average, "**{}**".format)
    return [_md(row.label), seeds, steps, _md(lines.outcome(row)), *cells, " ".join([weighted, *notes]), macro]


def _md_cell(cell: Cell, best: float | None) -> str:
    if cell.percent is None:
        return " ".join([lines.percent(cell), *(f"({each})" for each in lines.published_words(cell))])
    printed = ", ".join([f"{cell.correct}/{cell.graded}", *lines.published_words(cell)])
    return f"{_bold(cell.percent, best, cell, '**{}**'.format)} ({printed})"


def latex(table: Table) -> str:
    """A booktabs table (needs `booktabs` and `graphicx`), percents with the best of each column in bold; comparisons
    and pass@k each in a table of their own after it."""
    labels = [*(column.label for column in table.columns), lines.AVERAGE, lines.MACRO]
    span = len(labels) + 1
    out = [
        "% needs \\usepackage{booktabs} and \\usepackage{graphicx}",
        "\\begin{table}[t]",
        "\\centering",
        f"\\caption{{{_caption(table)}}}",
        f"\\label{{tab:{re.sub(r'[^A-Za-z0-9-]', '-', table.name)}}}",
        LATEX_FIT,
        f"\\begin{{tabular}}{{l{'r' * len(labels)}}}",
        "\\toprule",
        " & ".join(["Method", *map(_tex, labels)]) + " \\\\",
        "\\midrule",
    ]
    for number, block in enumerate(lines.blocks(table)):
        if number:
            out.append("\\midrule")
        if block.title is not None:
            out.append(f"\\multicolumn{{{span}}}{{l}}{{\\textit{{{_tex(block.title)}}}}} \\\\")
        out += [_tex_row(table, row, block.best_for(row)) for row in block.rows]
    out += ["\\bottomrule", "\\end{tabular}}"]
    out += ["", "\\smallskip", "\\parbox{\\linewidth}{\\footnotesize"]
    out += [f"{_tex(line)}\\par" for line in (_rows_of(table), *lines.footnotes(table)) if line]
    out += ["}", "\\end{table}"]
    # A float holds one page at most: each further table has its own.
    for grid in lines.grids(table):
        out += ["", "\\begin{table}[t]", "\\centering", f"\\caption{{{_tex(grid.title)}. {_caption(table)}}}"]
        out += [*grid_latex(grid), "\\end{table}"]
    return "\n".join(out) + "\n"


def _caption(table: Table) -> str:
    # LaTeX numbers tables itself.
    words = re.sub(r"^Table \d+: ", "", lines.caption(table))
    return _tex(words[:1].upper() + words[1:])


def _rows_of(table: Table) -> str:
    """The seeds of all rows, where they are the same for all that have scores."""
    scored = [row for row in table.rows if row.seeds]
    return f"Rows: {lines.seeds(scored[0])}." if _alike(table) and scored else ""


def _alike(table: Table) -> bool:
    return len({(row.seeds, table.steps is None and row.steps) for row in table.rows if row.seeds}) == 1


def _tex_row(table: Table, row: Row, best: Mapping[str, float]) -> str:
    average = row.average
    outcome = lines.outcome(row)
    said = [lines.described(row, table)] if row.steps and row.seeds and not _alike(table) else []
    said = said or ([outcome] if outcome != "complete" else [])
    label = _tex(" ".join([row.label, *(f"({each.removesuffix(', complete')})" for each in said)]))
    if average.generation_weighted is None and average.published is None:
        span = len(table.columns) + 2
        return f"{label} & \\multicolumn{{{span}}}{{c}}{{{_tex(average.missing or 'not run')}}} \\\\"
    scored: list[Cell | Average] = [*(row.cells[column.name] for column in table.columns), average]
    best_of = [*(best.get(column.name) for column in table.columns), best.get("average")]
    values = [*(cell.percent for cell in row.cells.values()), average.generation_weighted]
    bold = "\\textbf{{{}}}".format
    cells = [_bold(value, most, each, bold) for value, most, each in zip(values, best_of, scored, strict=True)]
    if average.ci95:
        words = [f"[{lines.interval(average.ci95)}]", lines.few_seeds(row) or ""]
        cells[-1] += f" {{\\scriptsize {_tex(' '.join(words).strip())}}}"
    cells.append(_bold(average.macro, best.get("macro"), average, bold))
    published = [lines.published_words(each) for each in scored]
    below = [[words[place] if len(words) > place else "" for words in published] for place in (0, 1)]
    return "\n".join(
        [
            " & ".join([label, *cells]) + " \\\\",
            *(" & ".join(["", *map(_tex_small, words), ""]) + " \\\\" for words in below if any(words)),
        ]
    )


def _tex_small(words: str) -> str:
    return f"{{\\scriptsize {_tex(words)}}}" if words else ""


def html(table: Table) -> str:
    """A self-contained page with the table, its comparisons and its footnotes."""
    return html_page(lines.caption(table), html_fragment(table))


def html_page(title: str, body: str) -> str:
    """A page around a body, dressed by `STYLE`."""
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f"<style>\n{STYLE}\n</style></head><body>",
            body,
            "</body></html>",
            "",
        ]
    )


def html_fragment(table: Table) -> str:
    """The table, its comparisons and its footnotes as they stand within a page's body, dressed by `STYLE`."""
    labels = [*(column.label for column in table.columns), lines.AVERAGE, lines.MACRO]
    heads = "".join(f'<th scope="col">{escape(label)}</th>' for label in ["Arm", *labels])
    bodies = []
    for block in lines.blocks(table):
        panel = (
            f'<tr><th class="panel" colspan="{len(labels) + 1}">{escape(block.title)}</th></tr>\n'
            if block.title
            else ""
        )
        body = "\n".join(_html_row(table, row, block.best_for(row)) for row in block.rows)
        bodies.append(f"<tbody>\n{panel}{body}\n</tbody>")
    footers = "\n".join(f"<p>{escape(line)}</p>" for line in lines.footnotes(table))
    return "\n".join(
        [
            f'<table id="{escape(table.name)}">\n<caption>{escape(lines.caption(table))}</caption>',
            f"<thead><tr>{heads}</tr></thead>",
            *bodies,
            "</table>",
            *(grid_html(grid) for grid in lines.grids(table)),
            f"<footer>\n{footers}\n</footer>",
        ]
    )


def _html_row(table: Table, row: Row, best: Mapping[str, float]) -> str:
    strong = '<strong class="best">{}</strong>'.format
    why = f' title="{escape("; ".join((*row.suspect, *row.provenance)))}"' if row.suspect or row.provenance else ""
    cells = [f"<td{why}>{escape(row.label)}<small>{escape(lines.described(row, table))}</small></td>"]
    for column in table.columns:
        cell = row.cells[column.name]
        if cell.percent is None:
            cells.append(_html_missing(cell))
            continue
        below = ", ".join([f"{cell.correct}/{cell.graded}", *lines.published_words(cell)])
        cells.append(f"<td>{_bold(cell.percent, best.get(column.name), cell, strong)}<small>{below}</small></td>")
    average = row.average
    if average.generation_weighted is None:
        cells += [_html_missing(average), _html_missing(replace(average, published=None))]
    else:
        words = (lines.interval(average.ci95), *lines.published_words(average), lines.few_seeds(row))
        weighted = _bold(average.generation_weighted, best.get("average"), average, strong)
        cells.append(f"<td>{weighted}<small>{', '.join(each for each in words if each)}</small></td>")
        cells.append(f"<td>{_bold(average.macro, best.get('macro'), average, strong)}</td>")
    mark = ' class="suspect"' if row.suspect else ""
    return f'<tr data-arm="{escape(row.arm)}"{mark}>{"".join(cells)}</tr>'


def _html_missing(scored: Cell | Average) -> str:
    paper = "".join(f"<small>{escape(each)}</small>" for each in lines.published_words(scored))
    return f'<td class="missing" title="{escape(scored.reason or "")}">{scored.missing or "not run"}{paper}</td>'


def _bold(value: float | None, best: float | None, scored: Cell | Average, strong: Callable[[str], str]) -> str:
    """A percent, set strong when it is the best of its column; or the word for why there is none."""
    if value is None:
        return scored.missing or "not run"
    return strong(f"{value:.2f}") if value == best else f"{value:.2f}"
