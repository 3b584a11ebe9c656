"""How many answers a second are graded: by text and numbers, and by mathematics where those do not tell."""

# ruff: noqa: T201 - a program that prints
from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tepo_lab.tasks.answers import plainly_equal
from tepo_lab.tasks.grading import Grade, grade_all
from tepo_lab.tasks.verifier import MAX_WORKERS, shared_verifier

EXACT_ANSWERS, EXACT_TARGET = 20_000, 512
SYMBOLIC_ANSWERS, SYMBOLIC_TARGET = 600, 60

#: (gold, given, whether they are the same).
Pair = tuple[str, str, bool]

#: An answer in two forms, from four numbers: p and k of at least 2, q and r of at least 3, r no square.
Kind = Callable[[int, int, int, int], tuple[str, str]]

KINDS: dict[str, Kind] = {
    "fraction": lambda p, q, r, k: (rf"\frac{{{p}}}{{{q * r}}}", rf"\frac{{{k * p}}}{{{k * q * r}}}"),
    "radical": lambda p, q, r, k: (rf"{p}\sqrt{{{r}}}", rf"\sqrt{{{p * p * r}}}"),
    "sum with a radical": lambda p, q, r, k: (
        rf"\frac{{{p}+{k}\sqrt{{{r}}}}}{{{q}}}",
        rf"\frac{{{p}}}{{{q}}}+\frac{{{k}\sqrt{{{r}}}}}{{{q}}}",
    ),
    "angle": lambda p, q, r, k: (rf"\frac{{{p} \pi}}{{{q}}}-{r}", rf"-{r}+\frac{{{k * p} \pi}}{{{k * q}}}"),
    "power": lambda p, q, r, k: (rf"{p} \cdot 2^{{{q}}}-{k}", rf"-{k}+2^{{{q}}} \cdot {p}"),
    "tuple": lambda p, q, r, k: (
        rf"\left({p}, \frac{{{q}}}{{{r}}}\right)",
        rf"({p}, \frac{{{k * q}}}{{{k * r}}})",
    ),
    "set": lambda p, q, r, k: (rf"\{{-{p}, 0, {q}\}}", rf"\{{{q}, -{p}, 0\}}"),
    "interval": lambda p, q, r, k: (
        rf"(-\infty, -{p}) \cup [\frac{{{q}}}{{{r}}}, \infty)",
        rf"[\frac{{{k * q}}}{{{k * r}}}, \infty) \cup (-\infty, -{p})",
    ),
    "equation": lambda p, q, r, k: (rf"y=\frac{{{p}}}{{{q}}} x+{r}", rf"y={r}+\frac{{{k * p} x}}{{{k * q}}}"),
    "polynomial": lambda p, q, r, k: (f"(x+{p})(n-{q})", f"n x-{q} x+{p} n-{p * q}"),
    "function": lambda p, q, r, k: (rf"{p} e^{{{k} t}}-\sin({q} t)", rf"-\sin({q} t)+{p} e^{{{k} t}}"),
}


def symbolic_pairs(count: int, seed: int = 0) -> list[Pair]:
    """As many pairs of every kind, none twice, that text and numbers do not decide; every second one different."""
    random, kinds, made = Random(seed), list(KINDS.values()), dict[tuple[str, str], bool]()
    while len(made) < count:
        kind, is_same = kinds[len(made) // 2 % len(kinds)], len(made) % 2 == 0
        p, q, k = random.randrange(2, 100), random.randrange(3, 100), random.randrange(2, 10)
        r = random.choice([number for number in range(3, 100) if round(number**0.5) ** 2 != number])
        gold, given = kind(p, q, r, k)[0], kind(p if is_same else p + 1, q, r, k)[1]
        if plainly_equal(given, gold) is None:
            made.setdefault((gold, given), is_same)
    return [(gold, given, is_same) for (gold, given), is_same in made.items()]


def exact_pairs(count: int, seed: int = 0) -> list[Pair]:
    """Numbers written in several ways, every second one different."""
    random = Random(seed)
    pairs = []
    for place in range(count):
        gold, is_same = random.randrange(1000, 10**6), place % 2 == 0
        given = gold if is_same else gold + 1
        written = (f"{given}", f"{given:,}", f"${given}.0$", rf"{given}\text{{ km}}")[place // 2 % 4]
        pairs.append((str(gold), written, is_same))
    return pairs


def grading_rates() -> dict[str, Any]:
    """Answers graded in a second of wall time, on all cores that this process may use (the pool has at most eight)."""
    exact, grades = _rate(exact_pairs(EXACT_ANSWERS), EXACT_TARGET)
    _check(grades, "exact")
    print(f"exact answers: {exact['per_s']:,.0f} a second (target {EXACT_TARGET})", flush=True)
    workers = min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    began = time.perf_counter()
    shared_verifier().verdicts([("a+1", "1+a")] * workers)
    start = time.perf_counter() - began
    symbolic, grades = _rate(symbolic_pairs(SYMBOLIC_ANSWERS), SYMBOLIC_TARGET)
    _check(grades, "symbolic")
    with_start = symbolic["answers"] / (symbolic["wall_s"] + start)
    symbolic |= {"workers": shared_verifier().started, "start_s": start, "per_s_with_start": with_start}
    print(
        f"symbolic answers, none seen before: {symbolic['per_s']:.0f} a second with {workers} workers (target "
        f"{SYMBOLIC_TARGET}), {with_start:.0f} with the {start:.1f} s of their start; {symbolic['as_made']} of "
        f"{symbolic['answers']} graded as they were made",
        flush=True,
    )
    return {"exact": exact, "symbolic": symbolic}


def _rate(pairs: Sequence[Pair], target: int) -> tuple[dict[str, Any], list[Grade]]:
    responses = [f"So the answer is \\boxed{{{given}}}." for _, given, _ in pairs]
    began = time.perf_counter()
    grades = grade_all(responses, [gold for gold, _, _ in pairs])
    wall = time.perf_counter() - began
    as_made = sum(grade.correct == is_same for grade, (_, _, is_same) in zip(grades, pairs, strict=True))
    figures = {"answers": len(pairs), "wall_s": wall, "per_s": len(pairs) / wall, "target_per_s": target}
    return figures | {"as_made": as_made}, grades


def _check(grades: Sequence[Grade], how: str) -> None:
    others = [grade for grade in grades if grade.how != how]
    if others:
        raise RuntimeError(f"{len(others)} answers were not graded by the {how} stage: {others[0]}")
