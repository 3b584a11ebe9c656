"""What a session cost: how busy the cores were, how long the first step took, and the platform's own share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.actions import Entry
from tepo_lab.execute.showing.text import counted, duration
from tepo_lab.records.events import Evaluated, Validated
from tepo_lab.records.history import RunHistory, State


@dataclass
class CpuMeter:
    """What a session used: CPU seconds of this process and of all that it started, also of those that have ended.

    Call `sample` regularly: what a process used after its last sample is not known once it has ended.
    """

    #: Folders' names of the runs that this session has begun or gone on with; another one may have taken the others.
    begun: set[str] = field(default_factory=set)
    #: CPU seconds by process number and creation time, which together are unique.
    seen: dict[tuple[int, float], float] = field(default_factory=dict)

    def sample(self) -> None:
        """Read the clocks of every living descendant."""
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                self.seen[process.pid, process.create_time()] = times.user + times.system

    @property
    def seconds(self) -> float:
        return sum(self.seen.values())


@dataclass(frozen=True)
class SessionCost:
    """What a session took.

    wall and trial seconds (training steps and evaluations, all runs together), tokens sampled in training, seconds
    from the command to the end of the first training step, the share of the cores that steps and evaluations kept busy
    (their CPU seconds) from the first trial's beginning to the last one's end, and the share of all CPU seconds that
    went into other things than steps and evaluations: scheduling, starting processes, loading models, the mirror. None
    where nothing was measured.
    """

    runs: int
    wall_seconds: float
    trial_seconds: float
    tokens: float
    first_step_seconds: float | None
    busy_share: float | None
    overhead_share: float | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        parts = [
            f"{duration(self.wall_seconds)} wall, {counted(self.runs, 'run')}, {duration(self.trial_seconds)} "
            f"in trials, {self.tokens:,.0f} tokens sampled in training"
        ]
        if self.first_step_seconds is not None:
            parts.append(f"{self.first_step_seconds:.0f} s until the first training step was done")
        if self.busy_share is not None:
            parts.append(f"cores {self.busy_share:.0%} busy from the first trial to the last")
        if self.overhead_share is not None:
            parts.append(f"{self.overhead_share:.0%} of the CPU time outside steps and evaluations")
        return "; ".join(parts)


def session_cost(
    entries: Sequence[Entry], *, began: float, cores: float | None, cpu_seconds: float | None
) -> SessionCost:
    """The cost of a session that began then (Unix seconds) and worked on `entries`, by what their runs recorded since.

    Runs whose records are damaged add nothing, nor does what a clock that was set back dates outside the session.
    Args: `cores` of the cluster, None where no trial was started; `cpu_seconds` of the session's processes, None where
    they are not all this machine's.
    """
    occupied = cpu = tokens = 0.0
    firsts: list[float] = []
    starts: list[float] = []
    ends: list[float] = []
    now = time.time()
    for entry in entries:
        history = RunHistory.read(entry.folder)
        try:
            steps = [step for step in history.metrics() if began <= (step.get("time") or -1.0) <= now]
        except RecordError:
            continue
        if history.state is State.DAMAGED:
            continue
        events = [event for event in history.events if began <= event.time <= now]
        sampled = [event for event in events if isinstance(event, Evaluated | Validated)]
        occupied += sum(step.get("seconds/step") or 0.0 for step in steps)
        # An evaluation that was only graded again is recorded without seconds.
        occupied += sum(event.seconds or 0.0 for event in sampled)
        cpu += sum(step.get("seconds/cpu") or 0.0 for step in steps)
        cpu += sum(event.cpu_seconds or 0.0 for event in sampled)
        tokens += sum(step.get("rollout/tokens") or 0.0 for step in steps)
        firsts += [steps[0]["time"]] if steps else []
        starts += [events[0].time] if events else []
        ends += [events[-1].time] if events else []
    span = max(ends) - min(starts) if starts else 0.0
    return SessionCost(
        runs=len(entries),
        wall_seconds=max(0.0, now - began),
        trial_seconds=occupied,
        tokens=tokens,
        first_step_seconds=min(firsts) - began if firsts else None,
        busy_share=min(1.0, cpu / (span * cores)) if cores and span and cpu else None,
        overhead_share=max(0.0, 1 - cpu / cpu_seconds) if cpu_seconds and cpu else None,
    )
