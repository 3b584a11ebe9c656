"""Every row against its parent, where the table has both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tepo_lab.report.table.frame import Comparison
from tepo_lab.report.table.rows import Row, generation_weights, shares_of
from tepo_lab.report.table.wanted import GradedBenchmark
from tepo_lab.stats.paired import Difference, compare, paired


def comparisons(
    rows: Sequence[Row], benchmarks: Sequence[GradedBenchmark], draws: int, seed: int, *, at_budget: bool = False
) -> list[Comparison]:
    """Rows against their parents over the seeds both have; the p values of the whole table are corrected together.

    A row's parent is the nearest of its arm's ancestors among its profile's rows, read at the same step: in the row's
    own panel, else in the first that has it. The same evaluations are compared once, however many panels show them. A
    pair of runs that are not as far as they were to train has no verdict, and no part in the correction.
    Args: `at_budget`: rows were read where all have spent the same, and so at no one step.
    """
    pairs = _pairs(rows)
    tested = [(arm, parent, seeds) for arm, parent in pairs if (seeds := _common(arm, parent))]
    differences = [
        paired(*(shares_of((side.counted[one] for one in seeds), benchmarks) for side in (arm, parent)))
        for arm, parent, seeds in tested
    ]
    cut_short = [_cut_short(*pair) for pair in tested]
    compared = compare(
        differences,
        generation_weights(benchmarks),
        asked=[reason is None for reason in cut_short],
        draws=draws,
        seed=seed,
    )
    resolved = iter(zip(compared, cut_short, strict=True))
    results = []
    for arm, parent in pairs:
        named = Comparison(
            panel=arm.panel,
            arm=arm.arm,
            parent=parent.arm,
            seeds=tuple(_common(arm, parent)),
            profile=arm.profile,
            label=arm.label,
            parent_label=parent.label,
            steps=arm.wanted.steps if at_budget else arm.asked,
        )
        results.append(
            _resolved(named, arm, parent, *next(resolved)) if named.seeds else _unresolved(named, arm, parent)
        )
    return results


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows with their parents, those of the same evaluations once."""
    pairs: dict[tuple[object, ...], tuple[Row, Row]] = {}
    for row in rows:
        # A row that was not run is no comparison.
        begun = any(result.run is not None for result in row.results)
        parent = _parent(row, rows) if begun else None
        if parent is None:
            continue
        seeds = _common(row, parent)
        evaluations: tuple[object, ...] = tuple(
            (seed, row.counted[seed].step, parent.counted[seed].step) for seed in seeds
        )
        if not seeds:
            asked = (tuple(result.seed for result in side.results) for side in (row, parent))
            evaluations = row.wanted.steps, *asked
        pairs.setdefault((row.profile, row.wanted.family, parent.wanted.family, *evaluations), (row, parent))
    return list(pairs.values())


def _common(row: Row, parent: Row) -> list[int]:
    return sorted(row.counted.keys() & parent.counted.keys())


def _parent(row: Row, rows: Sequence[Row]) -> Row | None:
    # A home may have runs of an arm that the registry no longer knows; they recorded their parent.
    for ancestor in row.wanted.ancestors or ((row.parent,) if row.parent else ()):
        candidates = [
            other
            for other in rows
            if (other.profile, other.arm, other.wanted.steps) == (row.profile, ancestor, row.wanted.steps)
        ]
        if candidates:
            return next((other for other in candidates if other.panel == row.panel), candidates[0])
    return None


def _resolved(named: Comparison, arm: Row, parent: Row, result: Difference, cut_short: str | None) -> Comparison:
    detectable = result.smallest_detectable
    return replace(
        named,
        difference=100 * result.difference,
        ci95=(100 * result.low, 100 * result.high),
        p=result.p,
        p_holm=result.p_holm,
        smallest_detectable=None if detectable is None else 100 * detectable,
        verdict=f"not resolved ({cut_short})" if cut_short else result.verdict,
        suspect=tuple(side.arm for side in (arm, parent) if side.suspect),
    )


def _unresolved(named: Comparison, arm: Row, parent: Row) -> Comparison:
    missing = next((side for side in (arm, parent) if not side.counted), None)
    return replace(named, reason=f"{missing.label}: {missing.outcome}" if missing else "no seed in common")


def _cut_short(arm: Row, parent: Row, seeds: Sequence[int]) -> str | None:
    """Whose runs of the seeds compared are not as far as they were to train, and how; None where all are."""
    for side in (arm, parent):
        ends = dict.fromkeys(end for seed in seeds if (end := side.counted[seed].unended) is not None)
        if ends:
            return f"{side.label}: {', '.join(ends)}"
    return None
