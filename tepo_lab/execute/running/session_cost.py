"""What a session cost: how busy the cores were, how long the first step took to come, what the platform took."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.actions import Entry
from tepo_lab.execute.showing.text import counted, duration
from tepo_lab.records.events import Evaluated, Validated
from tepo_lab.records.files import tell_passed_over
from tepo_lab.records.history import RunHistory
from tepo_lab.records.processes import descendants, process


@dataclass
class CpuMeter:
    """CPU seconds of this process and of all that it started, those that have ended since among them.

    Call `sample` now and then: what a process used after its last sample is not known once it has ended.
    """

    seen: dict[tuple[int, str], float] = field(default_factory=dict)

    def sample(self) -> None:
        """Look at every living descendant."""
        self.seen |= {(each.pid, each.born): each.cpu_seconds for each in descendants(os.getpid())}

    @property
    def seconds(self) -> float:
        """CPU seconds seen so far."""
        return sum(self.seen.values())


@dataclass(frozen=True)
class SessionCost:
    """What a session took.

    wall and trial seconds (training steps and evaluations, all runs together), tokens sampled in training, seconds
    from the command to the end of the first training step, the share of the cores that steps and evaluations kept busy
    (their CPU seconds) from the first trial's beginning to the last one's end, and the share of all CPU seconds that
    went into other things than steps and evaluations: scheduling, starting processes, loading models, the mirror. None
    where nothing tells.
    """

    runs: int
    wall_seconds: float
    trial_seconds: float
    tokens: float
    first_step_seconds: float | None
    busy_share: float | None
    overhead_share: float | None

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return dict(self.__dict__)

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


def session_cost(ran: Sequence[Entry], *, began: float, cores: float | None, cpu_seconds: float | None) -> SessionCost:
    """The cost of a session that began then (Unix seconds) and worked on `ran`, as their records tell.

    A line that does not say when it was is passed over; so is a run whose records are damaged, which is named on
    standard error.
    Args: `cores` that the cluster has, None where no trial was started; `cpu_seconds` of the session's processes, None
    where they are not all this machine's.
    """
    occupied = cpu = tokens = 0.0
    firsts: list[float] = []
    begins: list[float] = []
    ends: list[float] = []
    for each in ran:
        try:
            steps = [step for step in each.folder.metrics() if (step.get("time") or -1.0) >= began]
            events = [event for event in RunHistory.read(each.folder).events if event.time >= began]
        except RecordError as error:
            tell_passed_over(each.folder, error)
            continue
        sampled = [event for event in events if isinstance(event, Evaluated | Validated)]
        occupied += sum(step.get("seconds/step") or 0.0 for step in steps)
        # What was graded again without sampling was recorded as evaluated too, and took no time of the run's.
        occupied += sum(event.seconds or 0.0 for event in sampled)
        cpu += sum(step.get("seconds/cpu") or 0.0 for step in steps)
        cpu += sum(event.cpu_seconds or 0.0 for event in sampled)
        tokens += sum(step.get("rollout/tokens") or 0.0 for step in steps)
        firsts += [steps[0]["time"]] if steps else []
        begins += [events[0].time] if events else []
        ends += [events[-1].time] if events else []
    span = max(ends) - min(begins) if begins else 0.0
    return SessionCost(
        runs=len(ran),
        wall_seconds=time.time() - began,
        trial_seconds=occupied,
        tokens=tokens,
        first_step_seconds=min(firsts) - began if firsts else None,
        busy_share=min(1.0, cpu / (span * cores)) if cores and span and cpu else None,
        overhead_share=max(0.0, 1 - cpu / cpu_seconds) if cpu_seconds and cpu else None,
    )


def process_began() -> float:
    """When this process began, in Unix seconds; its present where the system does not tell."""
    own = process(os.getpid())
    if own is None:
        return time.time()
    born = int(own.born) / os.sysconf("SC_CLK_TCK")
    return time.time() - (float(Path("/proc/uptime").read_text().split()[0]) - born)
