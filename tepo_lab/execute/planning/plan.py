"""What running a sweep now would do, run by run, and what it would cost."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal

from tepo_lab.execute.planning import actions
from tepo_lab.execute.planning.actions import Entry
from tepo_lab.execute.planning.costs import Costs, wall_seconds
from tepo_lab.execute.planning.gpu_memory import as_json as memory_json
from tepo_lab.execute.planning.gpu_memory import estimate
from tepo_lab.registry.expand import Expansion, PlannedRun, merge


@dataclass(frozen=True)
class Machines:
    """What a cluster has. `cores` says whose the cpus are: as given, this machine's own, or what the runs take."""

    cpus: float
    gpus: float
    cores: Literal["given", "own", "needed"]


@dataclass(frozen=True)
class Plan:
    """The runs of one or several sweeps, each once however many ask for it."""

    entries: tuple[Entry, ...]
    costs: Costs

    @property
    def training_runs(self) -> int:
        return sum(entry.planned.spec.arm.trained for entry in self.entries)

    @property
    def base_evaluations(self) -> int:
        return len(self.entries) - self.training_runs

    @property
    def pending(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.action.is_pending]

    def seconds_left(self, entry: Entry) -> float:
        """Wall seconds that the run still takes; 0 when nothing is to be done."""
        return self.costs.seconds_left(entry)

    def gpu_hours(self, entry: Entry) -> float:
        """GPU-hours that the run still takes."""
        return self.seconds_left(entry) * entry.planned.spec.resources.gpus / 3600

    def wall_seconds(self, *, cpus: float | None = None, gpus: float | None = None) -> float | None:
        """Seconds until all is done on the cluster given (see `cluster`); None when a run does not fit it."""
        asked = [entry.planned.spec.resources for entry in self.pending]
        has = self.cluster(cpus=cpus, gpus=gpus)
        if any(resources.cpus > has.cpus or resources.gpus > has.gpus for resources in asked):
            return None
        return wall_seconds(self.pending, self.costs, has.cpus, has.gpus)

    def cluster(self, *, cpus: float | None = None, gpus: float | None = None) -> Machines:
        """The cores and GPUs that the time is estimated for.

        GPUs that are not given are those of the largest run; cores, what runs on all of the GPUs take at once, since
        machines are rented by their GPUs, but at least this machine's and the largest run's.
        """
        asked = [entry.planned.spec.resources for entry in self.pending]
        gpus = max((resources.gpus for resources in asked), default=0.0) if gpus is None else gpus
        if cpus is not None:
            return Machines(cpus, gpus, "given")
        own = float(os.cpu_count() or 1)
        runs_at_once = [max(1.0, gpus / resources.gpus) if resources.gpus else 1.0 for resources in asked]
        at_once = max((res.cpus * runs for res, runs in zip(asked, runs_at_once, strict=True)), default=0.0)
        needed = float(ceil(at_once - 1e-9))
        return Machines(own, gpus, "own") if own >= needed else Machines(needed, gpus, "needed")

    def as_json(self, *, cpus: float | None = None, gpus: float | None = None) -> dict[str, Any]:
        """Counts and one object a run, for scripts. `wall_seconds` is for a cluster of `cpus` and `gpus`."""
        has = self.cluster(cpus=cpus, gpus=gpus)
        return {
            "training_runs": self.training_runs,
            "base_evaluations": self.base_evaluations,
            "gpu_hours": sum(self.gpu_hours(entry) for entry in self.entries),
            "seconds": sum(self.seconds_left(entry) for entry in self.entries),
            "wall_seconds": self.wall_seconds(cpus=cpus, gpus=gpus),
            "cpus": has.cpus,
            "gpus": has.gpus,
            "runs": [self._row(entry) for entry in self.entries],
        }

    def _row(self, entry: Entry) -> dict[str, Any]:
        spec = entry.planned.spec
        memory = estimate(spec)
        return {
            "id": entry.planned.run_id,
            "name": entry.folder.name,
            "arm": spec.arm.name,
            "label": spec.arm.label,
            "profile": spec.profile.name,
            "seed": spec.seed,
            "steps": spec.steps,
            "action": entry.action,
            "reason": entry.reason,
            "gpu_hours": self.gpu_hours(entry),
            "seconds": self.seconds_left(entry),
            "basis": self.costs.of(spec).basis,
            "gpu_memory": memory_json(memory) if memory else None,
        }


def make_plan(home: Path, expansions: Iterable[Expansion]) -> Plan:
    """The plan for the sweeps' runs in `home`. Reads the run folders; writes and starts nothing."""
    runs: dict[str, PlannedRun] = {}
    for expansion in expansions:
        merge(runs, expansion.runs)
    return Plan(tuple(actions.entry(home, planned) for planned in runs.values()), Costs(home))
