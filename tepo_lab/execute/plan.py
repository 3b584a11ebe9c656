"""What running a sweep now would do, run by run, and what it would cost."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo_lab.execute.costs import Costs, wall_seconds
from tepo_lab.execute.ledger import Entry, entry
from tepo_lab.execute.memory import as_json as memory_json
from tepo_lab.execute.memory import estimate
from tepo_lab.registry.expand import Expansion, PlannedRun, merge


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
        return [each for each in self.entries if each.is_pending]

    def seconds_left(self, each: Entry) -> float:
        """Wall seconds that the run still takes; 0 when nothing is to be done."""
        return self.costs.seconds_left(each)

    def gpu_hours(self, each: Entry) -> float:
        """GPU-hours that the run still takes."""
        return self.seconds_left(each) * each.planned.spec.resources.gpus / 3600

    def wall_seconds(self, *, cpus: float | None = None, gpus: float | None = None) -> float | None:
        """Seconds until all is done on a cluster with so many CPUs and GPUs; None when a run does not fit it.

        What is not given is this machine's cores, and the GPUs that the largest run asks for.
        """
        asked = [each.planned.spec.resources for each in self.pending]
        most_cpus = max((each.cpus for each in asked), default=0.0)
        most_gpus = max((each.gpus for each in asked), default=0.0)
        cpus = max(float(os.cpu_count() or 1), most_cpus) if cpus is None else cpus
        gpus = most_gpus if gpus is None else gpus
        return None if most_cpus > cpus or most_gpus > gpus else wall_seconds(self.pending, self.costs, cpus, gpus)

    def as_json(self, *, cpus: float | None = None, gpus: float | None = None) -> dict[str, Any]:
        """Counts and one object a run, for scripts. `wall_seconds` is for the cluster given."""
        return {
            "training_runs": self.training_runs,
            "base_evaluations": self.base_evaluations,
            "gpu_hours": sum(self.gpu_hours(each) for each in self.entries),
            "seconds": sum(self.seconds_left(each) for each in self.entries),
            "wall_seconds": self.wall_seconds(cpus=cpus, gpus=gpus),
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
