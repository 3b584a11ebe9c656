"""A run's history in MLflow's terms: params, tags, metrics by step, status. Knows nothing of MLflow itself."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from tepo_lab.records.events import Collapsed, Evaluated, Failed
from tepo_lab.records.history import RunHistory, State

#: Values of params and tags longer than this are cut; the run.json is an artifact.
VALUE_LIMIT = 500

_STATUS = {
    State.RUNNING: "RUNNING",
    State.INTERRUPTED: "KILLED",
    State.COMPLETE: "FINISHED",
    State.COLLAPSED: "FINISHED",
    State.STOPPED: "FINISHED",
    State.FAILED: "FAILED",
}


class Point(NamedTuple):
    """A value of a metric; `time` is in milliseconds since 1970. The order is that of `mlflow.entities.Metric`."""

    name: str
    value: float
    time: int
    step: int


@dataclass(frozen=True)
class RunView:
    """One run as MLflow shows it. Times are in milliseconds since 1970; `ended` is None while it runs.

    `tags` say which run it is; `progress` are the tags that change: how many of its events and steps are shown, and its
    outcome.
    """

    params: dict[str, str]
    tags: dict[str, str]
    progress: dict[str, str]
    points: list[Point]
    status: str
    started: int
    ended: int | None


def run_view(history: RunHistory, sweep: str, *, events: int = 0, steps: int = 0) -> RunView:
    """The view of a run that has begun.

    Args: `events` and `steps` are shown already: `points` are of what comes after them.
    Raises `RecordError` when the run's metrics are damaged.
    """
    metrics = history.metrics()
    started, updated = history.started or 0.0, history.updated or 0.0
    if history.state is State.RUNNING:
        ended = None
    elif history.outcome is not None:
        ended = milliseconds(history.outcome.time)
    else:
        ended = milliseconds(max(updated, *(line.get("time") or 0.0 for line in metrics[-1:]), 0.0))
    return RunView(
        params=dict(_flat(history.spec)),
        tags=_tags(history, sweep),
        progress={"events": str(len(history.events)), "steps": str(len(metrics)), **_outcome(history)},
        points=[*_step_points(metrics[steps:], started), *_scores(history, events)],
        status=_STATUS[history.state],
        started=milliseconds(started),
        ended=ended,
    )


def _tags(history: RunHistory, sweep: str) -> dict[str, str]:
    made = history.made_with[-1] if history.made_with else {}
    dirty = made.get("dirty")
    return {
        "arm": history.arm,
        "seed": str(history.seed),
        "profile": history.profile,
        "run_id": history.id,
        "commit": str(made.get("commit") or "unknown"),
        "changed_tree": "yes" if dirty is True else "no" if dirty is False else "unknown",
        "sweep": sweep,
    }


def _outcome(history: RunHistory) -> dict[str, str]:
    match history.outcome:
        case None:
            return {}
        case Collapsed(rule=rule):
            return {"outcome": "collapsed", "rule": rule[:VALUE_LIMIT]}
        case Failed(kind=kind, error=error):
            return {"outcome": "failed", "failure": kind, "error": error[:VALUE_LIMIT]}
        case outcome:
            return {"outcome": outcome.event}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        dotted = f"{prefix}{key}"
        if dotted == "arm.sources":
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{dotted}.")
            continue
        text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
        yield metric_name(dotted), text if len(text) <= VALUE_LIMIT else text[: VALUE_LIMIT - 1] + "…"


def _step_points(metrics: list[dict[str, Any]], started: float) -> Iterator[Point]:
    for line in metrics:
        time = milliseconds(line.get("time") or started)
        for name, value in line.items():
            # A value that was not finite is null in the record: the chart has a gap there.
            if name not in {"step", "time"} and value is not None:
                yield Point(metric_name(name), float(value), time, line["step"])


def _scores(history: RunHistory, events: int) -> Iterator[Point]:
    """Percent of correct generations by benchmark and of all, of what was evaluated after so many events."""
    steps = {event.step for event in history.events[events:] if isinstance(event, Evaluated)}
    for step in sorted(steps.intersection(history.complete_evaluations)):
        evaluation = history.evaluations[step]
        time, tallies = milliseconds(evaluation.time), evaluation.counts
        for name, tally in tallies.items():
            if tally.graded:
                yield Point(metric_name(f"score/{name}"), 100 * tally.correct / tally.graded, time, step)
        if graded := sum(tally.graded for tally in tallies.values()):
            correct = sum(tally.correct for tally in tallies.values())
            yield Point("score/average", 100 * correct / graded, time, step)


@cache
def metric_name(name: str) -> str:
    """`name` with the characters that MLflow refuses replaced by '_'."""
    plain = re.sub(r"[^/\w.\- :]", "_", name)
    return plain if posixpath.normpath(plain) == plain and not plain.startswith((".", "/")) else plain.replace("/", "_")


def milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
