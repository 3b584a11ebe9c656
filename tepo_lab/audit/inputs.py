"""What the auditor reads: printed numbers from a CSV, and from a YAML what they were graded on and what is claimed."""

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
from tepo_lab.schema.base import Strict, validate
from tepo_lab.schema.objective import Positive
from tepo_lab.schema.profile import Count

AVERAGE = "avg"

#: Columns of a CSV of printed tables. `panel` and `label` may be left out.
COLUMNS = ("table", "panel", "model", "row", "label", "benchmark", "percent")
OPTIONAL = frozenset({"panel", "label"})

#: Files of a folder of published tables, beside its CSV files.
SOURCE, AUDIT = "source.yaml", "audit.yaml"

_NUMBER = re.compile(r"[-+]?\d{1,6}(\.\d{1,9})?")
_DASHES = frozenset({"", "-", "–", "—"})

HOW_TO_COUNT = "give problems and samples of each benchmark, such as  benchmarks: {aime24: {problems: 30, samples: 32}}"


class BenchmarkCount(Strict):
    """A benchmark's problems and the samples graded of each."""

    problems: Count
    samples: Count = 1
    label: str | None = None

    @property
    def generations(self) -> int:
        return self.problems * self.samples


class Claim(Strict):
    """What a text says of a row: that it ranks at least so high in its block, or lies above other rows (by so much).

    A block is the rows of one table and model in a panel, with those that stand outside all panels.
    """

    table: str
    model: str
    row: str
    panel: str = ""
    columns: tuple[str, ...] = (AVERAGE,)
    rank: Count | None = None
    over: tuple[str, ...] = ()
    by: float | None = Field(default=None, description="points above (below, when negative) each row of `over`")
    where: str = Field(description="where the text says so")
    says: str = Field(description="its words")

    @model_validator(mode="after")
    def _says_one_thing(self) -> Claim:
        if (self.rank is None) == (not self.over):
            raise ValueError("give either rank or over (the rows it is said to lie above)")
        if self.by is not None and not self.over:
            raise ValueError("by says how far above the rows of over: give over")
        return self


class Counts(Strict):
    """The YAML beside a CSV of printed tables. Only `benchmarks` is required."""

    paper: str | None = Field(default=None, description="where the numbers are printed")
    url: str | None = None
    steps: dict[str, Count] = Field(default={}, description="table -> training steps of its rows")
    benchmarks: dict[str, BenchmarkCount] = Field(min_length=1)
    tolerance: Positive = Field(default=0.05, description="points within which a rule explains a printed average")
    same_name_same_run: bool = Field(
        default=True, description="whether rows of one name and model are one run wherever they stand"
    )
    same_runs: dict[str, str] = Field(default={}, description="row -> the row of another name that is the same run")
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
        """Where the row stands, for a reader."""
        panel = f" panel {self.panel}" if self.panel else ""
        return f"{self.table}{panel}"

    @property
    def average(self) -> Decimal | None:
        return self.cells.get(AVERAGE)

    def scores(self, benchmarks: Sequence[str]) -> dict[str, Decimal | None]:
        """The cells of `benchmarks`, a dash or a cell that is not there as None."""
        return {name: self.cells.get(name) for name in benchmarks}


@dataclass(frozen=True)
class PrintedTables:
    """All that is audited. `benchmarks` and `decimals` are each table's columns and digits after the point."""

    name: str
    rows: tuple[PrintedRow, ...]
    counts: Counts
    benchmarks: Mapping[str, tuple[str, ...]]
    decimals: Mapping[str, int]

    def unit(self, table: str) -> Decimal:
        """One in a table's last printed digit, in points."""
        return Decimal(1).scaleb(-self.decimals[table])

    def block(self, row: PrintedRow) -> list[PrintedRow]:
        """The rows that a row is compared with, itself among them: those of its panel and those outside all panels."""
        return self.block_of(row.table, row.panel, row.model)

    def block_of(self, table: str, panel: str, model: str) -> list[PrintedRow]:
        return [
            each
            for each in self.rows
            if each.table == table and each.model == model and (each.panel == panel or not each.panel)
        ]


def read_printed(path: Path, counts_file: Path | None = None) -> PrintedTables:
    """A user's CSV of printed tables with its counts: `counts_file`, else the YAML of the same name beside it.

    Raises `DataError` for a CSV that cannot be read, `ConfigError` for a YAML with a wrong key or value.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a CSV file of printed tables.")
    if not path.is_file():
        raise DataError(f"{path}: no such file; name a CSV file of printed tables.")
    counts_path = counts_file or path.with_suffix(".yaml")
    lines = list(_csv_lines(path))
    if counts_file is None and not counts_path.is_file():
        raise DataError(
            f"{path}: no counts: write {counts_path} beside it or name a file with --counts; {HOW_TO_COUNT}"
        )
    counts = validate(Counts, _mapping(counts_path), where=str(counts_path))
    return _printed(path.name, [(path, lines)], counts)


def read_published(folder: Path) -> PrintedTables:
    """A folder of published tables: its CSV files, source.yaml (counts) and audit.yaml (same runs, claims)."""
    values = _mapping(folder / SOURCE) | _mapping(folder / AUDIT)
    counts = validate(Counts, values, where=f"{folder / SOURCE} with {AUDIT}")
    files = [(path, list(_csv_lines(path))) for path in sorted(folder.glob("*.csv"))]
    return _printed(counts.paper or folder.name, files, counts)


def _mapping(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise DataError(f"{path}{line} is not YAML; {HOW_TO_COUNT}") from None
    if not isinstance(values, dict):
        raise DataError(f"{path} must hold a mapping; {HOW_TO_COUNT}")
    return values


def _csv_lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The lines of a CSV with their numbers. Raises `DataError` that names the place."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, strict=True)
            header = reader.fieldnames or []
            for name in COLUMNS:
                if name not in OPTIONAL and name not in header:
                    raise DataError(f"{path} lacks the column {name!r}: the columns are {','.join(COLUMNS)}.")
            for values in reader:
                if None in values or None in values.values():
                    raise DataError(f"{path}:{reader.line_num} has not as many values as the header has columns.")
                yield reader.line_num, values
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8 ({error}).") from None


def _printed(
    name: str, files: Sequence[tuple[Path, Sequence[tuple[int, dict[str, str]]]]], counts: Counts
) -> PrintedTables:
    rows: list[PrintedRow] = []
    open_cells: dict[tuple[str, str, str, str], dict[str, Decimal | None]] = {}
    benchmarks: dict[str, dict[str, None]] = {}
    decimals: dict[str, int] = {}
    for path, lines in files:
        for number, values in lines:
            key = (values["table"], values.get("panel", ""), values["model"], values["row"])
            benchmark, value = values["benchmark"], _percent(values["percent"], f"{path}:{number}")
            if benchmark != AVERAGE and benchmark not in counts.benchmarks:
                raise DataError(
                    f"{path}:{number}: benchmark {benchmark!r} has no counts.{nearest(benchmark, counts.benchmarks)}"
                )
            if key not in open_cells:
                open_cells[key] = {}
                rows.append(PrintedRow(*key, open_cells[key]))
            if benchmark in open_cells[key]:
                raise DataError(
                    f"{path}:{number}: {benchmark} of row {key[3]!r} stands twice in one place; remove a line, or give "
                    "another printing of the row a panel of its own."
                )
            open_cells[key][benchmark] = value
            if benchmark != AVERAGE:
                benchmarks.setdefault(values["table"], {})[benchmark] = None
            shown = 0 if value is None else max(0, -int(value.as_tuple().exponent))
            decimals[values["table"]] = max(decimals.get(values["table"], 0), shown)
    if not rows:
        raise DataError(f"{', '.join(str(path) for path, _ in files) or name}: there is no printed number to audit.")
    columns = {table: tuple(benchmarks.get(table, {})) for table in decimals}
    return PrintedTables(name, tuple(rows), counts, columns, decimals)


def _percent(text: str, where: str) -> Decimal | None:
    stripped = text.strip()
    if stripped in _DASHES:
        return None
    if not _NUMBER.fullmatch(stripped):
        raise DataError(f"{where}: percent {text!r} is not a number such as 43.20; leave it empty for a dash.")
    return Decimal(stripped)
