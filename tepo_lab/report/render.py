"""One frame, many formats."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator

from tepo_lab.errors import ConfigError, nearest
from tepo_lab.report.frame import Row, Table
from tepo_lab.report.markup import html, latex, markdown
from tepo_lab.report.text import WIDTH, renderable, text

__all__ = ["FORMATS", "as_csv", "as_json", "render", "renderable"]

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
)


def as_json(table: Table) -> str:
    """The table in the documented JSON form, indented."""
    return json.dumps(table.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(table: Table) -> str:
    """One line for each row and benchmark, then `avg` (generation-weighted) and `macro`; the untrained model first."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, CSV_COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    for row in table.all_rows:
        described = {
            "table": table.name,
            "profile": table.profile,
            "panel": row.panel or "",
            "arm": row.arm,
            "label": row.label,
            "seeds": " ".join(str(seed) for seed in row.seeds),
            "steps": "" if row.steps is None else row.steps,
            "outcome": row.outcome,
        }
        writer.writerows({**described, **scores} for scores in _csv_scores(row))
    return stream.getvalue()


def _csv_scores(row: Row) -> Iterator[dict[str, object]]:
    for name, cell in row.cells.items():
        yield {
            "benchmark": name,
            "correct": "" if cell.correct is None else cell.correct,
            "graded": "" if cell.graded is None else cell.graded,
            **_csv_percent(cell.percent, cell.ci95),
            "reason": cell.reason or "",
        }
    average = row.average
    reason = {"reason": average.reason or ""}
    yield {"benchmark": "avg", **_csv_percent(average.generation_weighted, average.ci95), **reason}
    yield {"benchmark": "macro", **_csv_percent(average.macro, None), **reason}


def _csv_percent(percent: float | None, ci95: tuple[float, float] | None) -> dict[str, object]:
    low, high = ci95 or ("", "")
    return {"percent": "" if percent is None else round(percent, 4), "ci95_low": low, "ci95_high": high}


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
