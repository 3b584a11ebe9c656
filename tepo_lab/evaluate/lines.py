"""Grades the lines of a file of responses."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tepo_lab.errors import DataError
from tepo_lab.tasks.answers import Form
from tepo_lab.tasks.data_files import json_objects, numbered_json_lines
from tepo_lab.tasks.grading import Grader, grade_all

#: Lines graded together: the first results are printed before the last lines are graded.
BATCH = 512

#: The file name that means standard input.
STANDARD_INPUT = Path("-")


def grade_lines(file: Path, form: Form) -> Iterator[str]:
    """JSON lines with `correct`, `extracted` and `how`, one for each line of `file`, in order.

    Args: `file` holds JSON lines with `text` (a response, a string) and `answer` (the gold answer, a string or a
    number); "-" is standard input. A pipe, such as `<(...)`, is read to its end.
    Raises `DataError` for a missing or empty file, a closed standard input, a line that is no JSON object, or one
    without text or answer.
    """
    if file == STANDARD_INPUT:
        # What Python has for a stream that was closed when it started.
        if sys.stdin is None:
            raise DataError("standard input is closed; pipe lines with text and answer into it, or name their file.")
        where, lines = "standard input", json_objects(sys.stdin.buffer, where="standard input")
    elif file.is_file() or file.is_fifo():
        where, lines = str(file), numbered_json_lines(file)
    else:
        raise DataError(f"{file}: no such file; name a file of JSON lines with text and answer, or - to read them.")
    if not lines:
        raise DataError(f"{where}: has no response; write one JSON object a line, with text and answer.")
    for number, row in lines:
        _check(row, f"{where}:{number}")
    remaining = (row for _, row in lines)
    while batch := list(islice(remaining, BATCH)):
        texts, answers = ([str(row[key]) for row in batch] for key in ("text", "answer"))
        for grade in grade_all(texts, answers, Grader(form)):
            yield json.dumps({"correct": grade.correct, "extracted": grade.extracted, "how": grade.how})


def _check(row: dict[str, Any], place: str) -> None:
    """Raises `DataError` unless the text is one and the answer is text or a finite number."""
    for key, kinds, must in (
        ("text", (str,), "a string"),
        ("answer", (str, int, float), "a string that is not blank, or a finite number"),
    ):
        value = row.get(key)
        if value is None:
            raise DataError(f"{place} has no {key!r}; every line needs text and answer.")
        is_kind = isinstance(value, kinds) and not isinstance(value, bool)
        is_blank = key == "answer" and isinstance(value, str) and not value.strip()
        if not is_kind or is_blank or (isinstance(value, float) and not math.isfinite(value)):
            raise DataError(f"{place} has {key!r}: {json.dumps(value)[:40]}; it must be {must}.")
