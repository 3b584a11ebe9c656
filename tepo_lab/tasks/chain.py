"""The embedded task: a running total modulo 100, and demonstrations of ways to answer it.

A prompt such as ``a59b*3c+4=`` starts from a two-digit number and applies one operation per further term, each
with an index letter, an operator and one digit. The answer is the total after the last term, always in two digits.
A response may jump straight to ``\\boxed{81}``, or reason term by term, short (``b=77c=81``) or in long hand
(``b59*3=77c77+4=81``), before the box.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count as count_from
from typing import Literal

from tepo_lab.errors import DataError
from tepo_lab.schema.problem import Problem

Split = Literal["train", "validation", "test"]

LETTERS = "abcdefghijklmno"
DIGITS = {"+": "123456789", "-": "123456789", "*": "2345"}
"""The digits that may follow each operator; larger multipliers sharing factors with 100 would flatten the answers."""

MAX_TERMS = len(LETTERS) - 1
SPLIT_SHARES: dict[Split, int] = {"train": 70, "validation": 10, "test": 20}
"""Hundredths of all prompts that belong to each split."""

_PROMPT = re.compile(r"a(\d\d)((?:[b-o][-+*]\d)+)=")
_TERM = re.compile(r"([b-o])([-+*])(\d)")


@dataclass(frozen=True)
class ChainTask:
    """A family of problems: how many terms, which operators, and the seed of the stream they are drawn from.

    Attributes:
        terms: numbers of terms after the starting number, one drawn uniformly per problem (an int means just that).
        operators: sets of operators, one set drawn uniformly per problem (a string means just that set).
        times_share: how often ``*`` is drawn for each time that another operator of the set is.
        seed: distinguishes streams; it never moves a prompt from one split to another.
    """

    terms: int | tuple[int, ...] = (3, 4, 5, 6, 7, 8)
    operators: str | tuple[str, ...] = ("+-", "+-*")
    times_share: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", (self.terms,) if isinstance(self.terms, int) else tuple(self.terms))
        operators = (self.operators,) if isinstance(self.operators, str) else tuple(self.operators)
        object.__setattr__(self, "operators", operators)
        if not self._terms or not all(1 <= terms <= MAX_TERMS for terms in self._terms):
            raise DataError(f"chain task: terms is {self._terms}, give numbers from 1 to {MAX_TERMS}")
        if not operators or not all(chosen and set(chosen) <= set(DIGITS) for chosen in operators):
            raise DataError(f"chain task: operators is {operators}, give strings made of +, - and *, such as '+-*'")
        if self.times_share <= 0:
            raise DataError(f"chain task: times_share is {self.times_share}, give a positive number")

    @property
    def _terms(self) -> tuple[int, ...]:
        assert isinstance(self.terms, tuple)
        return self.terms

    def problem(self, split: Split, position: int) -> Problem:
        """The problem at one position of a split's endless stream; positions are independent of each other."""
        for attempt in count_from():
            prompt = self._draw(f"{self.seed}/{split}/{position}/{attempt}")
            if split_of(prompt) == split:
                return Problem(id=f"chain-{_digest(prompt).hex()[:16]}", prompt=prompt, answer=answer_of(prompt))
        raise AssertionError("unreachable: the stream of attempts is endless")

    def problems(self, split: Split, start: int, count: int) -> list[Problem]:
        """Positions start to start + count of a split's stream. A prompt may come again, far apart."""
        return [self.problem(split, position) for position in range(start, start + count)]

    def distinct(self, split: Split, count: int) -> list[Problem]:
        """The first `count` different problems of a split's stream: the fixed list of a benchmark.

        Raises:
            DataError: the split has not so many, judging from 20 draws per problem asked.
        """
        problems: dict[str, Problem] = {}
        for position in range(20 * count):
            problem = self.problem(split, position)
            problems.setdefault(problem.id, problem)
            if len(problems) == count:
                return list(problems.values())
        raise DataError(
            f"chain task: {self.terms} terms give only {len(problems)} different {split} problems, {count} asked; "
            "ask for fewer, or for more terms"
        )

    def _draw(self, key: str) -> str:
        """A prompt from a key, by hashing, so that it is the same under every version of Python and numpy."""
        entropy = int.from_bytes(hashlib.sha512(key.encode()).digest(), "big")

        def below(limit: int) -> int:
            nonlocal entropy
            entropy, choice = divmod(entropy, limit)
            return choice

        terms = self._terms[below(len(self._terms))]
        operators = self.operators[below(len(self.operators))]
        prompt = f"a{10 + below(90)}"
        for letter in LETTERS[1 : terms + 1]:
            operator = self._weighted(operators, below(2**20) / 2**20)
            prompt += letter + operator + DIGITS[operator][below(len(DIGITS[operator]))]
        return prompt + "="

    def _weighted(self, operators: str, position: float) -> str:
        """The operator at a position in [0, 1) when ``*`` takes `times_share` times the room of another."""
        rooms = [self.times_share if operator == "*" else 1.0 for operator in operators]
        position *= sum(rooms)
        for operator, room in zip(operators, rooms, strict=True):
            if position < room:
                return operator
            position -= room
        return operators[-1]


@dataclass(frozen=True)
class DemonstrationStyle:
    """How demonstrations are written: the mixture that a base model is given to imitate.

    Attributes:
        jump_high, jump_low: probability of jumping straight to the answer when the starting number begins with 1
            and with 9; it falls linearly in between.
        long_hand: share of long-hand steps, by chain or, in a mixed chain, by step.
        mixed: share of the reasoned chains in which each step chooses its own hand.
        slip: probability that a step's total is wrong by 1 or 10; the chain goes on from the wrong total.
    """

    jump_high: float = 0.95
    jump_low: float = 0.35
    long_hand: float = 0.4
    mixed: float = 0.25
    slip: float = 0.04

    def reasoned(self) -> DemonstrationStyle:
        """The same hands, always reasoned and without slips."""
        return DemonstrationStyle(0.0, 0.0, self.long_hand, self.mixed, 0.0)

    def jump(self, prompt: str) -> float:
        """Probability of a jump for a prompt."""
        leading = int(prompt[1])
        return self.jump_high + (self.jump_low - self.jump_high) * (leading - 1) / 8


def demonstration(prompt: str, style: DemonstrationStyle, draw: random.Random) -> str:
    """A response to a prompt in a style, ending in the box. A jump boxes the true answer."""
    if draw.random() < style.jump(prompt):
        return boxed(answer_of(prompt))
    mixed = draw.random() < style.mixed
    chain_long_hand = draw.random() < style.long_hand
    total, steps = _parse(prompt)
    written = []
    for letter, operator, digit in steps:
        long_hand = draw.random() < style.long_hand if mixed else chain_long_hand
        before, total = total, _apply(total, operator, digit)
        if draw.random() < style.slip:
            total = (total + draw.choice((-10, -1, 1, 10))) % 100
        written.append(f"{letter}{before:02d}{operator}{digit}={total:02d}" if long_hand else f"{letter}={total:02d}")
    return "".join(written) + boxed(f"{total:02d}")


def demonstrations(
    task: ChainTask, style: DemonstrationStyle, seed: int, batch_size: int
) -> Iterator[list[tuple[str, str]]]:
    """Endless batches of (prompt, response) pairs over the training split of a task."""
    draw = random.Random(seed)
    for batch in count_from():
        problems = task.problems("train", batch * batch_size, batch_size)
        yield [(problem.prompt, demonstration(problem.prompt, style, draw)) for problem in problems]


def answer_of(prompt: str) -> str:
    """The running total after the last term, two digits.

    Raises:
        DataError: the text is not a prompt of this task.
    """
    total, steps = _parse(prompt)
    for _, operator, digit in steps:
        total = _apply(total, operator, digit)
    return f"{total:02d}"


def split_of(prompt: str) -> Split:
    """The one split a prompt belongs to, by the hash of its text."""
    bucket = int.from_bytes(_digest("split/" + prompt), "big") % 100
    for split, share in SPLIT_SHARES.items():
        if bucket < share:
            return split
        bucket -= share
    raise AssertionError("unreachable: the shares add up to 100")


def boxed(answer: str) -> str:
    """An answer in the box that the grader reads."""
    return "\\boxed{" + answer + "}"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _parse(prompt: str) -> tuple[int, list[tuple[str, str, int]]]:
    match = _PROMPT.fullmatch(prompt)
    if match is None:
        raise DataError(f"chain task: {prompt!r} is not a prompt of this task, which look like 'a59b*3c+4='")
    steps = [(letter, operator, int(digit)) for letter, operator, digit in _TERM.findall(match.group(2))]
    return int(match.group(1)), steps


def _apply(total: int, operator: str, digit: int) -> int:
    if operator == "+":
        return (total + digit) % 100
    if operator == "-":
        return (total - digit) % 100
    return total * digit % 100
