"""The program of a grading worker: reads pairs of answers, writes whether they are the same mathematics.

It runs as a process of its own (see `tepo_lab.tasks.verifier`), because nothing inside a process can bound what a tower
of powers does to it. One JSON object a line each way: `{"gold": ..., "given": ...}` is answered by `{"equal": ...}`.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import resource
import signal
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TextIO

#: What a worker may take of memory beyond which an answer counts as different.
MEMORY_BYTES = 3 << 30

#: Numbers are compared to six decimals, as math-verify does.
_ROUNDING = Fraction(1, 1_000_000)

_FRACTION = re.compile(
    r"(-?)(?:\\[dt]?frac\s*\{([0-9]{1,99})\}\s*\{([0-9]{1,99})\}|([0-9]{1,99})/([0-9]{1,99})"
    r"|([0-9]{1,99}(?:\.[0-9]{1,99})?))"
)

#: Pairs that load what the first real ones would otherwise wait for.
_WARM_UP = (
    ("x^2+1", "1+x^2"),
    (r"\frac{1}{2}+0", "0.5+0"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    ("1,2", "2,1"),
    ("(1,2)", "[1,2]"),
    (r"\frac{\sqrt{3}+1}{2}", r"3\pi-2^{10}"),
    (r"x=\frac{5}{2}", r"n^{2}+n\sqrt{n}-\frac{n}{2}"),
    (r"\left(\frac{1}{2},\frac{\sqrt{3}}{2}\right)", r"\{1,2,3\}"),
    (r"(-\infty,3]\cup[5,\infty)", r"\log_2 3+\sin x"),
)

#: Formulas of the kinds that answers have. The parser learns its table from what it reads, and most of a formula's time
#: goes into what it has not met.
_KINDS = (
    r"-\frac{\sqrt{3}}{3}+\frac{\pi}{6}, \frac{7 \pi}{6}",
    r"\frac{2\sqrt{5}-3}{4\pi}",
    r"\frac{a^{2}+b^{2}-c^{2}}{2 a b}",
    r"\frac{n(n+1)(2 n+1)}{6}",
    r"\frac{(n-1)^{2}}{4}-\frac{n!}{2^{n}}",
    r"2^{n-1}+(-1)^{n}\left(\frac{3}{2}\right)^{k+1}-1",
    r"3 \cdot 2^{100}-5 \cdot 7^{2}",
    r"e^{-\frac{t}{R C}}\left(1-e^{2 x}\right)",
    r"x_{1} x_{2}+y_{n}^{2}-v_{0} t+\frac{1}{2} g t^{2}",
    r"y=-\frac{1}{2} x+3",
    r"\sin \theta \cos (2 \theta)+\tan ^{-1}\left(\frac{1}{3}\right)",
    r"0 \leq x \leq \frac{1}{2}",
    r"\left(-\infty,-\frac{1}{2}\right) \cup(0,2] \cup\{5\}",
    r"(2,3,7),(1,-1,0)",
    r"\left(\frac{3}{2}, \sqrt{2}\right),\left(-1, \frac{\pi}{4}\right)",
    r"(x+1)(x-2)^{2}\left(x^{2}+1\right)",
)


def main(own_deadline: float) -> None:
    """Serve until standard input ends.

    Args: `own_deadline`, seconds of its own time that an answer takes before the kernel ends this process whoever looks
    after it: a parent that was killed cannot.
    """
    # An interrupt at the terminal is the parent's to answer; the alarm must end this process, not raise in it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    replies = _private_output()
    logging.disable(logging.CRITICAL)
    try:
        _let_prediction_be_chosen()
        _read_numbers_once()
        for gold, given in _WARM_UP:
            _equal(gold, given)
        for answer in _KINDS:
            _parsed(answer)
    except ImportError as error:
        _say(replies, {"error": f"{type(error).__name__}: {error}"})
        return
    _limit_resources()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    _say(replies, {"ready": True})
    for line in sys.stdin:
        pair = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, own_deadline)
        equal = _equal(pair["gold"], pair["given"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(replies, {"equal": equal})


def _equal(gold: str, given: str) -> bool:
    from math_verify import verify

    fractions = _fraction(gold), _fraction(given)
    if fractions[0] is not None and fractions[1] is not None:
        return abs(fractions[0] - fractions[1]) <= _ROUNDING
    try:
        left, right = _parsed(gold), _parsed(given)
        if _clearly_different(left, right):
            return False
        # Its own timeouts are off: they raise away from a main thread, and do not stop arithmetic in C.
        return bool(verify(left, right, timeout_seconds=None))
    except ImportError:
        raise
    except BaseException:  # noqa: BLE001 - whatever a hostile answer brings about, it is not the gold one
        return False


def _fraction(answer: str) -> Fraction | None:
    """The value of a plain fraction or decimal number."""
    found = _FRACTION.fullmatch(answer.strip().strip("$").strip())
    if found is None:
        return None
    sign, upper, lower, numerator, denominator, decimal = found.groups()
    if decimal is not None:
        return Fraction(sign + decimal)
    bottom = int(lower or denominator)
    return Fraction(int(sign + (upper or numerator)), bottom) if bottom else None


def _clearly_different(gold: list[Any], given: list[Any]) -> bool:
    """Whether two parsed answers are expressions whose values differ at a point: no simplifying makes them equal.

    False decides nothing. Most wrong answers are told apart here, in a tenth of the time.
    """
    from sympy import Expr, Symbol  # type: ignore[import-untyped]

    if len(gold) != 2 or len(given) != 2 or gold[1] == given[1]:
        return False
    left, right = gold[0], given[0]
    if not all(isinstance(each, Expr) and not isinstance(each, Symbol) for each in (left, right)):
        return False
    names = sorted({symbol.name for symbol in left.free_symbols | right.free_symbols})
    point = {name: 0.37 + 0.61 * place for place, name in enumerate(names)}
    values = []
    try:
        for each in (left, right):
            value = each.subs({symbol: point[symbol.name] for symbol in each.free_symbols}).evalf()
            # A Float has any exponent; a complex number has those of the hardware.
            values.append(value if value.is_Float else complex(value))
        return bool(abs(values[0] - values[1]) > 1e-4 * max(1, *map(abs, values)))
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return False


@lru_cache(maxsize=2048)
def _parsed(answer: str) -> list[Any]:
    """The expression and the text that math-verify reads; the text alone where it reads no expression."""
    from antlr4.atn.PredictionMode import PredictionMode  # type: ignore[import-untyped]
    from math_verify import LatexExtractionConfig, parse

    number = _number(answer)
    if number:
        return number
    target = [LatexExtractionConfig(boxed_match_priority=0)]
    found: list[Any] = []
    # The parser's short look-ahead is several times faster, right where it succeeds, and fails on some: those are read
    # again with the full one.
    for _prediction[0] in (PredictionMode.SLL, PredictionMode.LL):
        found = list(parse("\\boxed{" + answer + "}", extraction_config=target, parsing_timeout=None))
        if len(found) > 1:
            break
    return found


def _number(answer: str) -> list[Any]:
    """What the parser makes of a plain fraction or decimal number, without the parser; empty for anything else."""
    from sympy import Integer, Number, Rational

    text = answer.strip().strip("$").strip()
    found = _FRACTION.fullmatch(text)
    if found is None:
        return []
    sign, upper, lower, numerator, denominator, decimal = found.groups()
    if decimal == "0.5":
        # The parser's one exception: it reads a fraction here.
        return []
    if decimal is not None:
        value = Number(decimal.lstrip("0") or "0") if "." in decimal else Integer(decimal)
        return [-value if sign else value, text]
    top, bottom = int(sign + (upper or numerator)), int(lower or denominator)
    if not bottom:
        return []
    shown = f"{sign}\\frac{{{upper}}}{{{lower}}}" if upper else f"\\frac{{{sign}{numerator}}}{{{denominator}}}"
    return [Rational(top, bottom), shown]


#: The look-ahead that parsers are made with from now on.
_prediction: list[Any] = [None]


def _let_prediction_be_chosen() -> None:
    """Has the LaTeX parser take its look-ahead from `_prediction`, and spares it where only one alternative can be.

    It has no setting for either.
    """
    from latex2sympy2_extended import latex2sympy2

    decisions = _decisions(latex2sympy2.PSParser)

    class Parser(latex2sympy2.PSParser):  # type: ignore[misc]
        def __init__(self, tokens: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(tokens, *arguments, **options)
            self._interp.predictionMode = _prediction[0]
            predict = self._interp.adaptivePredict
            tokens.fill()
            present = {token.type for token in tokens.tokens}

            def chosen(stream: Any, decision: int, context: Any) -> int:
                alternatives = enumerate(decisions.get(decision, ()), 1)
                possible = [number for number, each in alternatives if each.is_possible(stream, present)]
                return possible[0] if len(possible) == 1 else predict(stream, decision, context)

            self._interp.adaptivePredict = chosen

    latex2sympy2.PSParser = Parser


def _read_numbers_once() -> None:
    """Has the converter remember the numbers it has met: it imports all of SymPy by name to read a single digit."""
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy

    read = _Latex2Sympy.parse_number
    # It takes nothing from the converter.
    remembered = lru_cache(maxsize=2048)(lambda text: read(None, text))
    _Latex2Sympy.parse_number = lambda converter, text: remembered(text)


@dataclass(frozen=True)
class _Alternative:
    """What is known of a grammar's alternative without reading a formula by it.

    `first`: tokens that it begins with; `needed`: those of which it needs one; `brackets`: of one that ends with the
    bracket it begins with, (opening, closing, what may follow).
    """

    first: Any
    needed: frozenset[int]
    brackets: tuple[frozenset[int], frozenset[int], frozenset[int]] | None

    def is_possible(self, stream: Any, present: set[int]) -> bool:
        """False only where the rest of `stream`, whose tokens are among `present`, cannot be read by it."""
        if stream.LA(1) not in self.first or (self.needed and not self.needed & present):
            return False
        return self.brackets is None or _ends_with_its_bracket(stream, *self.brackets)


def _ends_with_its_bracket(
    stream: Any, opening: frozenset[int], closing: frozenset[int], following: frozenset[int]
) -> bool:
    """Whether what closes the bracket that the stream begins with has one of `following` behind it.

    True where that cannot be said: there is no bracket, or nothing closes it.
    """
    depth, place = 0, 1
    while (token := stream.LA(place)) in opening or depth:
        if token < 0:
            return True
        depth += (token in opening) - (token in closing)
        place += 1
        if depth == 0:
            return stream.LA(place) in following
    return True


def _decisions(parser: Any) -> dict[int, list[_Alternative]]:
    """The alternatives of those decisions of the grammar that look ahead to the end of a formula.

    They tell a list of answers from what has a plus-minus or a membership sign in it, and a tuple from a factor in
    brackets. What the parser learns there serves no other formula, and takes most of its time.
    """
    names = [name for name in vars(parser) if name.startswith(("L_BRA", "L_PAR", "L_GROUP"))]
    opening = frozenset(getattr(parser, name) for name in names)
    closing = frozenset(getattr(parser, "R" + name[1:]) for name in names)
    membership = frozenset({parser.IN, parser.ASSIGNMENT})
    brackets = (opening, closing, closing | membership | {parser.COMMA, parser.SEMICOLON, parser.EOF})
    needed = {
        "plus_minus_expr": frozenset({parser.PLUS_MINUS}),
        "set_elements_relation": membership,
        # Without one of these it is a single set, which set_elements reads too; of two readings the first is taken.
        "set_relation": membership
        | {parser.NOTIN, parser.SUPSET, parser.SUBSET, parser.SET_MINUS, parser.UNION, parser.INTERSECTION},
    }
    found: dict[int, list[_Alternative]] = {}
    for state in parser.atn.decisionToState:
        if parser.ruleNames[state.ruleIndex] not in ("math", "element", "element_no_relation"):
            continue
        rules = [each.target.transitions[0] for each in state.transitions]
        if not all(hasattr(rule, "ruleIndex") for rule in rules):
            continue
        found[state.decision] = [
            _Alternative(
                parser.atn.nextTokens(rule.target),
                needed.get(name, frozenset()),
                brackets if name == "set_atom" else None,
            )
            for rule in rules
            for name in [parser.ruleNames[rule.ruleIndex]]
        ]
    return found


def _private_output() -> TextIO:
    """Standard output under another number; what libraries print goes nowhere."""
    private = os.fdopen(os.dup(1), "w", encoding="ascii")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return private


def _limit_resources() -> None:
    """No file can be written, no process started, no core dumped, no more memory taken than allowed."""
    limits = {
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _say(stream: TextIO, values: dict[str, Any]) -> None:
    stream.write(json.dumps(values) + "\n")
    stream.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
