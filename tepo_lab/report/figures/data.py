"""The numbers behind a figure, in long form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tepo_lab.report.figures.series import ArmRuns, check_recorded, wanted_arms
from tepo_lab.report.table.frame import Table
from tepo_lab.report.table.wanted import WantedRow
from tepo_lab.schema.figure import FigureReport

COLUMNS = ("figure", "profile", "panel", "arm", "label", "seed", "step", "series", "value", "ci95_low", "ci95_high")


def figure_lines(
    report: FigureReport, rows: Sequence[WantedRow], table: Callable[[], Table], *, profile: str, home: Path
) -> Iterator[dict[str, Any]]:
    """One line for each number that `tepo_lab.report.figures.draw.draw` draws of a profile. Columns are `COLUMNS`.

    Of curves and cells: each seed's value at each step, shares as recorded (0 to 1); `series` is the metric. Of bars:
    a row's percent by benchmark and `avg`, of a forest: `difference` in points, each with its interval over `seed`s
    taken together (None). Where a seed recorded nothing finite there is no line. Args: as `draw`.
    """
    # Drawing's modules are slow to load, and only these names of theirs are needed.
    from tepo_lab.report.figures.draw import CELLS

    named = {"figure": report.name, "profile": profile}
    if report.draw == "bars":
        lines = _scores(table())
    elif report.draw == "forest":
        lines = _differences(table())
    else:
        metrics = [metric for metric, *_ in CELLS] if report.draw == "cells" else [plot.metric for plot in report.plots]
        arms = wanted_arms(home, rows)
        check_recorded(arms, metrics, report.title)
        lines = _curves(arms, metrics)
    for line in lines:
        yield dict.fromkeys(COLUMNS) | named | line


def _curves(arms: Sequence[ArmRuns], metrics: Sequence[str]) -> Iterator[dict[str, Any]]:
    for metric in metrics:
        for arm in arms:
            named = {"panel": arm.panel, "arm": arm.arm, "label": arm.label, "series": metric}
            for run in arm.begun:
                for step, values in sorted(run.metrics.items()):
                    if values.get(metric) is not None:
                        yield named | {"seed": run.seed, "step": step, "value": float(values[metric])}


def _scores(table: Table) -> Iterator[dict[str, Any]]:
    for row in table.distinct_rows:
        named = {"panel": row.panel, "arm": row.arm, "label": row.label, "step": row.steps}
        for name, score in {**row.scores, "avg": row.average}.items():
            if score is not None:
                low, high = score.ci95
                yield named | {"series": name, "value": score.percent, "ci95_low": low, "ci95_high": high}


def _differences(table: Table) -> Iterator[dict[str, Any]]:
    for one in table.comparisons:
        if one.difference is not None:
            low, high = one.ci95 or (None, None)
            named = {"panel": one.panel, "arm": one.arm, "label": one.label, "step": one.steps}
            yield named | {"series": "difference", "value": one.difference, "ci95_low": low, "ci95_high": high}
