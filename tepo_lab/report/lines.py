"""The words around a table, shared by every format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from tepo_lab.report.frame import Average, Cell, Column, Comparison, Row, Table
from tepo_lab.stats.paired import MIN_SEEDS

AVERAGE, MACRO = "Avg.", "Macro"


def by_panel(table: Table) -> Iterator[tuple[str | None, list[Row]]]:
    """Neighbouring rows of one panel with the panel's title."""
    for panel, rows in groupby(table.rows, key=lambda row: row.panel):
        yield (None if panel is None else table.panels.get(panel, panel)), list(rows)


def caption(table: Table) -> str:
    """Title, profile and steps: what the numbers are of."""
    steps = "" if table.steps is None else f", after {table.steps} steps"
    return f"{table.title}. Profile {table.profile}{steps}."


def percent(cell: Cell) -> str:
    """A cell's score, or one word for why there is none."""
    return cell.missing or "not run" if cell.percent is None else f"{cell.percent:.2f}"


def interval(bounds: tuple[float, float] | None) -> str:
    """A score's 95 % interval, such as 58.10–64.20."""
    return "" if bounds is None else f"{bounds[0]:.2f}–{bounds[1]:.2f}"


def signed(points: float) -> str:
    """A difference in points, with its sign."""
    return f"{points:+.2f}".replace("-", "−")


def seeds(row: Row) -> str:
    """The seeds whose evaluations are counted."""
    if row.steps == 0:
        return "untrained"
    if not row.seeds:
        return "no seeds"
    return f"seed{'s' if len(row.seeds) > 1 else ''} {' '.join(str(seed) for seed in row.seeds)}"


def few_seeds(row: Row) -> str | None:
    """What a reader must know of an interval over fewer than three seeds of a trained arm."""
    if row.steps == 0 or not 0 < row.average.seeds < MIN_SEEDS:
        return None
    return "1 seed" if row.average.seeds == 1 else f"{row.average.seeds} seeds"


def footnotes(table: Table) -> list[str]:
    """What stands under the table: notes, reasons of missing cells, columns, statistics and provenance."""
    footer = table.footer()
    lines = list(table.notes)
    if table.base is None:
        lines.append(f"Untrained model: {table.base_reason}.")
    reasons = {row.label: row.average.reason for row in table.rows if row.average.reason not in (None, row.outcome)}
    lines += [f"{label}: {reason}." for label, reason in reasons.items()]
    if table.published:
        lines.append(f"p: the paper's number ({table.published}), ours minus it, and whether it lies in our interval.")
    columns = "; ".join(_column(column) for column in table.columns)
    lines.append(f"Cells: percent of generations right, k/n summed over seeds. {columns}.")
    total = sum(column.generations for column in table.columns)
    lines.append(f"{AVERAGE}: over all {total} generations of a seed, as in the paper; {MACRO}: plain mean of columns.")
    if table.best():
        lines.append("The best of each column among the rows is marked.")
    lines.append(f"Intervals: {table.interval}.")
    if table.comparisons:
        lines.append(
            "Differences: points of Avg. against the parent, paired over seeds and problems; p from Student's t, "
            "corrected by Holm over this table; detectable: true difference seen with a chance of 80 % at p < 0.05."
        )
    commits = ", ".join(commit[:12] if "+" not in commit else commit for commit in footer["commits"]) or "unknown"
    lines.append(f"Commit: {commits}. Runs: {' '.join(run['id'][:8] for run in footer['runs']) or 'none'}.")
    return lines


def _column(column: Column) -> str:
    decoding = "greedy" if column.temperature == 0 else f"T = {column.temperature:g}"
    samples = f" x {column.samples}" if column.samples > 1 else ""
    return f"{column.label}: {column.problems}{samples}, {decoding}"


def comparison_cells(comparison: Comparison, table: Table) -> list[str]:
    """A comparison's values as text, in the order of `COMPARISON_HEADER`."""
    labels = {row.arm: row.label for row in table.rows}
    names = [labels.get(comparison.arm, comparison.arm), labels.get(comparison.parent, comparison.parent)]
    if comparison.difference is None or comparison.ci95 is None:
        return [*names, "", "", "", "", "", "", f"{comparison.verdict} ({comparison.reason})"]
    return [
        *names,
        signed(comparison.difference),
        " to ".join(signed(bound) for bound in comparison.ci95),
        _p(comparison.p),
        _p(comparison.p_holm),
        f"{comparison.smallest_detectable:.2f}",
        str(len(comparison.seeds)),
        comparison.verdict,
    ]


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


COMPARISON_HEADER = ("Arm", "Parent", "Difference", "95 %", "p", "p (Holm)", "Detectable", "Seeds", "Verdict")


def published_words(scored: Cell | Average) -> list[str]:
    """The paper's number, and ours minus it with whether it lies in our interval; nothing where there is none."""
    if scored.published is None:
        return []
    inside = "in" if scored.published.inside else "out"
    return [f"p {scored.published.percent:.2f}", f"{signed(scored.published.difference)} {inside}"]
