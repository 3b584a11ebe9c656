"""The columns of every table, each as one value: its name, its heading, how it is counted and how it is formatted.

A new column of the main table is one entry of `COLUMNS`, one of the comparisons an entry of `COMPARISON_COLUMNS`, one
of `--target` an entry of `TARGET_COLUMNS`. All formats iterate over these lists. Such as, for the mean length of the
responses and the runs that collapsed:

    Column("tokens", "Tokens", lambda row, _: row.mean_of("tokens"), "{:.0f}".format, is_fact=True)
    Column("collapsed", "Collapsed", lambda row, _: len(row.collapses), is_fact=True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tepo_lab.stats.paired import MIN_SEEDS

if TYPE_CHECKING:
    from tepo_lab.report.table.frame import Comparison, Table
    from tepo_lab.report.table.rows import Row
    from tepo_lab.report.table.target import ArmReach, EvaluatedScore, TargetTable
    from tepo_lab.report.table.wanted import GradedBenchmark

R = TypeVar("R")

#: Ends the outcome or verdict of what is suspect.
SUSPECT = "suspect"


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column over rows of type R of a table.

    `name` is its key in JSON and CSV. `count` gives a row's value from the row and its table, None where it has none.
    `text` formats a value. `detail` goes with it where there is room (k of n), `notes` everywhere (an interval).
    `is_text` sets it left. `marks_best` marks the highest value among comparable rows. `is_fact`: JSON and CSV have its
    value under its name; those of the built-in columns have their own places.
    """

    name: str
    heading: str
    count: Callable[[R, Any], Any]
    text: Callable[[Any], str] = str
    detail: Callable[[R], str] = lambda _: ""
    notes: Callable[[R], Iterable[str]] = lambda _: ()
    is_text: bool = False
    marks_best: bool = False
    is_fact: bool = False


def percent(value: float) -> str:
    """A percent with two decimals."""
    return f"{value:.2f}"


def interval(bounds: tuple[float, float]) -> str:
    """A score's 95 % interval, such as 58.10–64.20."""
    return f"{bounds[0]:.2f}–{bounds[1]:.2f}"


def signed(points: float) -> str:
    """A difference in points, with its sign; none where it rounds to zero."""
    shown = f"{points:+.2f}"
    return "0.00" if shown in ("+0.00", "-0.00") else shown.replace("-", "−")


def p_value(p: float) -> str:
    """A p value with three decimals."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def with_interval(score: tuple[float, tuple[float, float]]) -> str:
    """A percent and its interval in one phrase."""
    return f"{percent(score[0])} [{interval(score[1])}]"


def seed_count(number: int) -> str:
    """1 seed, 2 seeds."""
    return f"{number} seed{'' if number == 1 else 's'}"


def few_seeds(row: Row) -> str | None:
    """What a reader must know of an interval over fewer than three seeds of a trained arm."""
    return seed_count(row.scored_seeds) if row.steps != 0 and 0 < row.scored_seeds < MIN_SEEDS else None


# the main table


def benchmark_column(benchmark: GradedBenchmark) -> Column[Row]:
    """Percent of the benchmark's generations that are right."""

    def value(row: Row, _: Table) -> float | None:
        return row.scores[benchmark.name].percent if row.scores else None

    def of_n(row: Row) -> str:
        return f"{row.scores[benchmark.name].correct}/{row.scores[benchmark.name].graded}"

    return Column(benchmark.name, benchmark.label, value, percent, of_n, marks_best=True)


def _average_notes(row: Row) -> list[str]:
    assert row.average is not None
    few = few_seeds(row)
    return [interval(row.average.ci95), *([few] if few else [])]


AVERAGE: Column[Row] = Column(
    "avg",
    "Avg.",
    lambda row, _: row.average.percent if row.average else None,
    percent,
    notes=_average_notes,
    marks_best=True,
)
MACRO: Column[Row] = Column("macro", "Macro", lambda row, _: row.macro, percent, marks_best=True)

#: Columns of the main table after its benchmarks.
COLUMNS: list[Column[Row]] = [AVERAGE, MACRO]


def row_columns(table: Table) -> list[Column[Row]]:
    """All columns of a table's rows."""
    return [*map(benchmark_column, table.benchmarks), *COLUMNS]


# comparisons


def comparison_name(comparison: Comparison, table: Table) -> str:
    """The arm's label, with the profile, panel and steps that distinguish it from the table's other comparisons."""
    same = [
        other
        for other in table.comparisons
        if (other.profile, other.arm, other.parent) == (comparison.profile, comparison.arm, comparison.parent)
    ]
    where = [comparison.profile] if len(table.profiles) > 1 else []
    if len(same) > 1 and comparison.panel is not None:
        where.append(table.panels.get(comparison.panel) or comparison.panel)
    if len({other.steps for other in same}) > 1 and comparison.steps is not None:
        where.append(f"{comparison.steps} steps")
    return f"{comparison.label} ({', '.join(where)})" if where else comparison.label


def _verdict(comparison: Comparison, _: Table) -> str:
    reason = f" ({comparison.reason})" if comparison.difference is None else ""
    return f"{comparison.verdict}{reason}{f', {SUSPECT}' if comparison.suspect else ''}"


COMPARISON_COLUMNS: list[Column[Comparison]] = [
    Column("arm", "Arm", comparison_name, is_text=True),
    Column("parent", "Parent", lambda comparison, _: comparison.parent_label, is_text=True),
    Column("difference", "Difference", lambda comparison, _: comparison.difference, signed),
    Column("ci95", "95 %", lambda comparison, _: comparison.ci95, lambda bounds: " to ".join(map(signed, bounds))),
    Column("p", "p", lambda comparison, _: comparison.p, p_value),
    Column("p_holm", "p (Holm)", lambda comparison, _: comparison.p_holm, p_value),
    Column("smallest_detectable", "Detectable", lambda comparison, _: comparison.smallest_detectable, percent),
    Column("seeds", "Seeds", lambda comparison, _: len(comparison.seeds) or None),
    Column("verdict", "Verdict", _verdict, is_text=True),
]


# avg@n and pass@k of a benchmark


def _at_k_label(row: Row, table: Table) -> str:
    marks = [row.profile if len(table.profiles) > 1 else None, few_seeds(row), SUSPECT if row.suspect else None]
    shown = ", ".join(mark for mark in marks if mark)
    return f"{row.label} ({shown})" if shown else row.label


def at_k_columns(benchmark: GradedBenchmark, pass_at: Sequence[int]) -> list[Column[Row]]:
    """avg@n of the benchmark's n samples and pass@k for each k that it has the samples for, with intervals."""
    names = [f"avg@{benchmark.samples}", *(f"pass@{k}" for k in pass_at if k <= benchmark.samples)]

    def value_of(name: str) -> Callable[[Row, Table], Any]:
        def value(row: Row, _: Table) -> tuple[float, tuple[float, float]] | None:
            return row.at_k.get(benchmark.name, {}).get(name)

        return value

    scores: list[Column[Row]] = [Column(name, name, value_of(name), with_interval) for name in names]
    return [Column("arm", "Arm", _at_k_label, is_text=True), *scores]


# steps to a target


def _target_label(arm: ArmReach, table: TargetTable) -> str:
    return f"{arm.label} ({arm.profile})" if len(table.profiles) > 1 else arm.label


def _target_steps(arm: ArmReach, _: TargetTable) -> str | None:
    if arm.mean is None:
        begun = any(seed.last_step for seed in arm.seeds)
        return None if arm.reached or not arm.seeds else "not reached" if begun else "not run"
    earlier = " or earlier" if any(seed.or_earlier for seed in arm.reached) else ""
    bounds = f" [{arm.ci95[0]:.1f}–{arm.ci95[1]:.1f}]" if arm.ci95 else ""
    few = f" ({seed_count(len(arm.reached))})" if len(arm.reached) < MIN_SEEDS else ""
    return f"{arm.mean:.1f}{earlier}{bounds}{few}"


def _mean_until(name: str) -> Callable[[ArmReach, TargetTable], float | None]:
    def mean(arm: ArmReach, _: TargetTable) -> float | None:
        if arm.mean is None:
            return None
        return sum(float(getattr(seed, name) or 0.0) for seed in arm.reached) / len(arm.reached)

    return mean


TARGET_COLUMNS: list[Column[ArmReach]] = [
    Column("arm", "Arm", _target_label, is_text=True),
    Column(
        "reached",
        "Reached",
        lambda arm, _: f"{len(arm.reached)} of {len(arm.seeds)}" if arm.seeds else "not run",
    ),
    Column("steps", "Steps", _target_steps),
    Column("tokens", "Tokens", _mean_until("tokens"), "{:,.0f}".format),
    Column("seconds", "Seconds", _mean_until("seconds"), "{:,.0f}".format),
    Column("seeds", "By seed", lambda arm, _: ", ".join(seed.words for seed in arm.seeds), is_text=True),
]


def evaluated_columns(table: TargetTable) -> list[Column[ArmReach]]:
    """The average at every evaluated step."""
    by_place = {(score.profile, score.arm, score.label, score.step): score for score in table.evaluated}

    def value_at(step: int) -> Callable[[ArmReach, TargetTable], EvaluatedScore | None]:
        return lambda arm, _: by_place.get((arm.profile, arm.arm, arm.label, step))

    def text(score: EvaluatedScore) -> str:
        few = f" ({len(score.seeds)})" if len(score.seeds) < MIN_SEEDS else ""
        return with_interval((score.percent, score.ci95)) + few

    steps = sorted({score.step for score in table.evaluated})
    scores = [Column(f"step {step}", f"step {step}", value_at(step), text) for step in steps]
    return [TARGET_COLUMNS[0], *scores]
