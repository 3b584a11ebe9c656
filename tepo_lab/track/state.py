"""What a run's records say in MLflow's terms: params, tags, metrics by step, status. Knows nothing of MLflow itself."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder
from tepo_lab.records.lock import is_locked
from tepo_lab.track.steps import Steps

#: Values of params longer than this are cut; the whole run.json is an artifact.
PARAM_LIMIT = 500

#: What mends a damaged file of a sweep's.
REMOVE = "remove it and give the run command again"

#: (metric, step) -> (value, milliseconds since 1970).
Values = dict[tuple[str, int], tuple[float, int]]

_STATUS = {
    "started": "RUNNING",
    "resumed": "RUNNING",
    "complete": "FINISHED",
    "collapsed": "FINISHED",
    "stopped": "FINISHED",
    "failed": "FAILED",
}


@dataclass(frozen=True)
class RunState:
    """One run as MLflow is to show it. Times are milliseconds since 1970.

    `steps` are the values of the training steps that were read now: of all (`is_whole`), or of those since the state
    before; `scores` are those of all evaluations; `digest` is equal for equal records, however they were read.
    """

    name: str
    params: dict[str, str]
    tags: dict[str, str]
    steps: Values
    is_whole: bool
    scores: Values
    status: str
    started: int
    ended: int | None
    config: str
    digest: str

    @property
    def values(self) -> Values:
        """Of the steps that were read now, and of all evaluations."""
        return {**self.steps, **self.scores}


def signature(folder: RunFolder) -> tuple[tuple[int, int, int], ...]:
    """Changes whenever a record that `run_state` reads changes."""
    found = []
    for path in (folder.run_file, folder.metrics_file, folder.events_file):
        try:
            stat = path.stat()
        except FileNotFoundError:
            found.append((0, 0, 0))
        else:
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    # The lease is rewritten with each heartbeat; only whether its owner lives matters.
    return (*found, (int(is_locked(folder)), 0, 0))


def run_state(folder: RunFolder, sweep: str, *, over: bool = False, steps: Steps | None = None) -> RunState:
    """Read a run's records.

    Args: `over` says that nobody works on the sweep any more: a run that has not ended and is not held was killed;
    `steps`, those of the run as far as they were read before.
    Raises `RecordError` when a record is missing or damaged; `steps` are of no use after that.
    """
    steps = Steps(folder) if steps is None else steps
    run, events = folder.run(), folder.events()
    try:
        lines, is_whole = steps.read()
        params = dict(_flat(run["spec"]))
        tags = _tags(run, run["spec"], sweep)
        scores = _scores(events)
        status, ended, outcome = _outcome(events)
        if ended is None and over and not is_locked(folder):
            status = "KILLED"
            ended = _milliseconds(max(run["created"], steps.last_time, *(event["time"] for event in events), 0.0))
        started = _milliseconds(events[0]["time"] if events else run["created"])
        config = json.dumps(run, indent=1, ensure_ascii=False) + "\n"
        told = [params, tags | outcome, steps.digest, sorted(scores.items()), status, started, ended, config]
        return RunState(
            name=folder.name,
            params=params,
            tags=tags | outcome,
            steps=_step_values(lines),
            is_whole=is_whole,
            scores=scores,
            status=status,
            started=started,
            ended=ended,
            config=config,
            digest=hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest(),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"{folder.path}: the records do not say what a run's must ({type(error).__name__}: {error})."
        ) from error


def started_at(folder: RunFolder) -> int:
    """When a run was begun, in milliseconds since 1970. Raises `RecordError` where its records do not tell."""
    event = next(iter(folder.events()), None)
    time = folder.run().get("created") if event is None else event.get("time")
    if not isinstance(time, int | float):
        raise RecordError(f"{folder.path}: the records do not say when the run was begun.")
    return _milliseconds(time)


def _tags(run: dict[str, Any], spec: dict[str, Any], sweep: str) -> dict[str, str]:
    provenance = run.get("provenance") or {}
    return {
        "arm": spec["arm"]["name"],
        "seed": str(spec["seed"]),
        "profile": spec["profile"]["name"],
        "run_id": run["id"],
        "commit": str(provenance.get("commit") or "unknown"),
        "changed_tree": {True: "yes", False: "no", None: "unknown"}[provenance.get("dirty")],
        "sweep": sweep,
    }


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, each in value.items():
        dotted = f"{prefix}.{key}" if prefix else str(key)
        if dotted == "arm.sources":
            continue
        if isinstance(each, dict):
            yield from _flat(each, dotted)
            continue
        text = each if isinstance(each, str) and each else json.dumps(each, ensure_ascii=False)
        yield metric_name(dotted), text if len(text) <= PARAM_LIMIT else text[: PARAM_LIMIT - 1] + "…"


def _step_values(metrics: list[dict[str, Any]]) -> Values:
    values: Values = {}
    for line in metrics:
        time = _milliseconds(line["time"])
        for name, value in line.items():
            # A value that was not finite stands as null in the record: the chart has a gap there.
            if name not in {"step", "time"} and value is not None:
                values[metric_name(name), int(line["step"])] = (float(value), time)
    return values


def _scores(events: list[dict[str, Any]]) -> Values:
    evaluated: dict[int, dict[str, Any]] = {}
    for event in events:
        step = event.get("step", 0)
        # A resumed run may evaluate a step again: the later counts stand, and equal ones keep the earlier time.
        if event["event"] == "evaluated" and (
            step not in evaluated or evaluated[step]["benchmarks"] != event["benchmarks"]
        ):
            evaluated[step] = event
    values: Values = {}
    for step, event in evaluated.items():
        counts = {name: each for name, each in event["benchmarks"].items() if each["graded"]}
        time = _milliseconds(event["time"])
        for name, each in counts.items():
            values[metric_name(f"score/{name}"), step] = (100 * each["correct"] / each["graded"], time)
        graded = sum(each["graded"] for each in counts.values())
        if graded:
            correct = sum(each["correct"] for each in counts.values())
            values["score/average", step] = (100 * correct / graded, time)
    return values


def _outcome(events: list[dict[str, Any]]) -> tuple[str, int | None, dict[str, str]]:
    turning_points = [event for event in events if event["event"] in _STATUS]
    if not turning_points:
        return "SCHEDULED", None, {}
    last = turning_points[-1]
    status = _STATUS[last["event"]]
    if status == "RUNNING":
        return status, None, {}
    tags = {"outcome": last["event"]}
    for key, name in (("rule", "rule"), ("kind", "failure"), ("error", "error")):
        if last.get(key) is not None:
            tags[name] = str(last[key])[:PARAM_LIMIT]
    return status, _milliseconds(last["time"]), tags


@cache
def metric_name(name: str) -> str:
    """`name` with the characters that MLflow refuses replaced by '_'."""
    plain = re.sub(r"[^/\w.\- :]", "_", name)
    return plain if posixpath.normpath(plain) == plain and not plain.startswith((".", "/")) else plain.replace("/", "_")


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def read_json(path: Path) -> Any:
    """The value in a JSON file, None when there is no file. Raises `RecordError` when it is damaged."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is damaged ({error}): {REMOVE}.") from None
