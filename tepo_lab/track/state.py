"""What a run's records say in MLflow's terms: params, tags, metrics by step, status. Knows nothing of MLflow itself."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tepo_lab.errors import RecordError
from tepo_lab.schema.record import RunFolder

#: Values of params longer than this are cut; the whole run.json is an artifact.
PARAM_LIMIT = 500

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
    """One run as MLflow is to show it. Times are milliseconds since 1970."""

    name: str
    params: dict[str, str]
    tags: dict[str, str]
    values: Values
    status: str
    started: int
    ended: int | None
    config: str

    @cached_property
    def digest(self) -> str:
        """Equal for equal states, across processes."""
        values = [[*key, *value] for key, value in sorted(self.values.items())]
        content = [self.params, self.tags, values, self.status, self.started, self.ended, self.config]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def signature(folder: RunFolder) -> tuple[tuple[int, int, int], ...]:
    """Changes whenever a record that `run_state` reads changes."""
    found = []
    for path in (folder.run_file, folder.metrics_file, folder.events_file, folder.lease_file):
        try:
            stat = path.stat()
        except FileNotFoundError:
            found.append((0, 0, 0))
        else:
            # The lease is rewritten with each heartbeat; only whether it is there matters.
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns) if path != folder.lease_file else (1, 0, 0))
    return tuple(found)


def run_state(folder: RunFolder, sweep: str, *, over: bool = False) -> RunState:
    """Read a run's records.

    Args: `over` says that nobody works on the sweep any more: a run that has not ended and has no lease was killed.
    Raises `RecordError` when a record is missing or damaged.
    """
    run, events, metrics = folder.run(), folder.events(), folder.metrics()
    try:
        spec = run["spec"]
        tags = _tags(run, spec, sweep)
        values = {**_step_values(metrics), **_scores(events)}
        status, ended, outcome = _outcome(events)
        if ended is None and over and not folder.lease_file.exists():
            status = "KILLED"
            ended = max([_milliseconds(run["created"]), *(_milliseconds(line["time"]) for line in [*events, *metrics])])
        return RunState(
            name=folder.name,
            params=dict(_flat(spec)),
            tags=tags | outcome,
            values=values,
            status=status,
            started=_milliseconds(events[0]["time"] if events else run["created"]),
            ended=ended,
            config=json.dumps(run, indent=1, ensure_ascii=False) + "\n",
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"{folder.path}: the records do not say what a run's must ({type(error).__name__}: {error})."
        ) from error


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
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} is damaged ({error}): remove it and give the run command again.") from None
