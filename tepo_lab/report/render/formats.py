"""One frame, many formats."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.report.render.markup import html, latex, markdown
from tepo_lab.report.render.terminal import WIDTH, renderable, text
from tepo_lab.report.table.frame import Average, Cell, Row, Table

__all__ = ["FORMATS", "as_csv", "as_json", "lines_of", "render", "renderable"]

CSV_COLUMNS = (
    "table",
    "profile",
    "panel",
    "arm",
    "label",
    "seeds",
    "steps",
    "outcome",
    "benchmark",
    "correct",
    "graded",
    "percent",
    "ci95_low",
    "ci95_high",
    "reason",
    "suspect",
    "provenance",
    "published",
    "published_difference",
    "published_inside",
)


def as_json(table: Table) -> str:
    """The table in the documented JSON form, indented."""
    return json.dumps(table.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(table: Table) -> str:
    """The lines of `lines_of` under one header."""
    return csv_text(CSV_COLUMNS, lines_of(table))


def csv_text(columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> str:
    """Lines as CSV; None is an empty field, true and false are written small."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n", restval="")
    writer.writeheader()
    for line in lines:
        writer.writerow(
            {name: str(value).lower() if isinstance(value, bool) else value for name, value in line.items()}
        )
    return stream.getvalue()


def lines_of(table: Table) -> Iterator[dict[str, Any]]:
    """The table in long form: one line for each row and benchmark (avg@n and pass@k after it where they were asked
    for), then `avg` (generation-weighted) and `macro`; the untrained model first. Columns are `CSV_COLUMNS`."""
    for row in table.all_rows:
        described = {
            "table": table.name,
            "profile": row.profile,
            "panel": row.panel,
            "arm": row.arm,
            "label": row.label,
            "seeds": " ".join(str(seed) for seed in row.seeds),
            "steps": row.steps,
            "outcome": row.outcome,
            "suspect": "; ".join(row.suspect) or None,
            "provenance": "; ".join(row.provenance) or None,
        }
        for scores in _scores(row):
            yield dict.fromkeys(CSV_COLUMNS) | described | scores


def _scores(row: Row) -> Iterator[dict[str, Any]]:
    for name, cell in row.cells.items():
        yield {
            "benchmark": name,
            "correct": cell.correct,
            "graded": cell.graded,
            **_percent(cell.percent, cell.ci95),
            **_reason_and_published(cell),
        }
        for words, score in cell.at_k.items():
            yield {"benchmark": f"{name} {words}", **_percent(score.percent, score.ci95)}
    average = row.average
    yield {
        "benchmark": "avg",
        **_percent(average.generation_weighted, average.ci95),
        **_reason_and_published(average),
    }
    yield {"benchmark": "macro", **_percent(average.macro, None), "reason": average.reason}


def _percent(percent: float | None, ci95: tuple[float, float] | None) -> dict[str, Any]:
    low, high = ci95 or (None, None)
    return {"percent": percent, "ci95_low": low, "ci95_high": high}


def _reason_and_published(scored: Cell | Average) -> dict[str, Any]:
    published = scored.published
    if published is None:
        return {"reason": scored.reason}
    return {
        "reason": scored.reason,
        "published": published.percent,
        "published_difference": published.difference,
        "published_inside": published.inside,
    }


FORMATS: dict[str, Callable[[Table], str]] = {
    "text": text,
    "md": markdown,
    "latex": latex,
    "html": html,
    "csv": as_csv,
    "json": as_json,
}


def render(table: Table, format: str, width: int = WIDTH) -> str:
    """The table in one of `FORMATS`. `width` is text's. Raises `ConfigError` for an unknown format."""
    if format == "text":
        return text(table, width)
    if format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}.{nearest(format, FORMATS)}")
    return FORMATS[format](table)


def render_all(tables: Sequence[Table], format: str) -> str:
    """Tables of profiles whose benchmarks differ, one after the other: JSON as a list, CSV under one header.

    Raises as `render`.
    """
    if len(tables) == 1:
        return render(tables[0], format)
    if format == "json":
        return json.dumps([table.to_dict() for table in tables], indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if format == "csv":
        return csv_text(CSV_COLUMNS, (line for table in tables for line in lines_of(table)))
    return "\n".join(render(table, format) for table in tables)
