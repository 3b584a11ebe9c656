"""Grades the lines of a file of responses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tepo_lab.errors import DataError
from tepo_lab.tasks.answers import Form
from tepo_lab.tasks.grading import Grader, grade_all
from tepo_lab.tasks.tables import numbered_json_lines

#: Lines graded at once, so that the first come out before the last are read.
BATCH = 512


def grade_lines(file: Path, form: Form) -> Iterator[str]:
    """JSON lines with `correct`, `extracted` and `how`, one for each line of `file`, in order.

    Args: `file` holds JSON lines with `text` (a response) and `answer` (the gold answer), strings or numbers.
    Raises `DataError` for a missing file, a line that is no JSON object, or one without text or answer.
    """
    if not file.is_file():
        raise DataError(f"{file}: no such file; name a file of JSON lines with text and answer.")
    lines = numbered_json_lines(file)
    for number, row in lines:
        for key in ("text", "answer"):
            value = row.get(key)
            if value is None:
                raise DataError(f"{file}: line {number} has no {key!r}; every line needs text and answer.")
            if isinstance(value, bool) or not (
                isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
            ):
                shown = json.dumps(value)[:40]
                raise DataError(f"{file}: line {number} has {key!r}: {shown}; it must be a string or a finite number.")
    remaining = (row for _, row in lines)
    while batch := list(islice(remaining, BATCH)):
        texts, answers = ([str(row[key]) for row in batch] for key in ("text", "answer"))
        for grade in grade_all(texts, answers, Grader(form)):
            yield json.dumps({"correct": grade.correct, "extracted": grade.extracted, "how": grade.how})
