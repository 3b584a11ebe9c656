"""One self-contained HTML page of a report: its tables, verdicts and figures, and single tokens to look at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from tepo_lab.report.figures.draw import PAGE_PLOTS, bars, cells, curves, forest
from tepo_lab.report.figures.series import ArmRuns, shown_arms
from tepo_lab.report.figures.style import Drawn, svg_fragment
from tepo_lab.report.render import words as lines
from tepo_lab.report.render.markup import STYLE, html_fragment
from tepo_lab.report.render.page_tokens import token_data
from tepo_lab.report.table.frame import Table

_ASSETS = Path(__file__).parent / "assets"

NO_TOKENS = (
    "None of these runs has left a token file. A run writes one at its last step, and every K steps where "
    "trainer.tokens_every is K."
)


def build_page(tables: Sequence[Table], home: Path) -> str:
    """The page of a report's tables, which were built from the records under `home`.

    It asks for nothing outside itself. Raises `RecordError` for a damaged record.
    """
    arms = [shown_arms(home, table) for table in tables]
    sections = [_section(home, number, *each) for number, each in enumerate(zip(tables, arms, strict=True), start=1)]
    runs, left_out = token_data([arm for each in arms for arm in each])
    links = [f'<a href="#table-{number}">{escape(_heading(each))}</a>' for number, each in enumerate(tables, start=1)]
    return Template((_ASSETS / "page.html").read_text()).substitute(
        title=escape(" and ".join(dict.fromkeys(table.title for table in tables))),
        style=STYLE + "\n" + (_ASSETS / "page.css").read_text().strip(),
        links="".join([*links, '<a href="#tokens">Single tokens</a>']),
        sections="\n".join(sections),
        note=escape(_note(runs, left_out)),
        tokens=_json(runs),
        script=(_ASSETS / "page.js").read_text().strip(),
    )


def _heading(table: Table) -> str:
    steps = "" if table.steps is None else f", step {table.steps}"
    return f"Profile {table.profile}{steps}"


def _section(home: Path, number: int, table: Table, arms: Sequence[ArmRuns]) -> str:
    figures = [
        f"<figure>{svg_fragment(drawn, f't{number}-{place}')}</figure>"
        for place, drawn in enumerate(_figures(home, table, arms))
    ]
    return "\n".join(
        [
            f'<section id="table-{number}">',
            f"<h2>{escape(_heading(table))}</h2>",
            f'<p class="verdicts">{escape(_verdicts(table))}</p>',
            html_fragment(table),
            *(figures or ["<p>No run has recorded a step yet: there is nothing to draw.</p>"]),
            "</section>",
        ]
    )


def _verdicts(table: Table) -> str:
    """How the comparisons came out, in one line."""
    if not table.comparisons:
        return "No row has its parent, or another ancestor, in this table, so none is compared."
    counts = Counter(each.verdict for each in table.comparisons)
    return f"Against the parent: {', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))}."


def _figures(home: Path, table: Table, arms: Sequence[ArmRuns]) -> Iterator[Drawn]:
    """What the records can show of each profile."""
    for profile in table.profiles:
        members = [arm for arm, row in zip(arms, table.rows, strict=True) if row.profile == profile]
        yield from _profile_figures(home, table.of_profile(profile), members)


def _profile_figures(home: Path, table: Table, arms: Sequence[ArmRuns]) -> Iterator[Drawn]:
    """Scores, differences, and for each panel its curves and cells."""
    if any(row.average.generation_weighted is not None for row in table.all_rows):
        yield bars(table, name="bars", title="Scores on every benchmark")
    if any(each.difference is not None for each in table.comparisons):
        yield forest(table, name="forest", title="Arms against their parents")
    titles = [block.title or "Training" for block in lines.blocks(table) for row in block.rows if row is not table.base]
    panels = {title: [arm for arm, own in zip(arms, titles, strict=True) if own == title] for title in titles}
    for title, members in panels.items():
        if any(arm.begun for arm in members) and not _shown_elsewhere(members, panels.values()):
            own = f"{title}: training dynamics"
            yield curves(members, PAGE_PLOTS, name="dynamics", title=own, profile=table.profile, home=home)
            own = f"{title}: tokens by sign of A and ΔH"
            yield cells(members, name="cells", title=own, profile=table.profile, home=home)


def _shown_elsewhere(members: Sequence[ArmRuns], panels: Iterable[Sequence[ArmRuns]]) -> bool:
    """Whether another panel's figures have all of these runs and more."""
    names = {run.folder.name for arm in members for run in arm.runs}
    others = ({run.folder.name for arm in panel for run in arm.runs} for panel in panels)
    return any(names < other for other in others)


def _note(runs: Sequence[Any], left_out: int) -> str:
    if not runs:
        return NO_TOKENS
    return f"{left_out} problems more are in the runs' token files than one page can hold." if left_out else ""


def _json(value: Any) -> str:
    """JSON that may stand within a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
