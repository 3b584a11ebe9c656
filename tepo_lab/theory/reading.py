"""What the checks say, in sentences for a reader who has not the paper at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tepo_lab.theory.check import Check

SYMBOLS = (
    "π: the policy at one position, over V actions (tokens). H: its entropy in nats. A: the sampled token's advantage. "
    "p: its probability. J: A times the token's log-probability; ∇: gradients in the logits. ΔH: entropy after "
    "an update minus that before. log p > -H: the token is likelier than the policy's typical one."
)


def reading(checks: Sequence[Check]) -> list[str]:
    """A sentence for each statement of the paper, with the counts behind it."""
    return list(_sentences(checks))


def _sentences(checks: Sequence[Check]) -> Iterator[str]:
    printed, turned = _of(checks, "Eq. 1")
    yield (
        f"Eq. 1 (gradient of the entropy): as printed it has autograd's sign in {_share(printed)}; with a minus sign "
        f"before it, it is autograd's gradient in {_share(turned)}."
    )
    (optimum,) = _of(checks, "Lemma 3.1")
    yield f"Lemma 3.1 (the update is the optimum): the closed form is what an optimizer finds in {_share(optimum)}."
    lemma = _of(checks, "Lemma 3.2")[0]
    yield (
        f"Lemma 3.2 (A > 0 pushes the entropy down): true to first order of {_share(lemma)}"
        f"{_law(lemma)}: the sign depends on the token, not on A alone."
    )
    theorem = _of(checks, "Theorem 3.1")
    likely, unlikely = (_among(theorem, words) for words in ("log p > -H", "log p < -H"))
    yield (
        f"Theorem 3.1 (A > 0 implies ΔH < 0): true of {_share(theorem[0])}{_law(theorem[0])}. It holds for "
        f"{_percent(likely)} of tokens likelier than the typical one and for {_percent(unlikely)} of those less "
        "likely: to make an unlikely token likelier spreads the policy."
    )
    steps, prompts, tokens = _of(checks, "Eq. 18, 19")
    yield (
        "Eq. 18, 19 (covariance estimate of ΔH): its sign is that of the measured ΔH in "
        + ", ".join(
            f"{_share(each)} {words} (by chance {100 * each.values['by_chance']:.1f} %)"
            for each, words in ((steps, "steps"), (prompts, "prompts"), (tokens, "tokens"))
        )
        + ". Where chance does as well, the estimate says nothing of the sign there."
    )
    (fit,) = _of(checks, "R = -a exp(H) + b")
    if fit.cases:
        yield (
            f"R = -a exp(H) + b (reward bought with entropy): a > 0 in {_share(fit)} runs, median R² "
            f"{fit.values['median_r_squared']:.2f}. Both move with the step, so a fit shows no cause."
        )


def _of(checks: Sequence[Check], source: str) -> list[Check]:
    return [check for check in checks if check.source == source]


def _among(checks: Sequence[Check], words: str) -> Check:
    return next(check for check in checks if check.among == words)


def _share(check: Check) -> str:
    return f"{check.holds} of {check.cases}"


def _percent(check: Check) -> str:
    return "none" if check.share is None else f"{100 * check.share:.1f} %"


def _law(check: Check) -> str:
    return "" if check.holds == check.cases else f" ({_percent(check)}), so no law"
