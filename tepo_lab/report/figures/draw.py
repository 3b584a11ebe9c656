"""Figures from a home's records: curves over steps, the four cells, benchmark bars and the forest of differences."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from tepo_lab.errors import RecordError
from tepo_lab.report.figures.series import ArmRuns, Series, check_recorded, gaps, wanted_arms
from tepo_lab.report.figures.style import COLOURS, GREY, MARKERS, Drawn, frame, new_figure, style
from tepo_lab.report.render import words as lines
from tepo_lab.report.table.frame import Average, Cell, Comparison, Row, Table, WantedRow
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
    with style():
        figure = new_figure(max(6.0, (4.0 if across <= 2 else 3.2) * across), 2.6 * down)
        grid = figure.subplots(down, across, squeeze=False)
        missing, averages = [], []
        for axes, plot in zip(grid.flat, plots, strict=False):
            missing += _plot(axes, shown, plot)
            averages += _averages(shown, plot)
        for axes in grid.flat[len(plots) :]:
            axes.set_visible(False)
        notes = [_what_lines_are(shown), *averages, *_not_shown([*gaps(arms), *missing])]
        frame(figure, f"{title} (profile {profile})", notes, _legend(shown))
    return Drawn(name, f"{title}, profile {profile}", figure, (*gaps(arms), *missing))


def _begun(arms: Sequence[ArmRuns], title: str, profile: str, home: Path) -> list[ArmRuns]:
    shown = [arm for arm in arms if arm.begun]
    if not shown:
        named = ", ".join(arm.arm for arm in arms)
        raise RecordError(
            f"{title}: no run of its arms ({named}) on profile {profile} has recorded a step under {home}: run a sweep "
            "with them first, and give the same overrides here as there."
        )
    return shown


def _plot(axes: Axes, arms: Sequence[ArmRuns], plot: Plot) -> list[str]:
    """Draws one metric. Returns what is missing of it."""
    missing = []
    for number, arm in enumerate(arms):
        series = arm.series(plot.metric)
        if series is None:
            missing.append(f"{arm.label}: no {plot.metric} recorded")
            continue
        _line(axes, series, arm, number, 100 if plot.percent else 1)
    axes.set_xlabel("Training step")
    axes.set_ylabel(plot.label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True)
    return missing


def _line(axes: Axes, series: Series, arm: ArmRuns, number: int, scale: float) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    steps, mean = series.steps, scale * series.mean
    if len(series.seeds) > 1:
        axes.fill_between(steps, scale * series.low, scale * series.high, color=colour, alpha=0.18, linewidth=0)
        for values in series.values:
            axes.plot(steps, scale * values, color=colour, linewidth=0.5, alpha=0.4)
    every = max(1, len(steps) // 8)
    # Shifted by the arm's number, so that the markers of lines that lie on each other stay visible.
    first = number % every
    axes.plot(steps, mean, color=colour, linewidth=1.5, marker=marker, markersize=4, markevery=(first, every))
    for run, values in zip(arm.begun, series.values, strict=True):
        if run.collapsed_at is not None:
            known = np.flatnonzero(~np.isnan(values))
            axes.plot(steps[known[-1:]], scale * values[known[-1:]], "x", color=colour, markersize=9, markeredgewidth=2)


def _averages(arms: Sequence[ArmRuns], plot: Plot) -> list[str]:
    """The metric's mean over steps, where it is to be said."""
    held = [(arm.label, arm.series(plot.metric)) for arm in arms if plot.average]
    scale = 100 if plot.percent else 1
    said = ", ".join(f"{label} {scale * series.overall():.3g}" for label, series in held if series is not None)
    return [f"{plot.label}, mean over steps: {said}."] if said else []


def _legend(arms: Sequence[ArmRuns]) -> list[Artist]:
    return [
        Line2D([], [], color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)], label=label)
        for number, label in enumerate(f"{arm.label} ({seed_count(arm)})" for arm in arms)
    ]


def seed_count(arm: ArmRuns) -> str:
    """How many seeds of an arm are drawn."""
    return "1 seed" if len(arm.begun) == 1 else f"{len(arm.begun)} seeds"


def _what_lines_are(arms: Sequence[ArmRuns]) -> str:
    said = []
    if any(len(arm.begun) > 1 for arm in arms):
        said.append("Line: mean over seeds. Band: from the lowest seed to the highest. Thin lines: single seeds.")
    else:
        said.append("One seed of each arm: the lines say nothing of how much seeds differ.")
    if any(run.collapsed_at is not None for arm in arms for run in arm.begun):
        said.append("x: where a seed collapsed.")
    return " ".join(said)


def _not_shown(missing: Sequence[str]) -> list[str]:
    return [f"Missing or cut short: {'; '.join(together(missing))}."] if missing else []


def together(gaps: Sequence[str]) -> list[str]:
    """What is missing, those of which there is simply no run in one phrase."""
    ending = ": not run"
    lacking = [gap.removesuffix(ending) for gap in gaps if gap.endswith(ending)]
    others = [gap for gap in gaps if not gap.endswith(ending)]
    return [*([f"not run: {', '.join(lacking)}"] if lacking else []), *others]


def cells(arms: Sequence[ArmRuns], *, name: str, title: str, profile: str, home: Path) -> Drawn:
    """Shares of tokens by sign of advantage and of entropy change over steps, means over seeds, one plot an arm.

    Raises `RecordError` when no arm has recorded a step.
    """
    begun = _begun(arms, title, profile, home)
    shown = [arm for arm in begun if arm.series(CELLS[0][0]) is not None]
    missing = [f"{arm.label}: no {CELLS[0][0]} recorded" for arm in begun if arm not in shown]
    across = max(1, len(shown) if len(shown) <= 4 else 3 if len(shown) in (5, 6, 9) else 4)
    down = max(1, -(-len(shown) // across))
    with style():
        figure = new_figure(max(6.0, 3.0 * across), 2.35 * down)
        grid = figure.subplots(down, across, squeeze=False, sharex=False, sharey=True)
        for axes, arm in zip(grid.flat, shown, strict=False):
            _stack(axes, arm)
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        for row in grid:
            row[0].set_ylabel("Tokens (%)")
        handles = [Patch(color=colour, label=label) for _, label, colour in CELLS]
        notes = ["Means over seeds and over the updates of a step. White: tokens of no entropy change or no advantage."]
        frame(figure, f"{title} (profile {profile})", [*notes, *_not_shown([*gaps(arms), *missing])], handles)
    return Drawn(name, f"{title}, profile {profile}", figure, (*gaps(arms), *missing))


def _stack(axes: Axes, arm: ArmRuns) -> None:
    held = [arm.series(metric) for metric, _, _ in CELLS]
    shares = np.nan_to_num(np.stack([100 * each.mean for each in held if each is not None]))
    steps = next(each.steps for each in held if each is not None)
    axes.stackplot(steps, shares, colors=[colour for _, _, colour in CELLS], linewidth=0)
    axes.set_title(textwrap.fill(f"{arm.label} ({seed_count(arm)})", 32))
    axes.set_ylim(0, 100)
    axes.set_xlabel("Training step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0)


def bars(table: Table, *, name: str, title: str) -> Drawn:
    """Every benchmark's scores in percent with 95 % intervals, an axis each, the rows from top to bottom.

    Raises `RecordError` when no row has a score.
    """
    rows = [row for row in table.distinct_rows if row.average.generation_weighted is not None]
    missing = [f"{row.label}: {row.outcome}" for row in table.rows if row.average.generation_weighted is None]
    if not rows:
        raise RecordError(f"{title}: no run has a full evaluation yet ({'; '.join(together(missing)) or 'no rows'}).")
    labels = [row.label if row.steps == 0 else f"{row.label} ({lines.seeds(row)}{_suspect(row)})" for row in rows]
    places = np.arange(len(rows))[::-1]
    with style():
        figure = new_figure(2.6 + 1.3 * (len(table.columns) + 1), 0.75 + 0.3 * len(rows))
        grid = figure.subplots(1, len(table.columns) + 1, squeeze=False, sharey=True)[0]
        for axes, column in zip(grid, (*table.columns, None), strict=True):
            scored = [row.average if column is None else row.cells[column.name] for row in rows]
            colours = [GREY if row is table.base else COLOURS[0] for row in rows]
            _bars(axes, places, scored, colours)
            axes.set_title(lines.AVERAGE if column is None else column.label)
            axes.set_xlabel("%")
        grid[0].set_yticks(places, labels)
        notes = [f"{lines.caption(table)} Bars: percent of generations right; intervals: {table.interval}."]
        frame(figure, f"{title} (profile {table.profile})", [*notes, *_not_shown(missing)])
    return Drawn(name, f"{title}, profile {table.profile}", figure, tuple(missing))


def _suspect(row: Row) -> str:
    return f", {lines.SUSPECT}" if row.suspect else ""


def _bars(axes: Axes, places: np.ndarray, scored: Sequence[Cell | Average], colours: Sequence[str]) -> None:
    values = [_percent(each) for each in scored]
    bounds = [each.ci95 or (value, value) for each, value in zip(scored, values, strict=True)]
    below = [max(0.0, value - low) for value, (low, _) in zip(values, bounds, strict=True)]
    above = [max(0.0, high - value) for value, (_, high) in zip(values, bounds, strict=True)]
    axes.barh(places, values, height=0.72, color=list(colours), alpha=0.85)
    axes.errorbar(values, places, xerr=(below, above), fmt="none", ecolor="#222222", elinewidth=0.9, capsize=2)
    for place, value in zip(places, values, strict=True):
        axes.text(1.02, place, f"{value:.1f}", transform=axes.get_yaxis_transform(), va="center", fontsize=7.5)
    axes.set_xlim(0, max(1.0, max(high for _, high in bounds) * 1.05))
    axes.tick_params(axis="y", length=0)


def _percent(scored: Cell | Average) -> float:
    value = scored.percent if isinstance(scored, Cell) else scored.generation_weighted
    return 0.0 if value is None else value


def forest(table: Table, *, name: str, title: str) -> Drawn:
    """Every row's difference from its parent in points of the average, with its 95 % interval and verdict.

    Raises `RecordError` when the table compares no two rows.
    """
    compared = table.comparisons
    missing = list(dict.fromkeys(each.reason for each in compared if each.reason is not None))
    drawn = [each for each in compared if each.difference is not None]
    if not drawn:
        raise RecordError(
            f"{title}: no row has a parent to be compared with yet ({'; '.join(together(missing)) or 'none'})."
        )
    places = np.arange(len(drawn))[::-1]
    with style():
        figure = new_figure(8.6, 0.6 + 0.38 * len(drawn))
        axes = figure.subplots()
        axes.axvline(0, color="#222222", linewidth=0.8)
        for place, each in zip(places, drawn, strict=True):
            _interval(axes, int(place), each)
        names = ["\nagainst ".join(lines.compared(each, table)) for each in drawn]
        axes.set_yticks(places, names, fontsize=7.5)
        axes.set_ylim(-0.7, len(drawn) - 0.3)
        axes.set_xlabel(f"Difference of {lines.AVERAGE} (points)")
        axes.grid(True, axis="x")
        notes = [f"{lines.caption(table)} Paired over seeds and problems; lines: 95 % intervals; p corrected by Holm."]
        frame(figure, f"{title} (profile {table.profile})", [*notes, *_not_shown(missing)])
    return Drawn(name, f"{title}, profile {table.profile}", figure, tuple(missing))


def _interval(axes: Axes, place: int, each: Comparison) -> None:
    assert each.difference is not None
    assert each.ci95 is not None
    colour, marker = _VERDICTS.get(each.verdict, ("#555555", "o"))
    low, high = each.ci95
    axes.plot([low, high], [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
    axes.plot([each.difference], [place], marker=marker, color=colour, markersize=7)
    count = "1 seed" if len(each.seeds) == 1 else f"{len(each.seeds)} seeds"
    verdict = each.verdict.partition(" (")[0] + (f", {lines.SUSPECT}" if each.suspect else "")
    p = "" if each.p_holm is None else ", p < 0.001" if each.p_holm < 0.001 else f", p = {each.p_holm:.3f}"
    axes.text(1.01, place, f"{verdict} ({count}{p})", transform=axes.get_yaxis_transform(), va="center", fontsize=7.5)


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
