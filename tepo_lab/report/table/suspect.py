"""What makes a complete evaluation suspect: a number in a table must be one that really says what it seems to."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet

from tepo_lab.errors import RecordError
from tepo_lab.report.table.frame import Column
from tepo_lab.report.table.scan import Counts, FoundRun
from tepo_lab.schema.step_metrics import EVALUATED_MISMATCH, SAMPLER_MISMATCH
from tepo_lab.schema.table import SuspectLimits


def suspicions(
    run: FoundRun, step: int, counts: Mapping[str, Counts], columns: Sequence[Column], limits: SuspectLimits
) -> list[str]:
    """Why the evaluation of a run at `step` is suspect, a phrase each; none when nothing speaks against it."""
    held = [counts[column.name] for column in columns]
    timeouts = _timeouts(run.folder.generations(step), {column.name for column in columns})
    return [
        *_all_or_nothing(held),
        *_shares(held, timeouts, limits),
        *_told_otherwise(run, step, counts),
        *_mismatch(run, step),
    ]


def _all_or_nothing(held: Sequence[Counts]) -> Iterator[str]:
    right, graded = (sum(int(getattr(each, name).sum()) for each in held) for name in ("correct", "graded"))
    if right == 0:
        yield "0 % on every benchmark"
    elif right == graded:
        yield "100 % on every benchmark"


def _shares(held: Sequence[Counts], timeouts: int | str, limits: SuspectLimits) -> Iterator[str]:
    graded = sum(int(each.graded.sum()) for each in held)
    truncated, unread = (sum(getattr(each, name) for each in held) for name in ("truncated", "unextracted"))
    without = "of generations without an answer"
    if isinstance(timeouts, str):
        yield f"how its answers were graded cannot be read ({timeouts})"
    elif timeouts:
        unread, without = unread + timeouts, f"{without} that could be compared in time"
    for count, limit, words in (
        (truncated, limits.truncated, "of generations ended by the length limit"),
        (unread, limits.unextracted, without),
    ):
        share = count / graded
        if share > limit:
            yield f"{100 * share:.1f} % {words} (limit {100 * limit:g} %)"


def _timeouts(path: Path, benchmarks: Collection[str]) -> int | str:
    """How many answers of an evaluation could not be compared in time and count as wrong; why that cannot be read."""
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            if "how" not in file.schema_arrow.names:
                return 0
            rows = file.read(columns=["benchmark", "how"])
    except (pyarrow.ArrowException, OSError) as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    counted = rows.group_by(["benchmark", "how"]).aggregate([([], "count_all")]).to_pylist()
    found = {(each["benchmark"], each["how"]): int(each["count_all"]) for each in counted}
    return sum(found.get((name, "timeout"), 0) for name in benchmarks)


def _told_otherwise(run: FoundRun, step: int, counts: Mapping[str, Counts]) -> Iterator[str]:
    """What the run recorded when it was evaluated, where its generations say otherwise now."""
    if not run.status:
        yield "events.jsonl is gone, or does not say what became of it"
    told = {name: (each["correct"], each["graded"]) for name, each in run.tallies.get(step, {}).items()}
    found = {name: (int(each.correct.sum()), int(each.graded.sum())) for name, each in counts.items()}
    differ = [
        f"{right} of {graded} right on {name}"
        for name, (right, graded) in told.items()
        if name in found and (right, graded) != found[name]
    ]
    if differ:
        yield f"its events tell of {', '.join(differ)}, which its generations do not"


def _mismatch(run: FoundRun, step: int) -> Iterator[str]:
    limit = run.mismatch_limit
    if limit is None:
        return
    try:
        metrics = run.folder.whole_metrics()
    except RecordError as error:
        yield f"metrics damaged: {str(error).rstrip('.')}"
        return
    if len(metrics) < step:
        yield f"metrics.jsonl has the first {len(metrics)} of its {step} steps"
    found = {
        line["step"]: _number(line[SAMPLER_MISMATCH])
        for line in metrics
        if line["step"] <= step and SAMPLER_MISMATCH in line
    }
    over = [at for at, value in found.items() if value > limit]
    if over:
        worst = max(over, key=found.__getitem__)
        yield f"{_apart(found[worst])} at step {worst} (limit {limit:g}, passed at {len(over)} of {len(found)} steps)"
    # One that was graded again is told of once more, without it.
    told = [
        _number(event[EVALUATED_MISMATCH])
        for event in run.folder.events()
        if event["event"] == "evaluated" and event["step"] == step and EVALUATED_MISMATCH in event
    ]
    if told and told[-1] > limit:
        yield f"{_apart(told[-1])} in the evaluation (limit {limit:g})"


def _number(mismatch: float | None) -> float:
    return math.inf if mismatch is None else float(mismatch)


def _apart(mismatch: float) -> str:
    if math.isfinite(mismatch):
        return f"sampler and trainer differ by {mismatch:.3g} nats a token"
    return "the sampler's log-probabilities are not finite"
