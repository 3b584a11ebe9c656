"""All checks of the theory as a table, as sentences and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from tepo_lab.theory.check import Check
from tepo_lab.theory.nano_run import Tokens, check_tokens, run_nano
from tepo_lab.theory.reward_fit import RewardFit, check_fits, fit_runs
from tepo_lab.theory.softmax import (
    Gradients,
    Optima,
    Updates,
    check_gradients,
    check_optima,
    check_updates,
    compute_gradients,
    compute_optima,
    compute_updates,
)

#: Characters of a line of text.
WIDTH = 120

TITLE = "The paper's theory, checked by numbers (arXiv 2604.12736)"

SYMBOLS = (
    "π: the policy at one position, over V actions (tokens). H: its entropy in nats. A: the sampled token's advantage. "
    "p: its probability. J: A times the token's log-probability; ∇: gradients in the logits. ΔH: entropy after "
    "an update minus that before. log p > -H: the token is likelier than the policy's typical one."
)

FOOTNOTES = (
    "Random policies: 32 actions, normal logits of a spread from 0.1 to 10; ΔH: measured, after a step.",
    "The nano run: six steps of TEPO without KL; ΔH over the eight updates of a step, in the same states.",
    "By chance: the share of equal signs if estimate and change had nothing to do with each other.",
)


@dataclass(frozen=True)
class Theory:
    """The checks, and the cases behind them for the figure."""

    seed: int
    checks: tuple[Check, ...]
    gradients: Gradients
    optima: Optima
    updates: Updates
    tokens: Tokens
    fits: tuple[RewardFit, ...]

    def to_dict(self) -> dict[str, Any]:
        """The checks as plain values, in the form of `--format json`."""
        return {
            "seed": self.seed,
            "checks": [check.to_dict() for check in self.checks],
            "reading": reading(self.checks),
            "runs": [fit.to_dict() for fit in self.fits],
        }

    def text(self) -> str:
        """A table with a line for each check: statement, among what, how many cases, how often it holds."""
        rows = [("Source", "Statement", "Among", "Holds", "Of", "Share", "")]
        for check in self.checks:
            values = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in check.values.items())
            share = _percent(check, "missing")
            rows.append((check.source, check.statement, check.among, str(check.holds), str(check.cases), share, values))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"{TITLE}. Seed {self.seed}.", ""]
        for row in rows:
            words = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            words[3:6] = [cell.rjust(width) for cell, width in zip(row[3:6], widths[3:6], strict=True)]
            lines.append("  ".join(words).rstrip())
        lines += ["", "What the numbers say"]
        for sentence in reading(self.checks):
            lines += wrap(sentence, WIDTH, subsequent_indent="  ")
        lines.append("")
        notes = [f"{check.source}: {check.note}." for check in self.checks if check.note]
        for note in (*notes, *FOOTNOTES, SYMBOLS):
            lines += wrap(note, WIDTH)
        return "\n".join(lines) + "\n"


def check_theory(home: Path, seed: int = 0) -> Theory:
    """Run every check. `home` has the runs to fit; nothing is written."""
    streams = [np.random.default_rng([seed, number]) for number in range(3)]
    gradients, optima = compute_gradients(streams[0]), compute_optima(streams[1])
    updates, tokens, fits = compute_updates(streams[2]), run_nano(seed), fit_runs(home)
    checks = (
        *check_gradients(gradients),
        *check_optima(optima),
        *check_updates(updates),
        *check_tokens(tokens),
        check_fits(fits, home),
    )
    return Theory(seed, checks, gradients, optima, updates, tokens, tuple(fits))


def reading(checks: Sequence[Check]) -> list[str]:
    """A sentence for each statement of the paper, with the counts behind it."""
    by_source: dict[str, list[Check]] = {}
    for check in checks:
        by_source.setdefault(check.source, []).append(check)
    printed, negated = by_source["Eq. 1"]
    (optimum,) = by_source["Lemma 3.1"]
    lemma, theorem = by_source["Lemma 3.2"][0], by_source["Theorem 3.1"][0]
    likely, unlikely = (
        next(check for check in by_source["Theorem 3.1"] if check.among == among)
        for among in ("log p > -H", "log p < -H")
    )
    agreement = ", ".join(
        f"{_counts(check)} {words} (by chance {100 * check.values['by_chance']:.1f} %)"
        for check, words in zip(by_source["Eq. 18, 19"], ("steps", "prompts", "tokens"), strict=True)
    )
    sentences = [
        f"Eq. 1 (gradient of the entropy): as printed it has autograd's sign in {_counts(printed)}; with a minus sign "
        f"before it, it is autograd's gradient in {_counts(negated)}.",
        f"Lemma 3.1 (the update is the optimum): the closed form is what an optimizer finds in {_counts(optimum)}.",
        f"Lemma 3.2 (A > 0 pushes the entropy down): true to first order of {_counts(lemma)}{_no_law(lemma)}: the sign "
        "depends on the token, not on A alone.",
        f"Theorem 3.1 (A > 0 implies ΔH < 0): true of {_counts(theorem)}{_no_law(theorem)}. It holds for "
        f"{_percent(likely)} of tokens likelier than the typical one and for {_percent(unlikely)} of those less "
        "likely: to make an unlikely token likelier spreads the policy.",
        f"Eq. 18, 19 (covariance estimate of ΔH): its sign is that of the measured ΔH in {agreement}. Where chance "
        "does as well, the estimate says nothing of the sign there.",
    ]
    (fit,) = by_source["R = -a exp(H) + b"]
    if fit.cases:
        sentences.append(
            f"R = -a exp(H) + b (reward bought with entropy): a > 0 in {_counts(fit)} runs, median R² "
            f"{fit.values['median_r_squared']:.2f}. Both move with the step, so a fit shows no cause."
        )
    return sentences


def _counts(check: Check) -> str:
    return f"{check.holds} of {check.cases}"


def _percent(check: Check, absent: str = "none") -> str:
    return absent if check.share is None else f"{100 * check.share:.1f} %"


def _no_law(check: Check) -> str:
    return "" if check.holds == check.cases else f" ({_percent(check)}), so no law"
