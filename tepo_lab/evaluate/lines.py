"""Grades the lines of a file of responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tepo_lab.errors import DataError
from tepo_lab.tasks.answers import Form
from tepo_lab.tasks.grading import Grader, grade_all
from tepo_lab.tasks.tables import json_lines

#: Lines graded at once, so that the first come out before the last are read.
BATCH = 512


def grade_lines(file: Path, form: Form) -> Iterator[str]:
    """JSON lines with `correct`, `extracted` and `how`, one for each line of `file`, in order.

    Args: `file` holds JSON lines with `text` (a response) and `answer` (the gold answer).
    Raises `DataError` for a missing file, a line that is no JSON object, or one without text or answer.
    """
    if not file.is_file():
        raise DataError(f"{file}: no such file; name a file of JSON lines with text and answer.")
    rows = json_lines(file)
    for number, row in enumerate(rows, 1):
        for key in ("text", "answer"):
            if not isinstance(row.get(key), str | int | float):
                raise DataError(f"{file}: line {number} has no {key!r}; every line needs text and answer.")
    remaining = iter(rows)
    while batch := list(islice(remaining, BATCH)):
        texts, answers = ([str(row[key]) for row in batch] for key in ("text", "answer"))
        for grade in grade_all(texts, answers, Grader(form)):
            yield json.dumps({"correct": grade.correct, "extracted": grade.extracted, "how": grade.how})
