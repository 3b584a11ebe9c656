"""Steps to reach a target, in every format."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from html import escape
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from tepo_lab.report.render import words as lines
from tepo_lab.report.render.formats import csv_text
from tepo_lab.report.render.grid import (
    Grid,
    grid_html,
    grid_latex,
    grid_markdown,
    grid_text,
    latex_words,
    markdown_words,
)
from tepo_lab.report.render.markup import html_page
from tepo_lab.report.render.terminal import WIDTH
from tepo_lab.report.table.target import ArmReach, TargetTable
from tepo_lab.stats.paired import MIN_SEEDS

COLUMNS = (
    "table",
    "profile",
    "arm",
    "label",
    "metric",
    "target",
    "window",
    "seed",
    "outcome",
    "step",
    "last_step",
    "tokens",
    "seconds",
    "or_earlier",
)


def caption(table: TargetTable) -> str:
    """What the numbers are of."""
    plural = "s" if len(table.profiles) > 1 else ""
    return f"{table.title}: steps to {table.target.words}. Profile{plural} {', '.join(table.profiles)}."


def footnotes(table: TargetTable) -> list[str]:
    """How the numbers were made."""
    window = table.target.window
    over = f"the mean of the last {window} steps" if window > 1 else "the value"
    earlier = any(seed.or_earlier for arm in table.arms for seed in arm.seeds)
    return [
        *table.notes,
        f"Steps: the first step at which {over} of {table.target.metric} is at the target; mean over seeds with a 95 % "
        "interval (Student's t) only where every seed reached it. Tokens and seconds: sampled and spent in training "
        "until then, means over seeds; seconds depend on the machine and on what else ran on it.",
        *(
            [f"Or earlier: before its step {window} no run has a mean over {window}; --window 1 reads single steps."]
            * earlier
        ),
        f"{lines.AVERAGE} at every evaluated step, with its 95 % interval: listed, none chosen, for the benchmarks are "
        "the test set.",
    ]


def grids(table: TargetTable) -> list[Grid]:
    """The steps, then the average at every evaluated step."""
    several = len(table.profiles) > 1
    header = ("Arm", "Reached", "Steps", "Tokens", "Seconds", "By seed")
    rows = tuple(_cells(each, several) for each in table.arms)
    found = [Grid("Steps to the target", header, rows, words=(0, 5))]
    if table.evaluated:
        found.append(_evaluated(table, several))
    return found


def _cells(arm: ArmReach, several: bool) -> tuple[str, ...]:
    label = f"{arm.label} ({arm.profile})" if several else arm.label
    if not arm.seeds:
        return label, "not run", "", "", "", ""
    reached, count = arm.reached, f"{len(arm.reached)} of {len(arm.seeds)}"
    by_seed = ", ".join(each.words for each in arm.seeds)
    if arm.mean is None:
        begun = any(each.last_step for each in arm.seeds)
        return label, count, "" if reached else "not reached" if begun else "not run", "", "", by_seed
    bounds = f" [{arm.ci95[0]:.1f}–{arm.ci95[1]:.1f}]" if arm.ci95 else ""
    few = f" ({len(reached)} seed{'s' if len(reached) > 1 else ''})" if len(reached) < MIN_SEEDS else ""
    tokens, seconds = (
        sum(float(getattr(each, name) or 0.0) for each in reached) / len(reached) for name in ("tokens", "seconds")
    )
    earlier = " or earlier" if any(each.or_earlier for each in reached) else ""
    return label, count, f"{arm.mean:.1f}{earlier}{bounds}{few}", f"{tokens:,.0f}", f"{seconds:,.0f}", by_seed


def _evaluated(table: TargetTable, several: bool) -> Grid:
    steps = sorted({each.step for each in table.evaluated})
    held = {(each.profile, each.arm, each.label, each.step): each for each in table.evaluated}
    rows = []
    for arm in table.arms:
        cells = []
        for step in steps:
            found = held.get((arm.profile, arm.arm, arm.label, step))
            count = "" if found is None or len(found.seeds) >= MIN_SEEDS else f" ({len(found.seeds)})"
            cells.append("" if found is None else f"{found.percent:.2f} [{lines.interval(found.ci95)}]{count}")
        rows.append((f"{arm.label} ({arm.profile})" if several else arm.label, *cells))
    title = f"{lines.AVERAGE} at every evaluated step (in brackets after it: seeds, where fewer than {MIN_SEEDS})"
    return Grid(title, ("Arm", *(f"step {step}" for step in steps)), tuple(rows))


def renderable(table: TargetTable) -> RenderableType:
    """For a rich console."""
    parts: list[RenderableType] = [Text(caption(table), style="bold"), Text("")]
    for number, grid in enumerate(grids(table)):
        parts += [*([Text(grid.title, style="italic")] if number else []), grid_text(grid)]
    return Group(*parts, *(Text(line, style="dim") for line in footnotes(table)))


def _text(table: TargetTable) -> str:
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None, legacy_windows=False).print(renderable(table))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _markdown(table: TargetTable) -> str:
    body = [line for grid in grids(table) for line in grid_markdown(grid)]
    notes = [f"- {markdown_words(line)}" for line in footnotes(table)]
    return "\n".join([f"**{markdown_words(caption(table))}**", *body, "", *notes]) + "\n"


def _latex(table: TargetTable) -> str:
    body = []
    for grid in grids(table):
        body += [f"\\par\\medskip\\textit{{{latex_words(grid.title)}}}\\par\\smallskip", *grid_latex(grid)]
    notes = [f"{latex_words(line)}\\par" for line in footnotes(table)]
    return (
        "\n".join(
            [
                "% needs \\usepackage{booktabs} and \\usepackage{graphicx}",
                "\\begin{table}[t]",
                "\\centering",
                f"\\caption{{{latex_words(caption(table))}}}",
                *body,
                "",
                "\\smallskip",
                "\\parbox{\\linewidth}{\\footnotesize",
                *notes,
                "}",
                "\\end{table}",
            ]
        )
        + "\n"
    )


def _html(table: TargetTable) -> str:
    notes = "\n".join(f"<p>{escape(line)}</p>" for line in footnotes(table))
    body = "\n".join(grid_html(grid) for grid in grids(table))
    return html_page(caption(table), f"<h1>{escape(caption(table))}</h1>\n{body}\n<footer>\n{notes}\n</footer>")


def lines_of(table: TargetTable) -> Iterator[dict[str, Any]]:
    """One line for each arm and seed. Columns are `COLUMNS`."""
    target = table.target
    for arm in table.arms:
        named = {"table": table.name, "profile": arm.profile, "arm": arm.arm, "label": arm.label}
        asked = {"metric": target.metric, "target": target.percent, "window": target.window}
        for each in arm.seeds:
            yield named | asked | {name: getattr(each, name) for name in COLUMNS[7:]}


def render_target(table: TargetTable, format: str) -> str:
    """The table in one of the formats of `tepo_lab.report.render.formats.FORMATS`."""
    if format == "json":
        return json.dumps(table.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if format == "csv":
        return csv_text(COLUMNS, lines_of(table))
    return {"text": _text, "md": _markdown, "latex": _latex, "html": _html}[format](table)
