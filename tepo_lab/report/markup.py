"""A table as Markdown, LaTeX and HTML."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape

from tepo_lab.report import lines
from tepo_lab.report.frame import Average, Cell, Comparison, Row, Table

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
    "Δ": r"$\Delta$",
    "β": r"$\beta$",
    "…": r"\ldots{}",
}

STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem; }
th, td { padding: .3rem .7rem; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
thead th { border-top: 2px solid; border-bottom: 1px solid; }
tbody:last-child tr:last-child td { border-bottom: 2px solid; }
th.panel { font-style: italic; font-weight: 400; border-top: 1px solid #999; }
small { color: #666; display: block; }
td.missing { color: #666; }
footer { color: #555; font-size: .85rem; }
""".strip()


def markdown(table: Table) -> str:
    """A pipe table with k of n in every cell and the best of each column in bold, then comparisons and footnotes."""
    labels = [column.label for column in table.columns]
    header = ["Arm", "Seeds", "Steps", "Outcome", *labels, lines.AVERAGE, lines.MACRO]
    out = [f"**{_md(lines.caption(table))}**", "", _pipe(header), _pipe(["---"] * 4 + ["---:"] * (len(labels) + 2))]
    if table.base is not None:
        out.append(_pipe(_md_row(table, table.base, {})))
    for title, rows in lines.by_panel(table):
        if title is not None:
            out.append(_pipe([f"*{_md(title)}*", *[""] * (len(header) - 1)]))
        out += [_pipe(_md_row(table, row, table.best())) for row in rows]
    if table.comparisons:
        out += ["", _pipe(list(lines.COMPARISON_HEADER)), _pipe(["---", "---", *["---:"] * 6, "---"])]
        out += [_pipe([_md(cell) for cell in lines.comparison_cells(each, table)]) for each in table.comparisons]
    out += ["", *(f"- {_md(line)}" for line in lines.footnotes(table))]
    return "\n".join(out) + "\n"


def _md_row(table: Table, row: Row, best: dict[str, float]) -> list[str]:
    seeds, steps = " ".join(map(str, row.seeds)) or "none", "none" if row.steps is None else str(row.steps)
    cells = [_md_cell(row.cells[column.name], best.get(column.name)) for column in table.columns]
    average = row.average
    weighted = _bold(average.generation_weighted, best.get("average"), average, "**{}**".format)
    notes = [f"[{lines.interval(average.ci95)}]"] if average.ci95 else []
    notes += [each for each in (lines.few_seeds(row), ", ".join(lines.published_words(average))) if each]
    macro = _bold(average.macro, best.get("macro"), average, "**{}**".format)
    return [_md(row.label), seeds, steps, _md(row.outcome), *cells, " ".join([weighted, *notes]), macro]


def _md_cell(cell: Cell, best: float | None) -> str:
    if cell.percent is None:
        return lines.percent(cell)
    printed = ", ".join([f"{cell.correct}/{cell.graded}", *lines.published_words(cell)])
    return f"{_bold(cell.percent, best, cell, '**{}**'.format)} ({printed})"


def _pipe(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _md(words: str) -> str:
    return re.sub(r"([\\`*_|]|<(?=[A-Za-z/!]))", r"\\\1", words)


def latex(table: Table) -> str:
    """A booktabs table (needs `booktabs` and `graphicx`), percents with the best of each column in bold."""
    labels = [*(column.label for column in table.columns), lines.AVERAGE, lines.MACRO]
    span = len(labels) + 1
    out = [
        "% needs \\usepackage{booktabs} and \\usepackage{graphicx}",
        "\\begin{table}[t]",
        "\\centering",
        f"\\caption{{{_tex(lines.caption(table))}}}",
        f"\\label{{tab:{re.sub(r'[^A-Za-z0-9-]', '-', table.name)}}}",
        "\\resizebox{\\linewidth}{!}{%",
        f"\\begin{{tabular}}{{l{'r' * len(labels)}}}",
        "\\toprule",
        " & ".join(["Method", *map(_tex, labels)]) + " \\\\",
        "\\midrule",
    ]
    if table.base is not None:
        out.append(_tex_row(table, table.base, {}))
    for number, (title, rows) in enumerate(lines.by_panel(table)):
        if number or table.base is not None:
            out.append("\\midrule")
        if title is not None:
            out.append(f"\\multicolumn{{{span}}}{{l}}{{\\textit{{{_tex(title)}}}}} \\\\")
        out += [_tex_row(table, row, table.best()) for row in rows]
    out += ["\\bottomrule", "\\end{tabular}}", "", "\\smallskip", "\\parbox{\\linewidth}{\\footnotesize"]
    sentences = [_sentence(table, each) for each in table.comparisons]
    out += [f"{_tex(line)}\\par" for line in (*sentences, *lines.footnotes(table))]
    return "\n".join([*out, "}", "\\end{table}"]) + "\n"


def _tex_row(table: Table, row: Row, best: dict[str, float]) -> str:
    average = row.average
    label = _tex(row.label if row.outcome == "complete" else f"{row.label} ({row.outcome})")
    if average.generation_weighted is None:
        span = len(table.columns) + 2
        return f"{label} & \\multicolumn{{{span}}}{{c}}{{{_tex(average.missing or 'not run')}}} \\\\"
    cells = []
    for column in table.columns:
        cell = row.cells[column.name]
        cells.append(_tex_value(cell.percent, best.get(column.name), cell, lines.published_words(cell)))
    below = [f"[{lines.interval(average.ci95)}]", *lines.published_words(average)]
    few = lines.few_seeds(row)
    cells.append(
        _tex_value(average.generation_weighted, best.get("average"), average, [*below, *([few] if few else [])])
    )
    cells.append(_tex_value(average.macro, best.get("macro"), average, []))
    return " & ".join([label, *cells]) + " \\\\"


def _tex_value(value: float | None, best: float | None, scored: Cell | Average, small: list[str]) -> str:
    shown = _bold(value, best, scored, "\\textbf{{{}}}".format)
    return f"{shown} {{\\scriptsize {_tex(' '.join(small))}}}" if small else shown


def _sentence(table: Table, comparison: Comparison) -> str:
    arm, parent, difference, bounds, p, corrected, *_, verdict = lines.comparison_cells(comparison, table)
    numbers = f"{difference} [{bounds}], p {p}, Holm {corrected}: " if difference else ""
    return f"{arm} against {parent}: {numbers}{verdict}."


def _tex(words: str) -> str:
    return "".join(LATEX_CHARACTERS.get(character, character) for character in words)


def html(table: Table) -> str:
    """A self-contained page with the table, its comparisons and its footnotes."""
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(lines.caption(table))}</title>',
            f"<style>\n{STYLE}\n</style></head><body>",
            html_fragment(table),
            "</body></html>",
            "",
        ]
    )


def html_fragment(table: Table) -> str:
    """The table, its comparisons and its footnotes as they stand within a page's body, dressed by `STYLE`."""
    labels = [*(column.label for column in table.columns), lines.AVERAGE, lines.MACRO]
    heads = "".join(f'<th scope="col">{escape(label)}</th>' for label in ["Arm", *labels])
    bodies = [f"<tbody>\n{_html_row(table, table.base, {})}\n</tbody>"] if table.base is not None else []
    for title, rows in lines.by_panel(table):
        panel = f'<tr><th class="panel" colspan="{len(labels) + 1}">{escape(title)}</th></tr>\n' if title else ""
        body = "\n".join(_html_row(table, row, table.best()) for row in rows)
        bodies.append(f"<tbody>\n{panel}{body}\n</tbody>")
    footers = "\n".join(f"<p>{escape(line)}</p>" for line in lines.footnotes(table))
    return "\n".join(
        [
            f'<table id="{escape(table.name)}">\n<caption>{escape(lines.caption(table))}</caption>',
            f"<thead><tr>{heads}</tr></thead>",
            *bodies,
            "</table>",
            *([_html_comparisons(table)] if table.comparisons else []),
            f"<footer>\n{footers}\n</footer>",
        ]
    )


def _html_row(table: Table, row: Row, best: dict[str, float]) -> str:
    strong = '<strong class="best">{}</strong>'.format
    described = f"{lines.seeds(row)}, {row.outcome}"
    cells = [f"<td>{escape(row.label)}<small>{escape(described)}</small></td>"]
    for column in table.columns:
        cell = row.cells[column.name]
        if cell.percent is None:
            cells.append(_html_missing(cell))
            continue
        below = ", ".join([f"{cell.correct}/{cell.graded}", *lines.published_words(cell)])
        cells.append(f"<td>{_bold(cell.percent, best.get(column.name), cell, strong)}<small>{below}</small></td>")
    average = row.average
    if average.generation_weighted is None:
        cells += [_html_missing(average)] * 2
    else:
        words = (lines.interval(average.ci95), *lines.published_words(average), lines.few_seeds(row))
        weighted = _bold(average.generation_weighted, best.get("average"), average, strong)
        cells.append(f"<td>{weighted}<small>{', '.join(each for each in words if each)}</small></td>")
        cells.append(f"<td>{_bold(average.macro, best.get('macro'), average, strong)}</td>")
    return f'<tr data-arm="{escape(row.arm)}">{"".join(cells)}</tr>'


def _html_missing(scored: Cell | Average) -> str:
    return f'<td class="missing" title="{escape(scored.reason or "")}">{scored.missing or "not run"}</td>'


def _html_comparisons(table: Table) -> str:
    heads = "".join(f'<th scope="col">{escape(each)}</th>' for each in lines.COMPARISON_HEADER)
    rows = (
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in lines.comparison_cells(each, table)) + "</tr>"
        for each in table.comparisons
    )
    body = "\n".join(rows)
    return (
        "<table>\n<caption>Against the parent</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )


def _bold(value: float | None, best: float | None, scored: Cell | Average, strong: Callable[[str], str]) -> str:
    """A percent, set strong when it is the best of its column; or the word for why there is none."""
    if value is None:
        return scored.missing or "not run"
    return strong(f"{value:.2f}") if value == best else f"{value:.2f}"
