"""The words around a table, shared by every format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from tepo_lab.report.render.grid import Grid
from tepo_lab.report.table.best import RULE, alike, best
from tepo_lab.report.table.frame import Average, Cell, Column, Comparison, Row, Table
from tepo_lab.stats.paired import MIN_SEEDS

AVERAGE, MACRO = "Avg.", "Macro"

COMPARED = "Against the parent"
COMPARISON_HEADER = ("Arm", "Parent", "Difference", "95 %", "p", "p (Holm)", "Detectable", "Seeds", "Verdict")

#: Stands at the end of a suspect row's outcome.
SUSPECT = "suspect"


@dataclass(frozen=True)
class Block:
    """Neighbouring rows under one heading, with the best of each column among those that are alike."""

    title: str | None
    rows: tuple[Row, ...]
    alike: tuple[Row, ...] = ()
    best: Mapping[str, float] = field(default_factory=dict)

    def best_for(self, row: Row) -> Mapping[str, float]:
        """The best of each column, that a row's own numbers are held against; nothing for a row unlike the others."""
        return self.best if any(row is each for each in self.alike) else {}


def blocks(table: Table) -> Iterator[Block]:
    """The table's rows from top to bottom: of each profile the untrained model, then its panels."""
    several = len(table.profiles) > 1
    for each in table.untrained:
        if several or each.row is not None:
            yield Block(f"Profile {each.profile}" if several else None, (each.row,) if each.row else ())
        # A lone panel of several profiles says no more than the profile does.
        headed = not several or len(table.panels) > 1
        for panel, held in groupby(table.rows_of(each.profile), key=lambda row: row.panel):
            rows = tuple(held)
            among = tuple(alike(rows))
            title = heading(table, panel, rows) if headed else None
            yield Block(title, rows, among, best(among, table.columns))


def heading(table: Table, panel: str | None, rows: Sequence[Row]) -> str | None:
    """A panel's title, with the steps of its rows where the table's rows are read at different ones."""
    if panel is None or (len(table.panels) == 1 and table.panels.get(panel) == table.title):
        return None
    title, steps = table.panels.get(panel) or panel, {row.steps for row in rows}
    return f"{title}, {steps.pop()} steps" if table.steps is None and len(steps) == 1 else title


def caption(table: Table) -> str:
    """Title, profile and steps: what the numbers are of."""
    steps = [table.steps] if table.steps is not None else sorted({row.steps for row in table.rows if row.steps})
    words = " or ".join(str(each) for each in steps)
    after = f", after {words} step{'' if words == '1' else 's'}" if words else ""
    title = sentence(table.title) if table.title else ""
    return f"{title} Profile{'s' if len(table.profiles) > 1 else ''} {table.profile}{after}.".strip()


def sentence(words: str) -> str:
    """Words with one full stop, where they do not end in a mark of their own."""
    return words if words.endswith(("?", "!")) else f"{words.rstrip('.')}."


def percent(cell: Cell) -> str:
    """A cell's score, or one word for why there is none."""
    return cell.missing or "not run" if cell.percent is None else f"{cell.percent:.2f}"


def interval(bounds: tuple[float, float] | None) -> str:
    """A score's 95 % interval, such as 58.10–64.20."""
    return "" if bounds is None else f"{bounds[0]:.2f}–{bounds[1]:.2f}"


def signed(points: float) -> str:
    """A difference in points, with its sign; none where it rounds to zero."""
    shown = f"{points:+.2f}"
    return "0.00" if shown in ("+0.00", "-0.00") else shown.replace("-", "−")


def seeds(row: Row) -> str:
    """The seeds whose evaluations are counted."""
    if row.steps == 0:
        return "untrained"
    if not row.seeds:
        return "no seeds"
    return f"seed{'s' if len(row.seeds) > 1 else ''} {' '.join(str(seed) for seed in row.seeds)}"


def outcome(row: Row) -> str:
    """What became of a row, and the marks of its scores: suspect, from a changed tree, partly by other code."""
    marks = [SUSPECT] if row.suspect else []
    marks += ["changed tree"] if any("changed source tree" in each for each in row.provenance) else []
    marks += ["other code"] if any("other code" in each for each in row.provenance) else []
    marks += ["other files"] if any("other files" in each for each in row.provenance) else []
    return ", ".join([row.outcome, *marks])


def described(row: Row, table: Table) -> str:
    """Seeds, steps (where rows differ in them) and outcome of a row, in one phrase."""
    steps = f"step {row.steps}, " if table.steps is None and row.steps and row.seeds else ""
    return f"{seeds(row)}, {steps}{outcome(row)}"


def few_seeds(row: Row) -> str | None:
    """What a reader must know of an interval over fewer than three seeds of a trained arm."""
    if row.steps == 0 or not 0 < row.average.seeds < MIN_SEEDS:
        return None
    return "1 seed" if row.average.seeds == 1 else f"{row.average.seeds} seeds"


def footnotes(table: Table) -> list[str]:
    """What stands under the table: notes, reasons of missing cells, marks, columns, statistics and provenance."""
    footer = table.footer()
    lines = list(table.notes)
    several = len(table.profiles) > 1
    for each in table.untrained:
        if each.row is None:
            lines.append(f"Untrained model{f' of {each.profile}' if several else ''}: {sentence(str(each.reason))}")
    reasons = {row.label: row.average.reason for row in table.rows if row.average.reason not in (None, row.outcome)}
    lines += [f"{label}: {sentence(str(reason))}" for label, reason in reasons.items()]
    lines += _collapses(table)
    lines += _marks(table)
    if table.published:
        lines.append(
            f"p: the paper's number ({table.published}), then ours minus it, and whether it lies in our interval."
        )
    columns = "; ".join(_column(column) for column in table.columns)
    lines.append(f"Cells: percent of generations right, k/n summed over seeds. {columns}.")
    total = sum(column.generations for column in table.columns)
    lines.append(f"{AVERAGE}: over all {total} generations of a seed, as in the paper; {MACRO}: plain mean of columns.")
    if any(block.best for block in blocks(table)):
        lines.append(f"Marked: the best of each column {RULE}.")
    lines.append(f"Intervals: {table.interval}.")
    if table.comparisons:
        lines.append(
            f"Differences: points of {AVERAGE} against the parent, or its nearest ancestor in the table, paired over "
            "seeds and problems; p from Student's t, corrected by Holm over this table's comparisons of at least "
            f"{MIN_SEEDS} seeds of runs that came to their end; detectable: true difference seen with a chance of 80 % "
            "at p < 0.05 before that correction."
        )
    if table.pass_at:
        lines.append(
            "avg@n: mean share of a problem's n samples that is right; pass@k: chance that one of k samples is right, "
            "estimated without bias from all n (arXiv 2107.03374, Eq. 1). An interval without width: every problem and "
            "seed says the same."
        )
    parts = (commit.partition("+") for commit in footer["commits"])
    commits = ", ".join(commit[:12] + plus + changes for commit, plus, changes in parts) or "unknown"
    lines.append(f"Commit: {commits}. Runs: {' '.join(run['id'][:8] for run in footer['runs']) or 'none'}.")
    return lines


def _collapses(table: Table) -> Iterator[str]:
    """A line for each stop rule that ended runs of the table: whose they are, and at which steps."""
    several = len(table.profiles) > 1
    rules: dict[str, dict[str, None]] = {}
    for row in table.rows:
        steps: dict[tuple[str, int], list[int]] = {}
        for each in row.collapses:
            steps.setdefault((each.rule, each.step), []).append(each.seed)
        for (rule, step), held in steps.items():
            seeds = f"seed{'s' if len(held) > 1 else ''} {' '.join(map(str, held))}"
            name = f"{row.label} on {row.profile}" if several else row.label
            rules.setdefault(rule, {})[f"{name} {seeds} at step {step}"] = None
    for rule, ended in rules.items():
        yield f"Collapsed by the rule {rule}: {'; '.join(ended)}."


def _marks(table: Table) -> Iterator[str]:
    for row in dict.fromkeys((row.label, row.suspect) for row in table.all_rows if row.suspect):
        yield f"Suspect: {row[0]}: {'; '.join(row[1])}."
    said: dict[tuple[str, ...], dict[str, None]] = {}
    for each in table.all_rows:
        if each.provenance:
            said.setdefault(each.provenance, {})[each.label] = None
    for words, labels in said.items():
        yield f"Provenance: {', '.join(labels)}: {'; '.join(words)}."


def _column(column: Column) -> str:
    decoding = "greedy" if column.temperature == 0 else f"T = {column.temperature:g}"
    samples = f" x {column.samples}" if column.samples > 1 else ""
    return f"{column.label}: {column.problems}{samples}, {decoding}"


def grids(table: Table) -> list[Grid]:
    """The smaller tables under the rows: comparisons, and avg@n with pass@k where they were asked for."""
    found = [_at_k(table, column) for column in table.columns if table.pass_at and column.samples > 1]
    return [*found, *([comparison_grid(table)] if table.comparisons else [])]


def comparison_grid(table: Table) -> Grid:
    """Every comparison of the table."""
    cells = [comparison_cells(each, table) for each in table.comparisons]
    return Grid(COMPARED, COMPARISON_HEADER, tuple(map(tuple, cells)), words=(0, 1, 8))


def compared(comparison: Comparison, table: Table) -> tuple[str, str]:
    """What a comparison's arm and parent are called, the arm with the profile, panel and steps that tell it apart."""
    others = [each for each in table.comparisons if _arms(each) == _arms(comparison)]
    where = [comparison.profile] if len(table.profiles) > 1 else []
    if len(others) > 1:
        where += [table.panels.get(comparison.panel) or comparison.panel] if comparison.panel is not None else []
        several = len({each.steps for each in others}) > 1
        where += [f"{comparison.steps} steps"] if several and comparison.steps is not None else []
    return f"{comparison.label} ({', '.join(where)})" if where else comparison.label, comparison.parent_label


def _arms(comparison: Comparison) -> tuple[str, str, str]:
    return comparison.profile, comparison.arm, comparison.parent


def comparison_cells(comparison: Comparison, table: Table) -> list[str]:
    """A comparison's values as text, in the order of `COMPARISON_HEADER`."""
    names = compared(comparison, table)
    suspect = [SUSPECT] if comparison.suspect else []
    if comparison.difference is None or comparison.ci95 is None:
        verdict = f"{comparison.verdict} ({comparison.reason})"
        return [*names, "", "", "", "", "", "", ", ".join([verdict, *suspect])]
    return [
        *names,
        signed(comparison.difference),
        " to ".join(signed(bound) for bound in comparison.ci95),
        _p(comparison.p),
        _p(comparison.p_holm),
        "" if comparison.smallest_detectable is None else f"{comparison.smallest_detectable:.2f}",
        str(len(comparison.seeds)),
        ", ".join([comparison.verdict, *suspect]),
    ]


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _at_k(table: Table, column: Column) -> Grid:
    names = [f"avg@{column.samples}", *(f"pass@{k}" for k in table.pass_at if k <= column.samples)]
    several = len(table.profiles) > 1
    rows = []
    for row in table.all_rows:
        cell, few = row.cells[column.name], few_seeds(row)
        said = [*([row.profile] if several else []), *([few] if few else []), *([SUSPECT] if row.suspect else [])]
        held = [cell.at_k.get(name) for name in names]
        shown = [f"{each.percent:.2f} [{interval(each.ci95)}]" if each else percent(cell) for each in held]
        rows.append((f"{row.label} ({', '.join(said)})" if said else row.label, *shown))
    return Grid(f"{column.label}, {column.samples} samples a problem", ("Arm", *names), tuple(rows))


def published_words(scored: Cell | Average) -> list[str]:
    """The paper's number, and ours minus it with whether it lies in our interval; nothing where there is none."""
    published = scored.published
    if published is None:
        return []
    if published.difference is None:
        return [f"p {published.percent:.2f}"]
    return [f"p {published.percent:.2f}", f"{signed(published.difference)} {'in' if published.inside else 'out'}"]
