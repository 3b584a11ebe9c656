"""What running a sweep now would do, run by run, and what it would cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo_lab.execute.ledger import Entry, entry
from tepo_lab.registry.expand import Expansion


@dataclass(frozen=True)
class Plan:
    """The runs of one or several sweeps, each once however many ask for it."""

    entries: tuple[Entry, ...]

    @property
    def training_runs(self) -> int:
        return sum(each.planned.spec.arm.trained for each in self.entries)

    @property
    def base_evaluations(self) -> int:
        return len(self.entries) - self.training_runs

    @property
    def pending(self) -> list[Entry]:
        return [each for each in self.entries if each.is_pending]

    def as_json(self) -> dict[str, Any]:
        """Counts and one object a run, for scripts."""
        return {
            "training_runs": self.training_runs,
            "base_evaluations": self.base_evaluations,
            "gpu_hours": sum(gpu_hours(each) for each in self.entries),
            "seconds": sum(seconds_left(each) for each in self.entries),
            "runs": [_row(each) for each in self.entries],
        }


def make_plan(home: Path, expansions: Iterable[Expansion]) -> Plan:
    """The plan for the sweeps' runs in `home`. Reads the run folders; writes and starts nothing."""
    found: dict[str, Entry] = {}
    for expansion in expansions:
        for planned in expansion.runs:
            before = found.get(planned.run_id)
            if before is None or planned.spec.steps > before.planned.spec.steps:
                found[planned.run_id] = entry(home, planned)
    return Plan(tuple(found.values()))


def seconds_left(each: Entry) -> float:
    """Wall seconds that the run still takes, from the profile's declared estimates; 0 when nothing is to be done."""
    if not each.is_pending:
        return 0.0
    spec = each.planned.spec
    estimates = spec.profile.estimates
    evaluations = [step for step in spec.evaluation_steps if step not in each.folder.evaluated_steps()]
    steps = max(0, spec.steps - each.steps_done)
    return steps * estimates.seconds_per_step + len(evaluations) * estimates.evaluation_seconds


def gpu_hours(each: Entry) -> float:
    """GPU-hours that the run still takes."""
    return seconds_left(each) * each.planned.spec.resources.gpus / 3600


def _row(each: Entry) -> dict[str, Any]:
    spec = each.planned.spec
    return {
        "id": each.planned.run_id,
        "name": each.folder.name,
        "arm": spec.arm.name,
        "profile": spec.profile.name,
        "seed": spec.seed,
        "steps": spec.steps,
        "action": each.action,
        "reason": each.reason,
        "gpu_hours": gpu_hours(each),
        "seconds": seconds_left(each),
    }
