"""One self-contained HTML page of a report: its tables, verdicts and figures, and single tokens to look at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tepo_lab.report.figures.draw import PAGE_PLOTS, bars, cells, curves, forest
from tepo_lab.report.figures.series import ArmRuns, shown_arms
from tepo_lab.report.figures.style import Drawn, svg_fragment
from tepo_lab.report.render.document import panels
from tepo_lab.report.render.formats import environment, html_fragment
from tepo_lab.report.render.page_tokens import token_data
from tepo_lab.report.table.frame import Table

NO_TOKENS = (
    "None of these runs has left a token file. A run writes one at its last step, and every K steps where "
    "trainer.tokens_every is K."
)


def build_page(tables: Sequence[Table], home: Path) -> str:
    """The page of a report's tables, which were built from the records under `home`.

    It asks for nothing outside itself. Raises `RecordError` for a damaged record.
    """
    arms = [shown_arms(table) for table in tables]
    runs, left_out = token_data([arm for members in arms for arm in members])
    note = NO_TOKENS if not runs else ""
    if runs and left_out:
        note = f"{left_out} problems more are in the runs' token files than one page can hold."
    sections = [
        {
            "heading": f"Profile {table.profile}{'' if table.steps is None else f', step {table.steps}'}",
            "verdicts": _verdicts(table),
            "table": Markup(html_fragment(table)),
            "figures": [
                Markup(svg_fragment(drawn, f"t{number}-{place}"))
                for place, drawn in enumerate(_figures(home, table, members))
            ],
        }
        for number, (table, members) in enumerate(zip(tables, arms, strict=True), start=1)
    ]
    template = environment("html").get_template("page.html")
    title = " and ".join(dict.fromkeys(table.title for table in tables))
    return template.render(title=title, sections=sections, note=note, tokens=Markup(_json(runs)))


def _verdicts(table: Table) -> str:
    """How the comparisons came out, in one line."""
    if not table.comparisons:
        return "No row has its parent, or another ancestor, in this table, so none is compared."
    counts = Counter(comparison.verdict for comparison in table.comparisons)
    return f"Against the parent: {', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))}."


def _figures(home: Path, table: Table, arms: Sequence[ArmRuns]) -> Iterator[Drawn]:
    """What the records can show of each profile: scores, differences, and for each panel its curves and cells."""
    for profile in table.profiles:
        members = [arm for arm, row in zip(arms, table.rows, strict=True) if row.profile == profile]
        own = table.of_profile(profile)
        if any(row.average is not None for row in own.all_rows):
            yield bars(own, name="bars", title="Scores on every benchmark")
        if any(comparison.difference is not None for comparison in own.comparisons):
            yield forest(own, name="forest", title="Arms against their parents")
        titles = [panel.title or "Training" for panel in panels(own) for row in panel.rows if row is not own.base]
        by_title = {title: [arm for arm, its in zip(members, titles, strict=True) if its == title] for title in titles}
        for title, shown in by_title.items():
            if any(arm.begun for arm in shown) and not _shown_elsewhere(shown, by_title.values()):
                own_title = f"{title}: training dynamics"
                yield curves(shown, PAGE_PLOTS, name="dynamics", title=own_title, profile=profile, home=home)
                own_title = f"{title}: tokens by sign of A and ΔH"
                yield cells(shown, name="cells", title=own_title, profile=profile, home=home)


def _shown_elsewhere(members: Sequence[ArmRuns], others: Iterable[Sequence[ArmRuns]]) -> bool:
    """Whether another panel's figures have all of these runs and more."""

    def names(arms: Sequence[ArmRuns]) -> set[str]:
        return {run.folder.name for arm in arms for run in arm.runs}

    return any(names(members) < names(arms) for arms in others)


def _json(value: Any) -> str:
    """JSON that may be within a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
