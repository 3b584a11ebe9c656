"""Figures from a home's records: curves over steps, the four cells, benchmark bars and the forest of differences."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from tepo_lab.errors import RecordError
from tepo_lab.report.figures.series import ArmRuns, Series, check_recorded, gaps, wanted_arms
from tepo_lab.report.figures.style import COLOURS, GREY, MARKERS, Drawn, frame, new_figure, style
from tepo_lab.report.render.document import caption, seeds
from tepo_lab.report.table.columns import AVERAGE, SUSPECT, comparison_name, p_value, seed_count
from tepo_lab.report.table.frame import Table
from tepo_lab.report.table.rows import Score
from tepo_lab.report.table.wanted import WantedRow
from tepo_lab.schema.figure import FigureReport, Plot

#: Step metrics that a page shows of every arm.
PAGE_PLOTS = (
    Plot(metric="reward/mean", label="Mean reward (%)", percent=True),
    Plot(metric="actor/grad_norm", label="Gradient norm before clipping"),
    Plot(metric="actor/pg_clipfrac", label="Clipped tokens (%)", percent=True),
    Plot(metric="seconds/step", label="Seconds per step"),
    Plot(metric="actor/entropy", label="Entropy (nats)"),
    Plot(metric="actor/ppo_kl", label="KL to the rollout policy (nats)"),
    Plot(metric="rollout/response_tokens_mean", label="Response length (tokens)"),
    Plot(metric="entropy/change_mean", label="Mean ΔH (nats)"),
)

#: The cells from bottom to top: metric, name, colour. Blues are right answers' tokens, oranges wrong answers'.
CELLS = (
    ("cells/positive_falling", "A > 0, ΔH < 0", "#0072B2"),
    ("cells/positive_rising", "A > 0, ΔH > 0", "#56B4E9"),
    ("cells/negative_falling", "A < 0, ΔH < 0", "#E69F00"),
    ("cells/negative_rising", "A < 0, ΔH > 0", "#D55E00"),
)

#: Verdict -> colour and marker.
_VERDICTS = {"better": ("#009E73", "^"), "worse": ("#D55E00", "v")}


def curves(arms: Sequence[ArmRuns], plots: Sequence[Plot], *, name: str, title: str, profile: str, home: Path) -> Drawn:
    """Each metric over training steps: the mean over seeds, a band from the lowest seed to the highest.

    Arms and seeds that are missing are named under the figure. Raises `RecordError` when no arm has recorded a step.
    """
    shown = _begun(arms, title, profile, home)
    across = min(len(plots), 2 if len(plots) <= 4 else 4)
    down = -(-len(plots) // across)
    missing, averages = gaps(arms), []
    with style():
        figure = new_figure(max(6.0, (4.0 if across <= 2 else 3.2) * across), 2.6 * down)
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(plots) :]:
            axes.set_visible(False)
        for axes, plot in zip(grid.flat, plots, strict=False):
            scale = 100 if plot.percent else 1
            series = [arm.series(plot.metric) for arm in shown]
            for number, (arm, values) in enumerate(zip(shown, series, strict=True)):
                if values is None:
                    missing.append(f"{arm.label}: no {plot.metric} recorded")
                else:
                    _line(axes, values, arm, number, scale)
            _over_steps(axes)
            axes.set_ylabel(plot.label)
            axes.grid(True)
            if plot.average and any(series):
                means = (
                    f"{arm.label} {scale * values.overall():.3g}"
                    for arm, values in zip(shown, series, strict=True)
                    if values is not None
                )
                averages.append(f"{plot.label}, mean over steps: {', '.join(means)}.")
        legend: list[Artist] = [
            Line2D([], [], **_look(number), label=f"{arm.label} ({seed_count(len(arm.begun))})")
            for number, arm in enumerate(shown)
        ]
        return _framed(figure, name, title, profile, [_legend_note(shown), *averages], missing, legend)


def _begun(arms: Sequence[ArmRuns], title: str, profile: str, home: Path) -> list[ArmRuns]:
    shown = [arm for arm in arms if arm.begun]
    if not shown:
        named = ", ".join(arm.arm for arm in arms)
        raise RecordError(
            f"{title}: no run of its arms ({named}) on profile {profile} has recorded a step under {home}: run a sweep "
            "with them first, and give the same overrides here as there."
        )
    return shown


def _look(number: int) -> dict[str, Any]:
    """An arm's colour and marker."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def _line(axes: Axes, series: Series, arm: ArmRuns, number: int, scale: float) -> None:
    look, steps = _look(number), series.steps
    colour = look["color"]
    if len(series.seeds) > 1:
        axes.fill_between(steps, scale * series.low, scale * series.high, color=colour, alpha=0.18, linewidth=0)
        for values in series.values:
            axes.plot(steps, scale * values, color=colour, linewidth=0.5, alpha=0.4)
    every = max(1, len(steps) // 8)
    # Shifted by the arm's number, so that the markers of lines that lie on each other stay visible.
    axes.plot(steps, scale * series.mean, **look, linewidth=1.5, markersize=4, markevery=(number % every, every))
    for run, values in zip(arm.begun, series.values, strict=True):
        if run.collapsed_at is not None:
            known = np.flatnonzero(~np.isnan(values))
            axes.plot(steps[known[-1:]], scale * values[known[-1:]], "x", color=colour, markersize=9, markeredgewidth=2)


def _over_steps(axes: Axes) -> None:
    """Name the axis of training steps, and mark whole ones."""
    axes.set_xlabel("Training step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend_note(arms: Sequence[ArmRuns]) -> str:
    lines = "One seed of each arm: the lines carry no information on how much seeds differ."
    if any(len(arm.begun) > 1 for arm in arms):
        lines = "Line: mean over seeds. Band: from the lowest seed to the highest. Thin lines: single seeds."
    collapsed = any(run.collapsed_at is not None for arm in arms for run in arm.begun)
    return f"{lines} x: where a seed collapsed." if collapsed else lines


def _framed(
    figure: Figure,
    name: str,
    title: str,
    profile: str,
    notes: Sequence[str],
    missing: Sequence[str],
    legend: Sequence[Artist] = (),
) -> Drawn:
    """The figure with its title, and below it the legend, the notes and what is missing."""
    not_shown = [f"Missing or cut short: {'; '.join(together(missing))}."] if missing else []
    frame(figure, f"{title} (profile {profile})", [*notes, *not_shown], legend)
    return Drawn(name, f"{title}, profile {profile}", figure, tuple(missing))


def together(gaps: Sequence[str]) -> list[str]:
    """What is missing, those of which there is simply no run in one phrase."""
    ending = ": not run"
    not_run = [gap.removesuffix(ending) for gap in gaps if gap.endswith(ending)]
    others = [gap for gap in gaps if not gap.endswith(ending)]
    return [*([f"not run: {', '.join(not_run)}"] if not_run else []), *others]


def cells(arms: Sequence[ArmRuns], *, name: str, title: str, profile: str, home: Path) -> Drawn:
    """Shares of tokens by sign of advantage and of entropy change over steps, means over seeds, one plot an arm.

    Raises `RecordError` when no arm has recorded a step.
    """
    begun = _begun(arms, title, profile, home)
    shown = [arm for arm in begun if arm.series(CELLS[0][0]) is not None]
    missing = [*gaps(arms), *(f"{arm.label}: no {CELLS[0][0]} recorded" for arm in begun if arm not in shown)]
    across = max(1, len(shown) if len(shown) <= 4 else 3 if len(shown) in (5, 6, 9) else 4)
    down = max(1, -(-len(shown) // across))
    with style():
        figure = new_figure(max(6.0, 3.0 * across), 2.35 * down)
        grid = figure.subplots(down, across, squeeze=False, sharex=False, sharey=True)
        for axes, arm in zip(grid.flat, shown, strict=False):
            series = [values for metric, *_ in CELLS if (values := arm.series(metric)) is not None]
            shares = np.nan_to_num(np.stack([100 * values.mean for values in series]))
            axes.stackplot(series[0].steps, shares, colors=[colour for _, _, colour in CELLS], linewidth=0)
            axes.set_title(textwrap.fill(f"{arm.label} ({seed_count(len(arm.begun))})", 32))
            axes.set_ylim(0, 100)
            _over_steps(axes)
            axes.margins(x=0)
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        for row in grid:
            row[0].set_ylabel("Tokens (%)")
        handles = [Patch(color=colour, label=label) for _, label, colour in CELLS]
        note = "Means over seeds and over the updates of a step. White: tokens of no entropy change or no advantage."
        return _framed(figure, name, title, profile, [note], missing, handles)


def bars(table: Table, *, name: str, title: str) -> Drawn:
    """Every benchmark's scores in percent with 95 % intervals, an axis each, the rows from top to bottom.

    Raises `RecordError` when no row has a score.
    """
    rows = [row for row in table.distinct_rows if row.average is not None]
    missing = [f"{row.label}: {row.outcome}" for row in table.rows if row.average is None]
    if not rows:
        raise RecordError(f"{title}: no run has a full evaluation yet ({'; '.join(together(missing)) or 'no rows'}).")
    labels = [
        row.label if row.steps == 0 else f"{row.label} ({seeds(row)}{f', {SUSPECT}' if row.suspect else ''})"
        for row in rows
    ]
    colours = [GREY if row is table.base else COLOURS[0] for row in rows]
    by_title = {one.label: [row.scores[one.name] for row in rows] for one in table.benchmarks}
    by_title[AVERAGE.heading] = [row.average for row in rows if row.average is not None]
    places = np.arange(len(rows))[::-1]
    with style():
        figure = new_figure(2.6 + 1.3 * len(by_title), 0.75 + 0.3 * len(rows))
        grid = figure.subplots(1, len(by_title), squeeze=False, sharey=True)[0]
        for axes, (heading, scores) in zip(grid, by_title.items(), strict=True):
            _bars(axes, places, scores, colours)
            axes.set_title(heading)
        grid[0].set_yticks(places, labels)
        note = f"{caption(table)} Bars: percent of generations right; intervals: {table.interval}."
        return _framed(figure, name, title, table.profile, [note], missing)


def _bars(axes: Axes, places: np.ndarray, scores: Sequence[Score], colours: Sequence[str]) -> None:
    percents = [score.percent for score in scores]
    errors = [
        [max(0.0, score.percent - score.ci95[0]) for score in scores],
        [max(0.0, score.ci95[1] - score.percent) for score in scores],
    ]
    axes.barh(places, percents, height=0.72, color=list(colours), alpha=0.85)
    axes.errorbar(percents, places, xerr=errors, fmt="none", ecolor="#222222", elinewidth=0.9, capsize=2)
    for place, percent in zip(places, percents, strict=True):
        axes.text(1.02, place, f"{percent:.1f}", transform=axes.get_yaxis_transform(), va="center", fontsize=7.5)
    axes.set_xlim(0, max(1.0, max(score.ci95[1] for score in scores) * 1.05))
    axes.set_xlabel("%")
    axes.tick_params(axis="y", length=0)


def forest(table: Table, *, name: str, title: str) -> Drawn:
    """Every row's difference from its parent in points of the average, with its 95 % interval and verdict.

    Raises `RecordError` when the table compares no two rows.
    """
    missing = list(dict.fromkeys(one.reason for one in table.comparisons if one.reason is not None))
    drawn = [one for one in table.comparisons if one.difference is not None]
    if not drawn:
        raise RecordError(
            f"{title}: no row has a parent to be compared with yet ({'; '.join(together(missing)) or 'none'})."
        )
    places = np.arange(len(drawn))[::-1]
    with style():
        figure = new_figure(8.6, 0.6 + 0.38 * len(drawn))
        axes = figure.subplots()
        axes.axvline(0, color="#222222", linewidth=0.8)
        for place, one in zip(places, drawn, strict=True):
            assert one.difference is not None
            assert one.ci95 is not None
            colour, marker = _VERDICTS.get(one.verdict, ("#555555", "o"))
            axes.plot(one.ci95, [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
            axes.plot([one.difference], [place], marker=marker, color=colour, markersize=7)
            verdict = one.verdict.partition(" (")[0] + (f", {SUSPECT}" if one.suspect else "")
            shown_p = "" if one.p_holm is None else f", p {'' if one.p_holm < 0.001 else '= '}{p_value(one.p_holm)}"
            text = f"{verdict} ({seed_count(len(one.seeds))}{shown_p})"
            axes.text(1.01, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=7.5)
        names = [f"{comparison_name(one, table)}\nagainst {one.parent_label}" for one in drawn]
        axes.set_yticks(places, names, fontsize=7.5)
        axes.set_ylim(-0.7, len(drawn) - 0.3)
        axes.set_xlabel(f"Difference of {AVERAGE.heading} (points)")
        axes.grid(True, axis="x")
        note = f"{caption(table)} Paired over seeds and problems; lines: 95 % intervals; p corrected by Holm."
        return _framed(figure, name, title, table.profile, [note], missing)


def draw(
    report: FigureReport, rows: Sequence[WantedRow], table: Callable[[], Table], *, profile: str, home: Path
) -> Drawn:
    """The figure that a report asks for. Args: `table` builds its table, for figures of scores.

    Raises `RecordError` when there is nothing to draw, `ConfigError` for a metric that no run records.
    """
    named = {"name": report.name, "title": report.title}
    if report.draw == "bars":
        return bars(table(), **named)
    if report.draw == "forest":
        return forest(table(), **named)
    arms = wanted_arms(home, rows)
    if report.draw == "cells":
        return cells(arms, **named, profile=profile, home=home)
    check_recorded(arms, (plot.metric for plot in report.plots), report.title)
    return curves(arms, report.plots, **named, profile=profile, home=home)
