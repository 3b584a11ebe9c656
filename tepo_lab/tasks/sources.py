"""Problems for training and for benchmarks: of the embedded task, or of a data set."""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from tepo_lab.errors import DataError, nearest
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import ChainData, DatasetData
from tepo_lab.tasks.chain import ChainTask
from tepo_lab.tasks.data_files import local_rows
from tepo_lab.tasks.hub_data import hub_name, hub_rows

_SURROGATE = re.compile("[\ud800-\udfff]")


class ProblemSource(Protocol):
    """Problems for training, by position in an endless stream, and for a benchmark, as a fixed list."""

    def training(self, position: int, count: int, *, seed: int) -> list[Problem]:
        """The problems at `position` to `position + count` of the training stream with this seed."""
        ...

    def benchmark(self, count: int) -> list[Problem]:
        """The benchmark's problems. Raises `DataError` when there are not exactly `count`."""
        ...


class ChainSource:
    """Problems of the embedded task."""

    def __init__(self, data: ChainData) -> None:
        self.data = data

    def training(self, position: int, count: int, *, seed: int) -> list[Problem]:
        return self._task(f"{self.data.seed}.{seed}").problems(self.data.split, position, count)

    def benchmark(self, count: int) -> list[Problem]:
        return self._task(self.data.seed).distinct(self.data.split, count)

    def _task(self, seed: int | str) -> ChainTask:
        number = seed if isinstance(seed, int) else int.from_bytes(hashlib.sha256(seed.encode()).digest()[:6], "big")
        return ChainTask(
            terms=self.data.terms,
            operators=tuple(self.data.operators),
            times_share=self.data.times_share,
            seed=number,
        )


class ListSource:
    """A fixed list of problems; training runs through it in shuffled epochs."""

    def __init__(self, problems: Sequence[Problem], *, where: str) -> None:
        if not problems:
            raise DataError(f"{where}: has no problem.")
        repeated = [name for name, count in Counter(problem.id for problem in problems).items() if count > 1]
        if repeated:
            raise DataError(f"{where}: the id {repeated[0]!r} occurs more than once; ids must be unique.")
        self.problems = list(problems)
        self.where = where

    def training(self, position: int, count: int, *, seed: int) -> list[Problem]:
        size = len(self.problems)
        orders: dict[int, list[int]] = {}
        taken = []
        for place in range(position, position + count):
            epoch, offset = divmod(place, size)
            if epoch not in orders:
                orders[epoch] = random.Random(f"{seed}/{epoch}").sample(range(size), size)
            taken.append(self.problems[orders[epoch][offset]])
        return taken

    def benchmark(self, count: int) -> list[Problem]:
        if len(self.problems) != count:
            raise DataError(
                f"{self.where}: has {len(self.problems)} problems, the benchmark states {count}; "
                "set data.path to the data that the benchmark is made of, or `problems` to this count."
            )
        return list(self.problems)


def open_source(data: ChainData | DatasetData, *, key: str = "data") -> ProblemSource:
    """The problems that `data` declares. Raises `DataError` for missing, empty or unreadable data.

    Args: `key` under which the configuration has `data`, for messages.
    """
    if isinstance(data, ChainData):
        return ChainSource(data)
    rows, where = (local_rows(data, key=key), data.path) if data.path else (hub_rows(data), hub_name(data))
    taken = [*enumerate(rows, 1)][data.skip :][: data.take]
    return ListSource([_problem(row, number, data, where) for number, row in taken], where=where)


def _problem(row: dict[str, Any], number: int, data: DatasetData, where: str) -> Problem:
    columns, place = data.columns, f"{where}: row {number}"
    prompt, answer = (
        _text(_value(row, column, place), f"{place}: column {column!r}") for column in (columns.prompt, columns.answer)
    )
    if columns.answer_pattern is not None:
        matches = re.findall(columns.answer_pattern, answer)
        if not matches:
            raise DataError(
                f"{place}: {columns.answer_pattern!r} does not match its column {columns.answer!r}; change "
                "data.columns.answer_pattern, or set it to null where the column is the bare answer."
            )
        answer = _text(matches[-1].strip(), f"{place}: what {columns.answer_pattern!r} finds in {columns.answer!r}")
    if columns.tolerance is not None and columns.tolerance not in row:
        raise DataError(f"{place} has no column {columns.tolerance!r}.{nearest(columns.tolerance, row)}")
    tolerance = row[columns.tolerance] if columns.tolerance else None
    if tolerance:
        answer += f"±{tolerance}"
    given = row.get(columns.id) if columns.id else None
    if isinstance(given, bytes) or (isinstance(given, str) and _SURROGATE.search(given)):
        _text(given, f"{place}: column {columns.id!r}")
    return Problem(id=str(given if given is not None else number), prompt=prompt, answer=answer)


def _value(row: dict[str, Any], column: str, place: str) -> Any:
    """The value of a column, or of a place inside one; None where the column is empty.

    Raises `DataError` when there is no such column.
    """
    value: Any = row.get(column)
    if value is None and "." in column:
        value = row
        for part in column.split("."):
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                value = None
    if value is None and column not in row:
        raise DataError(f"{place} has no column {column!r}.{nearest(column, row)}")
    return value


def _text(value: Any, what: str) -> str:
    """A column's value as text: several answers with commas between them, whole numbers without a point.

    Raises `DataError`, in which `what` names the value, for one that is no text or that no response could ever equal.
    """
    if isinstance(value, list) and value and not any(isinstance(item, list) for item in value):
        return ", ".join(_text(item, what) for item in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = "" if value is None else str(value)
    if isinstance(value, list | dict | bool | bytes):
        fault = f"is {text[:40]}, neither text nor a number nor a list of them"
    elif not text.strip():
        fault = "is empty"
    elif isinstance(value, float) and not math.isfinite(value):
        fault = f"is {value}, not a finite number"
    elif _SURROGATE.search(text):
        fault = "has half of a surrogate pair, which is no character"
    else:
        return text
    raise DataError(f"{what} {fault}; correct the row, or name other columns in data.columns.")
