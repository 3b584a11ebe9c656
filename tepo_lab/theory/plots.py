"""The checks as one figure of six panels."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from tepo_lab.report.figures.style import COLOURS, GREY, Drawn, frame, new_figure, style
from tepo_lab.theory.check import Flags
from tepo_lab.theory.nano_run import Tokens, means
from tepo_lab.theory.report import FOOTNOTES, TITLE, Theory
from tepo_lab.theory.softmax import ENTROPY_BINS, PROBABILITY_BINS, Gradients, Optima, Updates

BLUE, ORANGE = COLOURS[0], COLOURS[1]

#: Points of a scatter plot: more only make the file larger.
POINTS = 3000


def draw(theory: Theory) -> Drawn:
    """Eq. 1, Lemma 3.1, Theorem 3.1 (twice), Eqs. 18 and 19, and the fit of reward to entropy."""
    with style():
        figure = new_figure(11.0, 6.9)
        grid = figure.subplots(2, 3)
        _gradients(grid[0, 0], theory.gradients)
        _optima(grid[0, 1], theory.optima)
        _shares(grid[0, 2], theory.updates)
        _heat(grid[1, 0], theory.updates)
        _covariance(grid[1, 1], theory.tokens)
        _fits(grid[1, 2], theory)
        frame(figure, f"{TITLE}. Seed {theory.seed}", FOOTNOTES)
    return Drawn("theory", TITLE, figure)


def _gradients(axes: Axes, gradients: Gradients) -> None:
    shown = slice(0, POINTS)
    printed, autograd = gradients.printed.ravel()[shown], gradients.autograd.ravel()[shown]
    axes.scatter(autograd, printed, s=4, color=ORANGE, label="as printed")
    axes.scatter(autograd, -printed, s=4, color=BLUE, label="with a minus sign")
    axes.set(title="Eq. 1: gradient of the entropy", xlabel="autograd (nats per logit)", ylabel="formula")
    axes.legend(fontsize=8, markerscale=3)


def _optima(axes: Axes, optima: Optima) -> None:
    shown = slice(0, POINTS)
    axes.scatter(optima.numerical.ravel()[shown], optima.closed.ravel()[shown], s=4, color=BLUE)
    axes.plot([1e-6, 1], [1e-6, 1], color=GREY, linewidth=0.8, zorder=0)
    axes.set(xscale="log", yscale="log", xlim=(1e-6, 1.5), ylim=(1e-6, 1.5))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(title="Lemma 3.1: the optimum's probabilities", xlabel="by an optimizer", ylabel="closed form")


def _shares(axes: Axes, updates: Updates) -> None:
    positive = updates.measurable & (updates.advantage > 0)
    names: list[str] = []
    for colour, groups in ((BLUE, updates.by_entropy()), (ORANGE, updates.by_probability())):
        for name, within in groups.items():
            cases = within & positive
            axes.barh(len(names), _share(updates.falls[cases]), color=colour)
            names.append(f"{name} ({cases.sum()})")
    axes.set(
        title="Theorem 3.1: share with ΔH < 0 where A > 0", xlim=(0, 1), xlabel="share of tokens (number of tokens)"
    )
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))


def _heat(axes: Axes, updates: Updates) -> None:
    positive = updates.measurable & (updates.advantage > 0)
    shares = np.array(
        [
            [
                _share(updates.falls[entropy & probability & positive])
                for probability in updates.by_probability().values()
            ]
            for entropy in updates.by_entropy().values()
        ]
    )
    axes.imshow(shares, vmin=0, vmax=1, cmap="RdBu", origin="lower", aspect="auto")
    for row, column in np.ndindex(shares.shape):
        share = shares[row, column]
        text = "no token" if np.isnan(share) else f"{100 * share:.0f} %"
        # White on the dark ends of the scale.
        axes.text(column, row, text, ha="center", va="center", color="white" if abs(share - 0.5) > 0.35 else "black")
    axes.set_xticks(range(shares.shape[1]), _ranges(PROBABILITY_BINS), fontsize=7)
    axes.set_yticks(range(shares.shape[0]), _ranges(ENTROPY_BINS))
    axes.set(title="... by both", xlabel="probability of the token", ylabel="H / log V")


def _covariance(axes: Axes, tokens: Tokens) -> None:
    estimate, change = tokens.estimate(), tokens.change
    for name, groups, colour, size in (("prompts", tokens.prompt, BLUE, 8), ("steps", tokens.step, ORANGE, 40)):
        axes.scatter(means(estimate, groups), means(change, groups), s=size, color=colour, label=name)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(0, color=GREY, linewidth=0.8)
    axes.set(title="Eq. 18, 19 on a nano run", xlabel="-Cov(log π, A)", ylabel="ΔH, measured (nats)")
    axes.legend(fontsize=8)


def _fits(axes: Axes, theory: Theory) -> None:
    axes.set(title="R = -a exp(H) + b", xlabel="exp(H), H in nats", ylabel="mean reward of a step")
    if not theory.fits:
        axes.text(0.5, 0.5, "no runs in the home", ha="center", va="center", transform=axes.transAxes)
    for number, fit in enumerate(theory.fits):
        colour = COLOURS[number % len(COLOURS)]
        x = np.exp(fit.entropy)
        ends = np.array([x.min(), x.max()])
        axes.scatter(x, fit.reward, s=8, color=colour)
        axes.plot(ends, fit.b - fit.a * ends, color=colour, linewidth=1, label=f"{fit.run}, R² {fit.r_squared:.2f}")
    if 0 < len(theory.fits) <= 8:
        axes.legend(fontsize=6)
    elif theory.fits:
        median = np.median([fit.r_squared for fit in theory.fits])
        words = f"{len(theory.fits)} runs, median R² {median:.2f}"
        axes.text(0.97, 0.95, words, ha="right", transform=axes.transAxes, fontsize=8)


def _share(flags: Flags) -> float:
    return float(flags.mean()) if flags.size else float("nan")


def _ranges(edges: Iterable[float]) -> list[str]:
    return [f"{low:g}–{high:g}" for low, high in pairwise(edges)]
