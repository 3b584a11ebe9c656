"""Every row against its parent, where both stand in the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tepo_lab.report.table.frame import Column, Comparison
from tepo_lab.report.table.rows import RowResult, generation_weights, scores_of
from tepo_lab.stats.paired import Difference, compare, paired


@dataclass(frozen=True)
class Part:
    """A profile's rows. `steps` is where those were read that name no step of their own; None: at a budget."""

    profile: str
    rows: Sequence[RowResult]
    steps: int | None = None


def comparisons(parts: Sequence[Part], columns: Sequence[Column], draws: int, seed: int) -> list[Comparison]:
    """Rows against their parents over the seeds both have; the p values of the whole table are corrected together.

    A row's parent is the nearest of its arm's ancestors that stands among its profile's, read at the same step: in the
    row's own panel, else in the first that has it. The same evaluations are compared once, however many panels show
    them. A pair of runs that are not as far as they were to train has no verdict, and no part in the correction.
    """
    pairs = [(part, *pair) for part in parts for pair in _pairs(part.rows)]
    common = [_common(arm, parent) for _, arm, parent in pairs]
    compared = [(arm, parent, seeds) for (_, arm, parent), seeds in zip(pairs, common, strict=True) if seeds]
    differences = [
        paired(*(scores_of([side.counted[each] for each in seeds], columns) for side in (arm, parent)))
        for arm, parent, seeds in compared
    ]
    asked = [_cut_short(*each) is None for each in compared]
    tested = iter(compare(differences, generation_weights(columns), asked=asked, draws=draws, seed=seed))
    return [
        _resolved(*pair, seeds, next(tested)) if seeds else _unresolved(*pair)
        for pair, seeds in zip(pairs, common, strict=True)
    ]


def _pairs(rows: Sequence[RowResult]) -> list[tuple[RowResult, RowResult]]:
    pairs: dict[tuple[object, ...], tuple[RowResult, RowResult]] = {}
    for row in rows:
        # A row that was not run says so itself.
        begun = any(each.run is not None for each in row.results)
        parent = _parent(row, rows) if begun else None
        if parent is not None:
            key = row.wanted.family, parent.wanted.family, *_compared(row, parent)
            pairs.setdefault(key, (row, parent))
    return list(pairs.values())


def _compared(row: RowResult, parent: RowResult) -> tuple[object, ...]:
    """The evaluations that stand against each other; of rows that have none in common what each was to have."""
    seeds = _common(row, parent)
    if seeds:
        return tuple((seed, row.counted[seed].step, parent.counted[seed].step) for seed in seeds)
    return row.wanted.steps, *(tuple(each.seed for each in side.results) for side in (row, parent))


def _common(row: RowResult, parent: RowResult) -> list[int]:
    return sorted(row.counted.keys() & parent.counted.keys())


def _parent(row: RowResult, rows: Sequence[RowResult]) -> RowResult | None:
    # A home may hold runs of an arm that the registry no longer knows; what they recorded says their parent.
    for ancestor in row.wanted.ancestors or ((row.parent,) if row.parent else ()):
        held = [each for each in rows if each.wanted.arm == ancestor and each.wanted.steps == row.wanted.steps]
        if held:
            return next((each for each in held if each.wanted.panel == row.wanted.panel), held[0])
    return None


def _resolved(part: Part, arm: RowResult, parent: RowResult, seeds: Sequence[int], found: Difference) -> Comparison:
    cut_short = _cut_short(arm, parent, seeds)
    return replace(
        _named(part, arm, parent),
        seeds=tuple(seeds),
        difference=100 * found.difference,
        ci95=(100 * found.low, 100 * found.high),
        p=found.p,
        p_holm=found.p_holm,
        smallest_detectable=None if found.smallest_detectable is None else 100 * found.smallest_detectable,
        verdict=f"not resolved ({cut_short})" if cut_short else found.verdict,
        suspect=tuple(each.wanted.arm for each in (arm, parent) if each.suspect),
    )


def _cut_short(arm: RowResult, parent: RowResult, seeds: Sequence[int]) -> str | None:
    """Whose runs of the seeds compared are not as far as they were to train, and how; None where all are."""
    for side in (arm, parent):
        ends = dict.fromkeys(side.counted[seed].unended for seed in seeds)
        if said := ", ".join(end for end in ends if end is not None):
            return f"{side.wanted.label}: {said}"
    return None


def _unresolved(part: Part, arm: RowResult, parent: RowResult) -> Comparison:
    lacking = next((each for each in (arm, parent) if not each.counted), None)
    reason = f"{lacking.wanted.label}: {lacking.outcome}" if lacking else "no seed in common"
    return replace(_named(part, arm, parent), reason=reason)


def _named(part: Part, arm: RowResult, parent: RowResult) -> Comparison:
    return Comparison(
        panel=arm.wanted.panel,
        arm=arm.wanted.arm,
        parent=parent.wanted.arm,
        seeds=(),
        profile=part.profile,
        label=arm.wanted.label,
        parent_label=parent.wanted.label,
        steps=part.steps if arm.wanted.steps is None else arm.wanted.steps,
    )
