"""What running a sweep now would do, run by run, and what it would cost."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal

from tepo_lab.execute.planning.actions import Entry, entry
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
        return sum(each.planned.spec.arm.trained for each in self.entries)

    @property
    def base_evaluations(self) -> int:
        return len(self.entries) - self.training_runs

    @property
    def pending(self) -> list[Entry]:
        return [each for each in self.entries if each.action.is_pending]

    def seconds_left(self, each: Entry) -> float:
        """Wall seconds that the run still takes; 0 when nothing is to be done."""
        return self.costs.seconds_left(each)

    def gpu_hours(self, each: Entry) -> float:
        """GPU-hours that the run still takes."""
        return self.seconds_left(each) * each.planned.spec.resources.gpus / 3600

    def wall_seconds(self, *, cpus: float | None = None, gpus: float | None = None) -> float | None:
        """Seconds until all is done on the cluster given (see `cluster`); None when a run does not fit it."""
        asked = [each.planned.spec.resources for each in self.pending]
        has = self.cluster(cpus=cpus, gpus=gpus)
        if any(each.cpus > has.cpus or each.gpus > has.gpus for each in asked):
            return None
        return wall_seconds(self.pending, self.costs, has.cpus, has.gpus)

    def cluster(self, *, cpus: float | None = None, gpus: float | None = None) -> Machines:
        """The cores and GPUs that time is reckoned for.

        GPUs that are not given are those of the largest run; cores, what runs on all of the GPUs take at once, since
        machines are rented by their GPUs, but at least this machine's and the largest run's.
        """
        asked = [each.planned.spec.resources for each in self.pending]
        gpus = max((each.gpus for each in asked), default=0.0) if gpus is None else gpus
        if cpus is not None:
            return Machines(cpus, gpus, "given")
        own = float(os.cpu_count() or 1)
        at_once = max((each.cpus * max(1.0, gpus / each.gpus if each.gpus else 1.0) for each in asked), default=0.0)
        needed = float(ceil(at_once - 1e-9))
        return Machines(own, gpus, "own") if own >= needed else Machines(needed, gpus, "needed")

    def as_json(self, *, cpus: float | None = None, gpus: float | None = None) -> dict[str, Any]:
        """Counts and one object a run, for scripts. `wall_seconds` is for a cluster of `cpus` and `gpus`."""
        has = self.cluster(cpus=cpus, gpus=gpus)
        return {
            "training_runs": self.training_runs,
            "base_evaluations": self.base_evaluations,
            "gpu_hours": sum(self.gpu_hours(each) for each in self.entries),
            "seconds": sum(self.seconds_left(each) for each in self.entries),
            "wall_seconds": self.wall_seconds(cpus=cpus, gpus=gpus),
            "cpus": has.cpus,
            "gpus": has.gpus,
            "runs": [self._row(each) for each in self.entries],
        }

    def _row(self, each: Entry) -> dict[str, Any]:
        spec = each.planned.spec
        memory = estimate(spec)
        return {
            "id": each.planned.run_id,
            "name": each.folder.name,
            "arm": spec.arm.name,
            "label": spec.arm.label,
            "profile": spec.profile.name,
            "seed": spec.seed,
            "steps": spec.steps,
            "action": each.action,
            "reason": each.reason,
            "gpu_hours": self.gpu_hours(each),
            "seconds": self.seconds_left(each),
            "basis": self.costs.of(spec).basis,
            "gpu_memory": memory_json(memory) if memory else None,
        }


def make_plan(home: Path, expansions: Iterable[Expansion]) -> Plan:
    """The plan for the sweeps' runs in `home`. Reads the run folders; writes and starts nothing."""
    found: dict[str, PlannedRun] = {}
    for expansion in expansions:
        merge(found, expansion.runs)
    return Plan(tuple(entry(home, planned) for planned in found.values()), Costs(home))
