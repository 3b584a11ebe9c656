"""A question with a checkable answer: what training and evaluation both consume."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One problem.

    `id` is unique within its data set; `prompt` is the text given to the model (before any chat template);
    `answer` is the gold answer as text.
    """

    id: str
    prompt: str
    answer: str
