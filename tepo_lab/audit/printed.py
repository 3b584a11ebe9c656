"""Reads printed tables from a CSV, and from a YAML what they were graded on and what a text claims of them."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, model_validator

from tepo_lab.errors import DataError, nearest
from tepo_lab.schema.base import PositiveFloat, PositiveInt, Strict, validate

AVERAGE = "avg"

#: Columns of a CSV of printed tables; `panel` and `label` are optional.
COLUMNS = ("table", "panel", "model", "row", "label", "benchmark", "percent")
REQUIRED = ("table", "model", "row", "benchmark", "percent")

_NUMBER = re.compile(r"[-+]?\d{1,6}(\.\d{1,9})?")
_DASHES = frozenset({"", "-", "–", "—"})

HOW_TO_COUNT = "give problems and samples of each benchmark, such as  benchmarks: {aime24: {problems: 30, samples: 32}}"


class BenchmarkCount(Strict):
    """A benchmark's problems and the samples graded for each."""

    problems: PositiveInt
    samples: PositiveInt = 1
    label: str | None = None

    @property
    def generations(self) -> int:
        return self.problems * self.samples


class Claim(Strict):
    """A text's claim about a row: its rank in its block, or that it is above other rows, optionally by how much.

    A block is the rows of one table and model in a panel, with those outside all panels.
    """

    table: str
    model: str
    row: str
    panel: str = ""
    columns: tuple[str, ...] = (AVERAGE,)
    rank: PositiveInt | None = None
    over: tuple[str, ...] = ()
    by: float | None = Field(default=None, description="points above (negative: below) every row of `over`")
    where: str = Field(description="section or caption of the claim")
    says: str = Field(description="the claim, quoted")

    @model_validator(mode="after")
    def _rank_or_over(self) -> Claim:
        if (self.rank is None) == (not self.over):
            raise ValueError("give either rank or over (the rows that it is above)")
        if self.by is not None and not self.over:
            raise ValueError("by needs over: the rows that it is so far above")
        return self


class CountsFile(Strict):
    """The YAML beside a CSV of printed tables. Only `benchmarks` is required."""

    paper: str | None = Field(default=None, description="where the numbers are printed")
    url: str | None = None
    steps: dict[str, PositiveInt] = Field(default={}, description="table -> training steps of its rows")
    benchmarks: dict[str, BenchmarkCount] = Field(min_length=1)
    tolerance: PositiveFloat = Field(default=0.05, description="points within which a rule explains a printed average")
    same_name_same_run: bool = Field(
        default=True, description="whether rows of one name and model are one run in every table and panel"
    )
    same_runs: dict[str, str] = Field(default={}, description="row -> another row's name for the same run")
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, eq=False)
class PrintedRow:
    """One printed row: percents by benchmark as printed, a dash as None, in the CSV's order."""

    table: str
    panel: str
    model: str
    row: str
    cells: Mapping[str, Decimal | None]

    @property
    def place(self) -> str:
        """Table and panel, for messages."""
        return f"{self.table} panel {self.panel}" if self.panel else self.table

    @property
    def average(self) -> Decimal | None:
        return self.cells.get(AVERAGE)


@dataclass(frozen=True)
class PrintedTables:
    """Everything that is audited. `benchmarks` and `decimals` are each table's columns and digits after the point."""

    name: str
    rows: tuple[PrintedRow, ...]
    counts: CountsFile
    benchmarks: Mapping[str, tuple[str, ...]]
    decimals: Mapping[str, int]

    def unit(self, table: str) -> Decimal:
        """One in a table's last printed digit, in points."""
        return Decimal(1).scaleb(-self.decimals[table])

    def scores(self, row: PrintedRow) -> dict[str, Decimal | None]:
        """A row's cells without its average; a dash and an absent cell are None."""
        return {name: row.cells.get(name) for name in self.benchmarks[row.table]}

    def block(self, table: str, panel: str, model: str) -> list[PrintedRow]:
        """The rows that are compared with each other: those of a panel and those outside all panels."""
        return [
            row
            for row in self.rows
            if row.table == table and row.model == model and (row.panel == panel or not row.panel)
        ]


def read_printed(path: Path, counts_file: Path | None = None) -> PrintedTables:
    """A user's CSV of printed tables with its counts: `counts_file`, else the YAML of the same name beside it.

    Raises `DataError` for a CSV that cannot be read, `ConfigError` for a YAML with a wrong key or value.
    """
    if not path.is_file():
        raise DataError(f"{path} is not a file; name a CSV file of printed tables.")
    counts_path = counts_file or path.with_suffix(".yaml")
    if counts_file is None and not counts_path.is_file():
        raise DataError(f"{path} has no counts: write {counts_path} or name a file with --counts; {HOW_TO_COUNT}")
    counts = validate(CountsFile, _read_yaml(counts_path), where=str(counts_path))
    return _read_tables(path.name, [path], counts)


def read_published(folder: Path) -> PrintedTables:
    """A folder of published tables: its CSV files, source.yaml (counts) and audit.yaml (same runs, claims)."""
    values = _read_yaml(folder / "source.yaml") | _read_yaml(folder / "audit.yaml")
    counts = validate(CountsFile, values, where=f"{folder / 'source.yaml'} with audit.yaml")
    return _read_tables(counts.paper or folder.name, sorted(folder.glob("*.csv")), counts)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise DataError(f"{path}{line} is not YAML; {HOW_TO_COUNT}") from None
    if not isinstance(values, dict):
        raise DataError(f"{path} is not a mapping; {HOW_TO_COUNT}")
    return values


def _read_tables(name: str, paths: Sequence[Path], counts: CountsFile) -> PrintedTables:
    """The rows of CSV files, in order. Raises `DataError` with the place of what is wrong."""
    cells: dict[tuple[str, str, str, str], dict[str, Decimal | None]] = {}
    benchmarks: dict[str, dict[str, None]] = {}
    decimals: dict[str, int] = {}
    for path in paths:
        for where, values in _csv_lines(path):
            table, benchmark = values["table"], values["benchmark"]
            row = cells.setdefault((table, values.get("panel", ""), values["model"], values["row"]), {})
            if benchmark != AVERAGE and benchmark not in counts.benchmarks:
                raise DataError(
                    f"{where}: benchmark {benchmark!r} has no counts.{nearest(benchmark, counts.benchmarks)}"
                )
            if benchmark in row:
                raise DataError(
                    f"{where}: {benchmark} of row {values['row']!r} is given twice; remove a line, or give the second "
                    "printing of the row another panel."
                )
            row[benchmark] = percent = _percent(values["percent"], where)
            columns = benchmarks.setdefault(table, {})
            if benchmark != AVERAGE:
                columns[benchmark] = None
            digits = 0 if percent is None else -int(percent.as_tuple().exponent)
            decimals[table] = max(decimals.get(table, 0), digits)
    if not cells:
        raise DataError(f"{', '.join(map(str, paths)) or name}: there is no printed number to audit.")
    rows = tuple(PrintedRow(*key, values) for key, values in cells.items())
    return PrintedTables(name, rows, counts, {table: tuple(names) for table, names in benchmarks.items()}, decimals)


def _csv_lines(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The lines of a CSV, each after its place (file:line)."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, strict=True)
            for name in REQUIRED:
                if name not in (reader.fieldnames or []):
                    raise DataError(f"{path} has no column {name!r}: the columns are {','.join(COLUMNS)}.")
            for values in reader:
                where = f"{path}:{reader.line_num}"
                # DictReader puts surplus values under None, and None where values are missing.
                if None in values or None in values.values():
                    raise DataError(f"{where}: the number of values differs from the header's.")
                yield where, values
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error}).") from None


def _percent(text: str, where: str) -> Decimal | None:
    stripped = text.strip()
    if stripped in _DASHES:
        return None
    if not _NUMBER.fullmatch(stripped):
        raise DataError(f"{where}: percent {text!r} is not a number such as 43.20; leave it empty for a dash.")
    return Decimal(stripped)
