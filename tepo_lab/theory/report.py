"""All of the checks, as a table, as JSON and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from tepo_lab.theory.check import Check
from tepo_lab.theory.nano_run import Tokens, check_tokens, run_nano
from tepo_lab.theory.reading import SYMBOLS, reading
from tepo_lab.theory.reward_fit import Fit, check_fits, fit_runs
from tepo_lab.theory.softmax import (
    Gradients,
    Optima,
    Updates,
    check_gradients,
    check_optima,
    check_updates,
    gradients,
    optima,
    updates,
)

#: Characters a line of words takes at most.
WIDTH = 120

TITLE = "The paper's theory, checked by numbers (arXiv 2604.12736)"


@dataclass(frozen=True)
class Theory:
    """The checks, and the cases behind them for the figure."""

    seed: int
    checks: tuple[Check, ...]
    gradients: Gradients
    optima: Optima
    updates: Updates
    tokens: Tokens
    fits: tuple[Fit, ...]

    def to_dict(self) -> dict[str, Any]:
        """The checks as plain values, in the form of `--format json`."""
        return {
            "seed": self.seed,
            "checks": [each.to_dict() for each in self.checks],
            "reading": reading(self.checks),
            "runs": [each.to_dict() for each in self.fits],
        }

    def text(self) -> str:
        """A table with a line for each check: statement, among what, how many cases, how often it held."""
        rows = [_cells(each) for each in self.checks]
        header = ("Source", "Statement", "Among", "Holds", "Of", "Share", "")
        widths = [max(len(row[place]) for row in [header, *rows]) for place in range(len(header))]
        lines = [f"{TITLE}. Seed {self.seed}.", ""]
        for row in [header, *rows]:
            shown = [
                cell.rjust(width) if place in (3, 4, 5) else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(shown).rstrip())
        notes = [f"{each.source}: {each.note}." for each in self.checks if each.note]
        said = [line for words in reading(self.checks) for line in wrap(words, WIDTH, subsequent_indent="  ")]
        below = [line for words in (*notes, *FOOTNOTES, SYMBOLS) for line in wrap(words, WIDTH)]
        return "\n".join([*lines, "", "What the numbers say", *said, "", *below]) + "\n"


FOOTNOTES = (
    "Random policies: 32 actions, normal logits of a spread from 0.1 to 10; ΔH: measured, after a step.",
    "The nano run: six steps of TEPO without KL; ΔH over the eight updates of a step, in the same states.",
    "By chance: the share of equal signs if estimate and change had nothing to do with each other.",
)


def check_theory(home: Path, seed: int = 0) -> Theory:
    """Run every check. `home` is where runs to fit are looked for; nothing is written."""
    streams = [np.random.default_rng([seed, number]) for number in range(3)]
    slopes, best, moves = gradients(streams[0]), optima(streams[1]), updates(streams[2])
    tokens, fits = run_nano(seed), fit_runs(home)
    checks = (
        *check_gradients(slopes),
        *check_optima(best),
        *check_updates(moves),
        *check_tokens(tokens),
        check_fits(fits, home),
    )
    return Theory(seed, checks, slopes, best, moves, tokens, tuple(fits))


def _cells(check: Check) -> Sequence[str]:
    values = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in check.values.items())
    share = "missing" if check.share is None else f"{100 * check.share:.1f} %"
    return (check.source, check.statement, check.among, str(check.holds), str(check.cases), share, values)
