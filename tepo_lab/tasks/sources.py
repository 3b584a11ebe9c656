"""Where problems come from: the embedded task, a local file or folder, or a data set of the hub."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tepo_lab.errors import DataError, nearest
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import ChainData, DatasetData
from tepo_lab.tasks.chain import ChainTask


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
            raise DataError(f"{where}: holds no problem.")
        repeated = [name for name, count in Counter(problem.id for problem in problems).items() if count > 1]
        if repeated:
            raise DataError(f"{where}: the id {repeated[0]!r} stands {len(repeated)} times; ids must be unique.")
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
                "set `problems` to the data's count or use the data the benchmark is made of."
            )
        return list(self.problems)


def open_source(data: ChainData | DatasetData) -> ProblemSource:
    """The problems that `data` declares. Raises `DataError` for missing, empty or unreadable data."""
    if isinstance(data, ChainData):
        return ChainSource(data)
    rows, where = (_local_rows(data.path), data.path) if data.path else _hub_rows(data)
    return ListSource([_problem(row, number, data, where) for number, row in enumerate(rows, 1)], where=where)


def _problem(row: dict[str, Any], number: int, data: DatasetData, where: str) -> Problem:
    columns = data.columns
    for column in (columns.prompt, columns.answer):
        if row.get(column) is None:
            raise DataError(f"{where}: row {number} has no column {column!r}.{nearest(column, row)}")
    given = row.get(columns.id) if columns.id else None
    return Problem(
        id=str(given if given is not None else number), prompt=str(row[columns.prompt]), answer=str(row[columns.answer])
    )


def _local_rows(path: str) -> list[dict[str, Any]]:
    """Rows of a JSONL or Parquet file, or of all such files of a folder in the order of their names."""
    import pandas as pd

    place = Path(path).expanduser()
    if not place.exists():
        raise DataError(f"{place}: no such file or folder; set data.path to a .jsonl or .parquet file or a folder.")
    files = sorted(p for p in place.iterdir() if p.suffix in {".jsonl", ".parquet"}) if place.is_dir() else [place]
    rows: list[dict[str, Any]] = []
    for file in files:
        try:
            if file.suffix == ".parquet":
                frame = pd.read_parquet(file)
            else:
                frame = pd.read_json(file, lines=True, dtype=False, convert_dates=False)
        except (ValueError, OSError) as error:
            raise DataError(f"{file}: cannot be read as {file.suffix or 'JSONL'} ({error}).") from None
        rows += [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]
    return rows


def _hub_rows(data: DatasetData) -> tuple[list[dict[str, Any]], str]:
    from datasets import load_dataset

    where = f"data set {data.hub}" + (f"/{data.subset}" if data.subset else "") + f" [{data.split}]"
    try:
        loaded = load_dataset(data.hub, data.subset, split=data.split, revision=data.revision)
    except Exception as error:  # noqa: BLE001 - the hub's client raises a dozen unrelated kinds
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{where}: cannot be loaded ({reason}); or set data.path to a local copy.") from None
    return [dict(row) for row in loaded], where
