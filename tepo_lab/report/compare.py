"""Every row against its parent, where both stand in the table."""

from __future__ import annotations

from collections.abc import Sequence

from tepo_lab.report.frame import Column, Comparison
from tepo_lab.report.rows import RowResult, generation_weights, scores_of
from tepo_lab.stats.paired import Difference, compare, paired


def comparisons(
    parts: Sequence[tuple[str, Sequence[RowResult]]], columns: Sequence[Column], draws: int, seed: int
) -> list[Comparison]:
    """Rows against their parents over the seeds both have; the p values of the whole table are corrected together.

    Args: `parts`, each profile with its rows. A row's parent is the nearest of its arm's ancestors that stands among
    them, read at the same step. Each pair is compared once, by the rows with the most seeds.
    """
    pairs = [(profile, *pair) for profile, rows in parts for pair in _pairs(rows)]
    common = [sorted(arm.counted.keys() & parent.counted.keys()) for _, arm, parent in pairs]
    differences = [
        paired(*(scores_of([side.counted[each] for each in seeds], columns) for side in pair))
        for (_, *pair), seeds in zip(pairs, common, strict=True)
        if seeds
    ]
    tested = iter(compare(differences, generation_weights(columns), draws=draws, seed=seed))
    return [
        _resolved(*pair, seeds, next(tested)) if seeds else _unresolved(*pair)
        for pair, seeds in zip(pairs, common, strict=True)
    ]


def _pairs(rows: Sequence[RowResult]) -> list[tuple[RowResult, RowResult]]:
    pairs: dict[tuple[str, str, int | None], tuple[RowResult, RowResult]] = {}
    for row in rows:
        # A row that was not run says so itself.
        begun = any(each.run is not None for each in row.results)
        parent = _parent(row, rows) if begun else None
        if parent is not None:
            key = row.wanted.family, parent.wanted.family, row.wanted.steps
            if key not in pairs or _shared(row, parent) > _shared(*pairs[key]):
                pairs[key] = row, parent
    return list(pairs.values())


def _shared(row: RowResult, parent: RowResult) -> int:
    return len(row.counted.keys() & parent.counted.keys())


def _parent(row: RowResult, rows: Sequence[RowResult]) -> RowResult | None:
    # A home may hold runs of an arm that the registry no longer knows; what they recorded says their parent.
    for ancestor in row.wanted.ancestors or ((row.parent,) if row.parent else ()):
        held = [each for each in rows if each.wanted.arm == ancestor and each.wanted.steps == row.wanted.steps]
        if held:
            return next((each for each in held if each.wanted.panel == row.wanted.panel), held[0])
    return None


def _resolved(profile: str, arm: RowResult, parent: RowResult, seeds: Sequence[int], found: Difference) -> Comparison:
    return Comparison(
        panel=arm.wanted.panel,
        arm=arm.wanted.arm,
        parent=parent.wanted.arm,
        seeds=tuple(seeds),
        difference=100 * found.difference,
        ci95=(100 * found.low, 100 * found.high),
        p=found.p,
        p_holm=found.p_holm,
        smallest_detectable=None if found.smallest_detectable is None else 100 * found.smallest_detectable,
        verdict=_verdict(arm, parent, found),
        profile=profile,
        suspect=tuple(each.wanted.arm for each in (arm, parent) if each.suspect),
    )


def _verdict(arm: RowResult, parent: RowResult, found: Difference) -> str:
    """The verdict, if the runs of both sides are as far as they were to train."""
    cut = next((each for each in (arm, parent) if each.unended), None)
    return found.verdict if cut is None else f"not resolved ({cut.wanted.label}: {cut.unended})"


def _unresolved(profile: str, arm: RowResult, parent: RowResult) -> Comparison:
    lacking = next((each for each in (arm, parent) if not each.counted), None)
    reason = f"{lacking.wanted.label}: {lacking.outcome}" if lacking else "no seed in common"
    return Comparison(arm.wanted.panel, arm.wanted.arm, parent.wanted.arm, (), reason=reason, profile=profile)
