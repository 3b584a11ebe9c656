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
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, TextIO

#: What a worker may take of memory beyond which an answer counts as different.
MEMORY_BYTES = 3 << 30

#: Numbers are compared to six decimals, as math-verify does.
_ROUNDING = Fraction(1, 1_000_000)

_FRACTION = re.compile(
    r"(-?)(?:\\[dt]?frac\s*\{([0-9]{1,99})\}\s*\{([0-9]{1,99})\}|([0-9]{1,99})/([0-9]{1,99})"
    r"|([0-9]{1,99}(?:\.[0-9]{1,99})?))"
)

#: Answers of the usual kinds, each compared with the next before the first real one: they load what is imported late,
#: and the parser learns its table from what it reads.
_WARM_UP = (
    r"\frac{\sqrt{3}+1}{2}",
    r"-\frac{\sqrt{3}}{3}+\frac{\pi}{6}, \frac{7 \pi}{6}",
    r"3\pi-2^{10}, \sqrt{8}",
    r"\frac{a^{2}+b^{2}-c^{2}}{2 a b}",
    r"2^{n-1}+(-1)^{n}\left(\frac{3}{2}\right)^{k+1}-\frac{n!}{2}",
    r"e^{-\frac{t}{R C}}\left(1-e^{2 x}\right)",
    r"x_{1} x_{2}+y_{n}^{2}-v_{0} t+\frac{1}{2} g t^{2}",
    r"y=-\frac{1}{2} x+3",
    r"x=\frac{5}{2}",
    r"\sin \theta \cos (2 \theta)+\tan ^{-1}\left(\frac{1}{3}\right)+\log_2 3",
    r"0 \leq x \leq \frac{1}{2}",
    r"\left(-\infty,-\frac{1}{2}\right) \cup(0,2] \cup\{5\}",
    r"(-\infty,3]\cup[5,\infty)",
    r"(2,3,7),(1,-1,0)",
    r"\left(\frac{3}{2}, \sqrt{2}\right),\left(-1, \frac{\pi}{4}\right)",
    r"(x+1)(x-2)^{2}\left(x^{2}+1\right)",
    "1+x^2",
)

#: How far the parsers that are made look ahead: one of ANTLR's prediction modes.
_look_ahead: list[Any] = [None]


def main(deadline: float) -> None:
    """Serve until standard input ends, or an answer takes `deadline` seconds of this process's own CPU time.

    Then the kernel ends the process with SIGPROF, whatever it is at and whether or not its parent lives.
    """
    # An interrupt at the terminal is the parent's to answer; the alarm must end this process, not raise in it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    replies = _private_output()
    logging.disable(logging.CRITICAL)
    try:
        _use_look_ahead()
        for gold, given in pairwise(_WARM_UP):
            _equal(gold, given)
    except ImportError as error:
        _write(replies, {"error": f"{type(error).__name__}: {error}"})
        return
    _limit_resources()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    _write(replies, {"ready": True})
    for line in sys.stdin:
        pair = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, deadline)
        equal = _equal(pair["gold"], pair["given"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(replies, {"equal": equal})


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
    except BaseException:  # noqa: BLE001 - whatever a hostile answer raises, it is not the gold one
        return False


def _fraction(answer: str) -> Fraction | None:
    """The value of a plain fraction or decimal number."""
    match = _FRACTION.fullmatch(answer.strip().strip("$").strip())
    if match is None:
        return None
    sign, upper, lower, numerator, denominator, decimal = match.groups()
    if decimal is not None:
        return Fraction(sign + decimal)
    bottom = int(lower or denominator)
    return Fraction(int(sign + (upper or numerator)), bottom) if bottom else None


def _clearly_different(gold: list[Any], given: list[Any]) -> bool:
    """Whether two parsed answers are expressions whose values differ at a point: no simplifying makes them equal.

    False decides nothing. Most wrong answers are rejected here, in a tenth of the time.
    """
    from sympy import Expr, Symbol  # type: ignore[import-untyped]

    if len(gold) != 2 or len(given) != 2 or gold[1] == given[1]:
        return False
    left, right = gold[0], given[0]
    if not all(isinstance(side, Expr) and not isinstance(side, Symbol) for side in (left, right)):
        return False
    names = sorted({symbol.name for symbol in left.free_symbols | right.free_symbols})
    point = {name: 0.37 + 0.61 * place for place, name in enumerate(names)}
    values = []
    try:
        for side in (left, right):
            value = side.subs({symbol: point[symbol.name] for symbol in side.free_symbols}).evalf()
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

    target = [LatexExtractionConfig(boxed_match_priority=0)]
    result: list[Any] = []
    # ANTLR's two-stage parsing: the short look-ahead is right where it succeeds; what it fails on is read with the full
    # one, which alone would halve the rate of grading.
    for _look_ahead[0] in (PredictionMode.SLL, PredictionMode.LL):
        result = list(parse("\\boxed{" + answer + "}", extraction_config=target, parsing_timeout=None))
        if len(result) > 1:
            break
    return result


def _use_look_ahead() -> None:
    """Has the parsers of latex2sympy, which has no setting for it, look ahead as far as `_look_ahead` has it."""
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy

    create = _Latex2Sympy.create_parser

    def create_parser(converter: Any, text: str) -> Any:
        parser = create(converter, text)
        parser._interp.predictionMode = _look_ahead[0]
        return parser

    _Latex2Sympy.create_parser = create_parser


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


def _write(stream: TextIO, values: dict[str, Any]) -> None:
    stream.write(json.dumps(values) + "\n")
    stream.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
