"""Every row against its parent, where both stand in the table."""

from __future__ import annotations

from collections.abc import Sequence

from tepo_lab.report.frame import Column, Comparison
from tepo_lab.report.rows import RowResult, generation_weights, scores_of
from tepo_lab.stats.paired import Difference, compare, paired


def comparisons(rows: Sequence[RowResult], columns: Sequence[Column], draws: int, seed: int) -> list[Comparison]:
    """Rows against their parents over the seeds both have, corrected together; each pair of families once."""
    pairs = _pairs(rows)
    common = [sorted(arm.counted.keys() & parent.counted.keys()) for arm, parent in pairs]
    differences = [
        paired(*(scores_of([side.counted[each] for each in seeds], columns) for side in pair))
        for pair, seeds in zip(pairs, common, strict=True)
        if seeds
    ]
    tested = iter(compare(differences, generation_weights(columns), draws=draws, seed=seed))
    return [
        _resolved(*pair, seeds, next(tested)) if seeds else _unresolved(*pair)
        for pair, seeds in zip(pairs, common, strict=True)
    ]


def _pairs(rows: Sequence[RowResult]) -> list[tuple[RowResult, RowResult]]:
    pairs: dict[tuple[str, str], tuple[RowResult, RowResult]] = {}
    for row in rows:
        parents = [each for each in rows if each.wanted.arm == row.parent]
        if parents:
            parent = next((each for each in parents if each.wanted.panel == row.wanted.panel), parents[0])
            pairs.setdefault((row.wanted.family, parent.wanted.family), (row, parent))
    return list(pairs.values())


def _resolved(arm: RowResult, parent: RowResult, seeds: Sequence[int], found: Difference) -> Comparison:
    return Comparison(
        panel=arm.wanted.panel,
        arm=arm.wanted.arm,
        parent=parent.wanted.arm,
        seeds=tuple(seeds),
        difference=round(100 * found.difference, 4),
        ci95=(round(100 * found.low, 4), round(100 * found.high, 4)),
        p=float(f"{found.p:.4g}"),
        p_holm=float(f"{found.p_holm:.4g}"),
        smallest_detectable=round(100 * found.smallest_detectable, 4),
        verdict=found.verdict,
    )


def _unresolved(arm: RowResult, parent: RowResult) -> Comparison:
    lacking = next((each for each in (arm, parent) if not each.counted), None)
    reason = f"{lacking.wanted.arm}: {lacking.outcome}" if lacking else "no seed in common"
    return Comparison(arm.wanted.panel, arm.wanted.arm, parent.wanted.arm, (), reason=reason)
