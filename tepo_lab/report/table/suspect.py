"""What makes a complete evaluation suspect: a number in a table must mean what it seems to."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from tepo_lab.errors import RecordError
from tepo_lab.records.history import RunHistory
from tepo_lab.report.table.counts import ProblemCounts
from tepo_lab.schema.step_metrics import SAMPLER_MISMATCH
from tepo_lab.schema.table import SuspectLimits


def suspicions(run: RunHistory, step: int, counts: Mapping[str, ProblemCounts], limits: SuspectLimits) -> Iterator[str]:
    """Why the evaluation of a run at `step` is suspect, a phrase each; none when nothing speaks against it.

    Args: `counts` of the benchmarks by name.
    """
    right = sum(int(problems.correct.sum()) for problems in counts.values())
    graded = sum(int(problems.graded.sum()) for problems in counts.values())
    if right in (0, graded):
        yield f"{100 if right else 0} % on every benchmark"
    yield from _shares(counts.values(), graded, limits)
    recorded = run.evaluations[step].counts
    differing = [
        f"{tally.correct} of {tally.graded} right on {name}"
        for name, tally in recorded.items()
        if name in counts
        and (tally.correct, tally.graded) != (int(counts[name].correct.sum()), int(counts[name].graded.sum()))
    ]
    if differing:
        yield f"events.jsonl has {', '.join(differing)}, which its generations contradict"
    limit = run.spec.get("rollout", {}).get("max_sampler_mismatch")
    if limit is not None:
        yield from _mismatch(run, step, limit)


def _shares(counts: Collection[ProblemCounts], graded: int, limits: SuspectLimits) -> Iterator[str]:
    truncated = sum(problems.truncated for problems in counts)
    timeouts = sum(problems.timeouts for problems in counts)
    unread = timeouts + sum(problems.unextracted for problems in counts)
    in_time = " that could be compared in time" if timeouts else ""
    for count, limit, phrase in (
        (truncated, limits.truncated, "of generations ended by the length limit"),
        (unread, limits.unextracted, f"of generations without an answer{in_time}"),
    ):
        if count / graded > limit:
            yield f"{100 * count / graded:.1f} % {phrase} (limit {100 * limit:g} %)"


def _mismatch(run: RunHistory, step: int, limit: float) -> Iterator[str]:
    """Where sampler and trainer differ by more than `limit` nats a token, in training and in the evaluation."""
    try:
        metrics = run.metrics()
    except RecordError as error:
        yield f"metrics damaged: {str(error).rstrip('.')}"
        return
    by_step = {
        line["step"]: _number(line[SAMPLER_MISMATCH])
        for line in metrics
        if line["step"] <= step and SAMPLER_MISMATCH in line
    }
    over = [at for at, value in by_step.items() if value > limit]
    if over:
        worst = max(over, key=by_step.__getitem__)
        share = f"passed at {len(over)} of {len(by_step)} steps"
        yield f"{_difference(by_step[worst])} at step {worst} (limit {limit:g}, {share})"
    evaluation = run.evaluations[step]
    measured = _number(evaluation.sampler_mismatch)
    if evaluation.checks_sampler and measured > limit:
        yield f"{_difference(measured)} in the evaluation (limit {limit:g})"


def _number(mismatch: float | None) -> float:
    # What was not finite is null in the record.
    return math.inf if mismatch is None else float(mismatch)


def _difference(mismatch: float) -> str:
    if math.isfinite(mismatch):
        return f"sampler and trainer differ by {mismatch:.3g} nats a token"
    return "the sampler's log-probabilities are not finite"
