"""A table as a document: caption, grids of cells as text, and footnotes. Every format renders this one form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from tepo_lab.report.table.columns import (
    AVERAGE,
    COMPARISON_COLUMNS,
    MACRO,
    SUSPECT,
    TARGET_COLUMNS,
    Column,
    at_k_columns,
    evaluated_columns,
    row_columns,
    signed,
)
from tepo_lab.report.table.frame import Table
from tepo_lab.report.table.rows import PublishedScore, Row, seed_names
from tepo_lab.report.table.target import TargetTable
from tepo_lab.report.table.wanted import GradedBenchmark
from tepo_lab.stats.paired import MIN_SEEDS

R = TypeVar("R")


@dataclass(frozen=True)
class Cell:
    """A value as text. `detail` goes with it where there is room, `notes` everywhere, `published` in lines of its own.

    `is_best`: the highest of its column; `is_missing`: `text` is a word for why there is no value, `reason` the full
    sentence.
    """

    text: str
    detail: str = ""
    notes: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    is_best: bool = False
    is_missing: bool = False
    reason: str = ""

    @property
    def small(self) -> list[str]:
        """All that goes with the text."""
        return [*([self.detail] if self.detail else []), *self.notes, *self.published]


@dataclass(frozen=True)
class Line:
    """The cells of a row, its label first. `short` is the label's note where it is not the same for all rows."""

    cells: tuple[Cell, ...]
    arm: str = ""
    short: str = ""
    is_suspect: bool = False

    @property
    def published(self) -> list[list[str]]:
        """The published numbers of the cells after the label, line by line."""
        depth = max(len(cell.published) for cell in self.cells)
        return [
            [cell.published[place] if place < len(cell.published) else "" for cell in self.cells[1:]]
            for place in range(depth)
        ]

    @property
    def missing(self) -> str:
        """The one word for all cells after the label, where there are no others."""
        words = {cell.text if cell.is_missing and not cell.published else "" for cell in self.cells[1:]}
        return words.pop() if len(words) == 1 else ""


@dataclass(frozen=True)
class Block:
    """Neighbouring lines under one heading."""

    title: str | None
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Grid:
    """Lines under the headings of columns. `is_text` names those that are set left."""

    title: str
    headings: tuple[str, ...]
    is_text: tuple[bool, ...]
    blocks: tuple[Block, ...]

    @property
    def lines(self) -> list[Line]:
        return [line for block in self.blocks for line in block.lines]


@dataclass(frozen=True)
class Document:
    """What every format renders. `common` is what its first grid's rows have in common."""

    name: str
    caption: str
    grids: tuple[Grid, ...]
    footnotes: tuple[str, ...]
    common: str = ""


def document(table: Table | TargetTable) -> Document:
    """A table, or steps to a target, as a document."""
    if isinstance(table, TargetTable):
        return _target_document(table)
    at_k = [benchmark for benchmark in table.benchmarks if table.pass_at and benchmark.samples > 1]
    grids = [_main_grid(table)]
    for benchmark in at_k:
        title = f"{benchmark.label}, {benchmark.samples} samples a problem"
        grids.append(_grid(title, at_k_columns(benchmark, table.pass_at), table.all_rows, table))
    if table.comparisons:
        grids.append(_grid("Against the parent", COMPARISON_COLUMNS, table.comparisons, table))
    scored = [row for row in table.rows if row.seeds]
    common = f"Rows: {seeds(scored[0])}." if scored and _are_alike(table) else ""
    return Document(table.name, caption(table), tuple(grids), tuple(footnotes(table)), common)


def _grid(title: str, columns: Sequence[Column[R]], rows: Iterable[R], table: Any) -> Grid:
    """A grid without headings among its rows."""
    lines = tuple(Line(tuple(_cell(column, row, table) for column in columns)) for row in rows)
    headings, is_text = zip(*((column.heading, column.is_text) for column in columns), strict=True)
    return Grid(title, headings, is_text, (Block(None, lines),))


def _cell(column: Column[R], row: R, table: Any, best: float | None = None) -> Cell:
    value = column.count(row, table)
    published = _published(row.published.get(column.name)) if isinstance(row, Row) else ()
    if value is None:
        if isinstance(row, Row) and not row.scores:
            return Cell(row.missing, published=published, is_missing=True, reason=row.reason or "")
        return Cell("", published=published)
    is_best = column.marks_best and value == best
    return Cell(column.text(value), column.detail(row), tuple(column.notes(row)), published, is_best)


def _published(score: PublishedScore | None) -> tuple[str, ...]:
    """The paper's number, and ours minus it with whether it lies in our interval."""
    if score is None:
        return ()
    if score.difference is None:
        return (f"p {score.percent:.2f}",)
    return f"p {score.percent:.2f}", f"{signed(score.difference)} {'in' if score.inside else 'out'}"


# the main table


@dataclass(frozen=True)
class ShownPanel:
    """Neighbouring rows under one heading; `comparable` are those that a best may be among, `best` is by column."""

    title: str | None
    rows: tuple[Row, ...]
    comparable: tuple[Row, ...] = ()
    best: Mapping[str, float] | None = None


def panels(table: Table) -> Iterator[ShownPanel]:
    """The table's rows from top to bottom: of each profile the untrained model, then its panels."""
    several = len(table.profiles) > 1
    for untrained in table.untrained:
        if several or untrained.row is not None:
            title = f"Profile {untrained.profile}" if several else None
            yield ShownPanel(title, (untrained.row,) if untrained.row else ())
        # A lone panel of several profiles adds nothing to the profile's heading.
        is_titled = not several or len(table.panels) > 1
        for name, members in groupby(table.rows_of(untrained.profile), key=lambda row: row.panel):
            rows = tuple(members)
            comparable = comparable_rows(rows)
            title = _panel_title(table, name, rows) if is_titled else None
            yield ShownPanel(title, rows, tuple(comparable), best(comparable, table))


def comparable_rows(rows: Sequence[Row]) -> list[Row]:
    """A panel's rows that a best may be among: complete, not suspect, of the most common number of seeds and steps.

    Of numbers that are as common the higher ones count. A row that lost a seed has a mean over those that survived,
    and a single seed may be the luckiest of several: neither competes with the others.
    """

    def kind(row: Row) -> tuple[int, int]:
        return len(row.seeds), row.steps or 0

    complete = [row for row in rows if row.outcome == "complete" and not row.suspect and row.steps != 0]
    kinds = Counter(map(kind, complete))
    most = max(kinds, key=lambda one: (kinds[one], one), default=None)
    return [row for row in complete if kind(row) == most]


def best(rows: Sequence[Row], table: Table) -> dict[str, float]:
    """The highest value of each column among `rows`, none where fewer than two have one."""
    values = {
        column.name: [value for row in rows if (value := column.count(row, table)) is not None]
        for column in row_columns(table)
        if column.marks_best
    }
    return {name: max(own) for name, own in values.items() if len(own) > 1}


def _panel_title(table: Table, panel: str | None, rows: Sequence[Row]) -> str | None:
    """A panel's title, with the steps of its rows where the table's rows are read at different ones."""
    if panel is None or (len(table.panels) == 1 and table.panels.get(panel) == table.title):
        return None
    title, steps = table.panels.get(panel) or panel, {row.steps for row in rows}
    return f"{title}, {steps.pop()} steps" if table.steps is None and len(steps) == 1 else title


def _main_grid(table: Table) -> Grid:
    columns = row_columns(table)
    blocks = []
    for panel in panels(table):
        lines = []
        for row in panel.rows:
            is_comparable = any(row is other for other in panel.comparable)
            values = (panel.best or {}) if is_comparable else {}
            label = Cell(row.label, notes=(described(row, table),), reason="; ".join((*row.suspect, *row.provenance)))
            cells = [_cell(column, row, table, values.get(column.name)) for column in columns]
            lines.append(Line((label, *cells), row.arm, _short(row, table), bool(row.suspect)))
        blocks.append(Block(panel.title, tuple(lines)))
    headings = ("Arm", *(column.heading for column in columns))
    return Grid("", headings, (True, *(column.is_text for column in columns)), tuple(blocks))


def seeds(row: Row) -> str:
    """The seeds whose evaluations are counted."""
    if row.steps == 0:
        return "untrained"
    return seed_names(row.seeds) if row.seeds else "no seeds"


def described(row: Row, table: Table) -> str:
    """Seeds, steps (where rows differ in them), outcome and marks of a row, in one phrase."""
    steps = f"step {row.steps}, " if table.steps is None and row.steps and row.seeds else ""
    return f"{seeds(row)}, {steps}{_marked_outcome(row)}"


def _marked_outcome(row: Row) -> str:
    """What became of a row, and the marks of its scores: suspect, from a changed tree, partly by other code."""
    marks = {"changed source tree": "changed tree", "other code": "other code", "other files": "other files"}
    provenance = " ".join(row.provenance)
    shown = [mark for phrase, mark in marks.items() if phrase in provenance]
    return ", ".join([row.outcome, *([SUSPECT] if row.suspect else []), *shown])


def _are_alike(table: Table) -> bool:
    """Whether all rows with scores have the same seeds and steps."""
    return len({(row.seeds, table.steps is None and row.steps) for row in table.rows if row.seeds}) == 1


def _short(row: Row, table: Table) -> str:
    """What distinguishes the row from the others, where seeds and steps are named once for all of them."""
    if row.steps and row.seeds and not _are_alike(table):
        return described(row, table).removesuffix(", complete")
    return _marked_outcome(row).removeprefix("complete").removeprefix(", ")


# caption and footnotes


def caption(table: Table) -> str:
    """Title, profile and steps: what the numbers are of."""
    steps = [table.steps] if table.steps is not None else sorted({row.steps for row in table.rows if row.steps})
    after = f", after {' or '.join(map(str, steps))} step{'' if steps == [1] else 's'}" if steps else ""
    title = f"{_sentence(table.title)} " if table.title else ""
    return f"{title}Profile{'s' if len(table.profiles) > 1 else ''} {table.profile}{after}."


def _sentence(text: str) -> str:
    """Text with one full stop, where it does not end in a mark of its own."""
    return text if text.endswith(("?", "!")) else f"{text.rstrip('.')}."


def footnotes(table: Table) -> list[str]:
    """Notes, reasons of missing cells, marks, columns, statistics and provenance."""
    several = len(table.profiles) > 1
    lines = list(table.notes)
    for untrained in table.untrained:
        if untrained.row is None:
            of_profile = f" of {untrained.profile}" if several else ""
            lines.append(f"Untrained model{of_profile}: {_sentence(str(untrained.reason))}")
    reasons = {row.label: row.reason for row in table.rows if row.reason not in (None, row.outcome)}
    lines += [f"{label}: {_sentence(str(reason))}" for label, reason in reasons.items()]
    lines += _collapses(table)
    lines += _marks(table)
    if table.published:
        lines.append(
            f"p: the paper's number ({table.published}), then ours minus it, and whether it lies in our interval."
        )
    total = sum(benchmark.generations for benchmark in table.benchmarks)
    lines += [
        f"Cells: percent of generations right, k/n summed over seeds. {'; '.join(map(_graded_as, table.benchmarks))}.",
        f"{AVERAGE.heading}: over all {total} generations of a seed, as in the paper; {MACRO.heading}: plain mean of "
        "columns.",
    ]
    if any(panel.best for panel in panels(table)):
        lines.append(
            "Marked: the best of each column among the complete, unsuspect rows of a panel that have as many seeds and "
            "steps as most of them."
        )
    lines.append(f"Intervals: {table.interval}.")
    if table.comparisons:
        lines.append(
            f"Differences: points of {AVERAGE.heading} against the parent, or its nearest ancestor in the table, "
            "paired over seeds and problems; p from Student's t, corrected by Holm over this table's comparisons of "
            f"at least {MIN_SEEDS} seeds of runs that came to their end; detectable: true difference seen with a "
            "chance of 80 % at p < 0.05 before that correction."
        )
    if table.pass_at:
        lines.append(
            "avg@n: mean share of a problem's n samples that is right; pass@k: chance that one of k samples is right, "
            "estimated without bias from all n (arXiv 2107.03374, Eq. 1). An interval without width: the same for "
            "every problem and seed."
        )
    footer = table.footer()
    parts = (commit.partition("+") for commit in footer["commits"])
    commits = ", ".join(commit[:12] + plus + changes for commit, plus, changes in parts) or "unknown"
    return [*lines, f"Commit: {commits}. Runs: {' '.join(run['id'][:8] for run in footer['runs']) or 'none'}."]


def _collapses(table: Table) -> Iterator[str]:
    """A line for each stop rule that ended runs of the table: whose they are, and at which steps."""
    rules: dict[str, dict[str, None]] = {}
    for row in table.rows:
        name = f"{row.label} on {row.profile}" if len(table.profiles) > 1 else row.label
        ended: dict[tuple[str, int], list[int]] = {}
        for collapse in row.collapses:
            ended.setdefault((collapse.rule, collapse.step), []).append(collapse.seed)
        for (rule, step), own in ended.items():
            rules.setdefault(rule, {})[f"{name} {seed_names(own)} at step {step}"] = None
    for rule, runs in rules.items():
        yield f"Collapsed by the rule {rule}: {'; '.join(runs)}."


def _marks(table: Table) -> Iterator[str]:
    for label, suspect in dict.fromkeys((row.label, row.suspect) for row in table.all_rows if row.suspect):
        yield f"Suspect: {label}: {'; '.join(suspect)}."
    labels: dict[tuple[str, ...], dict[str, None]] = {}
    for row in table.all_rows:
        if row.provenance:
            labels.setdefault(row.provenance, {})[row.label] = None
    for provenance, named in labels.items():
        yield f"Provenance: {', '.join(named)}: {'; '.join(provenance)}."


def _graded_as(benchmark: GradedBenchmark) -> str:
    decoding = "greedy" if benchmark.temperature == 0 else f"T = {benchmark.temperature:g}"
    samples = f" x {benchmark.samples}" if benchmark.samples > 1 else ""
    return f"{benchmark.label}: {benchmark.problems}{samples}, {decoding}"


# steps to a target


def _target_document(table: TargetTable) -> Document:
    plural = "s" if len(table.profiles) > 1 else ""
    title = f"{table.title}: steps to {table.target.words}. Profile{plural} {', '.join(table.profiles)}."
    grids = [_grid("Steps to the target", TARGET_COLUMNS, table.arms, table)]
    if table.evaluated:
        evaluated = f"{AVERAGE.heading} at every evaluated step"
        few = f"in brackets after it: seeds, where fewer than {MIN_SEEDS}"
        grids.append(_grid(f"{evaluated} ({few})", evaluated_columns(table), table.arms, table))
    window = table.target.window
    over = f"the mean of the last {window} steps" if window > 1 else "the value"
    notes = [
        *table.notes,
        f"Steps: the first step at which {over} of {table.target.metric} is at the target; mean over seeds with a 95 % "
        "interval (Student's t) only where every seed reached it. Tokens and seconds: sampled and spent in training "
        "until then, means over seeds; seconds depend on the machine and on what else ran on it.",
    ]
    if any(seed.or_earlier for arm in table.arms for seed in arm.seeds):
        notes.append(
            f"Or earlier: before its step {window} no run has a mean over {window}; --window 1 reads single steps."
        )
    notes.append(
        f"{AVERAGE.heading} at every evaluated step, with its 95 % interval: listed, none chosen, for the benchmarks "
        "are the test set."
    )
    return Document(table.name, title, tuple(grids), tuple(notes))
