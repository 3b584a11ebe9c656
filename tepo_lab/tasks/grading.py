"""Is a response's final answer the gold one? The last box counts, compared after normalising."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Changes whenever a grade could change; recorded with every generation.
GRADER = "boxed-exact-1"

How = Literal["exact", "none"]

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_INTEGER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class Grade:
    """`correct` is 0 or 1; `extracted` the answer found, if any; `how` the stage that decided."""

    correct: int
    extracted: str | None
    how: How


def grade(response: str, answer: str) -> Grade:
    """Grade a response by its last box. No box is wrong."""
    extracted = last_boxed(response)
    if extracted is None:
        return Grade(0, None, "none")
    return Grade(int(normalised(extracted) == normalised(answer)), extracted, "exact")


def grade_all(responses: Sequence[str], answers: Sequence[str]) -> list[Grade]:
    """Grade each response against the answer at the same place."""
    return [grade(response, answer) for response, answer in zip(responses, answers, strict=True)]


def last_boxed(text: str) -> str | None:
    r"""The contents of the last closed ``\boxed{...}``, braces balanced; None when there is none."""
    for opening in reversed(list(_BOX.finditer(text))):
        depth = 1
        for place in range(opening.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[opening.end() : place]
    return None


def normalised(answer: str) -> str:
    """An answer as it is compared: no outer space or dollar signs, whole numbers in plain decimal form."""
    stripped = answer.strip().strip("$").strip().rstrip(".").strip()
    if _INTEGER.fullmatch(stripped) and stripped.isascii() and len(stripped) < 4000:
        return str(int(stripped))
    return " ".join(stripped.split())
