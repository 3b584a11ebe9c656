"""One table, many formats: jinja2 templates for Markdown, LaTeX and HTML, rich for the terminal, CSV and JSON."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tepo_lab.errors import ConfigError, nearest, printable
from tepo_lab.report.render.document import Document, document
from tepo_lab.report.render.terminal import WIDTH, text
from tepo_lab.report.table.columns import COLUMNS, TARGET_COLUMNS
from tepo_lab.report.table.frame import Table
from tepo_lab.report.table.rows import Row, Score
from tepo_lab.report.table.target import TargetTable

FORMATS = ("text", "md", "latex", "html", "csv", "json")

CSV_COLUMNS = (
    *("table", "profile", "panel", "arm", "label", "seeds", "steps", "outcome", "benchmark", "correct", "graded"),
    *("percent", "ci95_low", "ci95_high", "reason", "suspect", "provenance"),
    *("published", "published_difference", "published_inside"),
)

TARGET_CSV_COLUMNS = (
    *("table", "profile", "arm", "label", "metric", "target", "window"),
    *("seed", "outcome", "step", "last_step", "tokens", "seconds", "or_earlier"),
)

GREEK = "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"
CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"

LATEX_CHARACTERS = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    # At the beginning of a line they would be arguments of the \\ before.
    "[": "{[}",
    "*": "{*}",
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


def escape_markdown(value: str) -> str:
    """Text with what Markdown would read as markup escaped, on one line."""
    return re.sub(r"([\\`*_~$|\[\]]|<(?=[A-Za-z/!])|&(?=[#A-Za-z]))", r"\\\1", _on_one_line(value))


def escape_latex(value: str) -> str:
    """Text as LaTeX, on one line."""
    return "".join(LATEX_CHARACTERS.get(character, character) for character in _on_one_line(value))


def _on_one_line(value: str) -> str:
    """Text without what any format reads as the end of a line, and without other control characters."""
    return printable(" ".join(value.splitlines()))


#: What escapes every value of a template, by the ending of the template's name.
ESCAPES: dict[str, Callable[[str], str]] = {"md": escape_markdown, "tex": escape_latex, "html": html.escape}


@cache
def environment(ending: str) -> Environment:
    """The templates of one format. Every expression is escaped by its function in `ESCAPES`, once."""
    escape = ESCAPES[ending]

    def finalize(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape(str(value)))

    # Braces are LaTeX's own.
    signs = ("<%", "%>", "<<", ">>", "<#", "#>") if ending == "tex" else ("{%", "%}", "{{", "}}", "{#", "#}")
    return Environment(
        *signs,
        loader=PackageLoader("tepo_lab.report.render"),
        autoescape=True,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )


def _markdown(shown: Document) -> str:
    return environment("md").get_template("table.md").render(document=shown)


def _latex(shown: Document) -> str:
    # LaTeX numbers tables itself.
    caption = re.sub(r"^Table \d+: ", "", shown.caption)
    label = re.sub(r"[^A-Za-z0-9-]", "-", shown.name)
    template = environment("tex").get_template("table.tex")
    return template.render(document=shown, caption=caption[:1].upper() + caption[1:], label=label)


def _html(shown: Document) -> str:
    return environment("html").get_template("table.html").render(document=shown)


def html_fragment(table: Table) -> str:
    """The table, its comparisons and its footnotes as they are within a page's body."""
    return environment("html").get_template("fragment.html").render(document=document(table))


def render_all(tables: Sequence[Table | TargetTable], format: str, width: int = WIDTH) -> str:
    """Tables in one of `FORMATS`: JSON as one object or a list of several, CSV under one header, others in turn.

    `width` is text's. Raises `ConfigError` for an unknown format.
    """
    if format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}.{nearest(format, FORMATS)}")
    if format == "json":
        values = [table.to_dict() for table in tables]
        content = values[0] if len(values) == 1 else values
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if format == "csv":
        return csv_text(csv_columns(tables[0]), (line for table in tables for line in lines_of(table)))
    shown = map(document, tables)
    if format == "text":
        return "\n".join(text(one, width) for one in shown)
    markup = {"md": _markdown, "latex": _latex, "html": _html}[format]
    return "\n".join(map(markup, shown))


def render(table: Table | TargetTable, format: str, width: int = WIDTH) -> str:
    """One table in one of `FORMATS`; see `render_all`."""
    return render_all([table], format, width)


def csv_text(columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> str:
    """Lines as CSV; None is an empty field, true and false are written small."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n", restval="")
    writer.writeheader()
    for line in lines:
        values = {name: str(value).lower() if isinstance(value, bool) else value for name, value in line.items()}
        writer.writerow(values)
    return stream.getvalue()


def csv_columns(table: Table | TargetTable) -> list[str]:
    """The names of a table's CSV columns."""
    if isinstance(table, TargetTable):
        return [*TARGET_CSV_COLUMNS, *(column.name for column in TARGET_COLUMNS if column.is_fact)]
    return [*CSV_COLUMNS, *(column.name for column in COLUMNS if column.is_fact)]


def lines_of(table: Table | TargetTable) -> Iterator[dict[str, Any]]:
    """The table in long form, with the keys of `csv_columns`.

    One line for each row and benchmark (avg@n and pass@k after it where they were asked for), then `avg`
    (generation-weighted) and `macro`; the untrained model first. Of steps to a target, one for each arm and seed.
    """
    if isinstance(table, TargetTable):
        yield from _target_lines(table)
        return
    for row in table.all_rows:
        described = {
            "table": table.name,
            "profile": row.profile,
            "panel": row.panel,
            "arm": row.arm,
            "label": row.label,
            "seeds": " ".join(map(str, row.seeds)),
            "steps": row.steps,
            "outcome": row.outcome,
            "suspect": "; ".join(row.suspect) or None,
            "provenance": "; ".join(row.provenance) or None,
            **{column.name: column.count(row, table) for column in COLUMNS if column.is_fact},
        }
        for scores in _score_lines(row, table):
            yield dict.fromkeys(csv_columns(table)) | described | scores


def _score_lines(row: Row, table: Table) -> Iterator[dict[str, Any]]:
    def line(name: str, score: Score | None) -> dict[str, Any]:
        low, high = score.ci95 if score else (None, None)
        percent = score.percent if score else None
        values = {"benchmark": name, "percent": percent, "ci95_low": low, "ci95_high": high, "reason": row.reason}
        if paper := row.published.get(name):
            values |= {
                "published": paper.percent,
                "published_difference": paper.difference,
                "published_inside": paper.inside,
            }
        return values

    for benchmark in table.benchmarks:
        score = row.scores.get(benchmark.name)
        counts = {"correct": score.correct, "graded": score.graded} if score else {}
        yield line(benchmark.name, score) | counts
        for name, (value, (low, high)) in row.at_k.get(benchmark.name, {}).items():
            yield {"benchmark": f"{benchmark.name} {name}", "percent": value, "ci95_low": low, "ci95_high": high}
    yield line("avg", row.average)
    yield {"benchmark": "macro", "percent": row.macro, "reason": row.reason}


def _target_lines(table: TargetTable) -> Iterator[dict[str, Any]]:
    for arm in table.arms:
        described: dict[str, Any] = {"table": table.name, "profile": arm.profile, "arm": arm.arm, "label": arm.label}
        described |= {"metric": table.target.metric, "target": table.target.percent, "window": table.target.window}
        facts = {column.name: column.count(arm, table) for column in TARGET_COLUMNS if column.is_fact}
        for seed in arm.seeds:
            yield described | asdict(seed) | facts
