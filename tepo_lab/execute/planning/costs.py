"""What runs take: measured from the home's finished runs where there are any, else as the profile declares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from tepo_lab.errors import RecordError
from tepo_lab.execute.planning.actions import Entry, missing_evaluations
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory, State
from tepo_lab.schema.run import RunSpec

#: Finished runs read for one estimate; more would not make it better.
RUNS_READ = 5


@dataclass(frozen=True)
class RunCost:
    """Wall seconds of one training step and of one evaluation, and how many finished runs say so (0: declared)."""

    seconds_per_step: float
    evaluation_seconds: float
    runs: int = 0

    @property
    def basis(self) -> str:
        """Where the figures come from, in one phrase."""
        return f"measured ({self.runs} runs)" if self.runs else "declared"


class Costs:
    """Costs by arm and profile. The home's folders are listed once, and read only for what is asked."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._known: dict[tuple[str, float], RunCost | None] = {}

    @cached_property
    def _folders(self) -> dict[str, list[Path]]:
        """Run folders by the start of their name, <arm>-<profile>."""
        folders: dict[str, list[Path]] = {}
        for path in sorted(self.home.glob("runs/*")):
            folders.setdefault(path.name.rsplit("-", 2)[0], []).append(path)
        return folders

    def of(self, spec: RunSpec) -> RunCost:
        """What a run takes: the median over finished runs of its arm and profile on as many GPUs, else as declared."""
        name, gpus = f"{spec.arm.name}-{spec.profile.name}", spec.resources.gpus
        if (name, gpus) not in self._known:
            self._known[name, gpus] = _measured(self._folders.get(name, ()), gpus)
        declared = spec.profile.estimates
        return self._known[name, gpus] or RunCost(declared.seconds_per_step, declared.evaluation_seconds)

    def seconds_left(self, entry: Entry) -> float:
        """Wall seconds that a run still takes; 0 when nothing is to be done."""
        if not entry.action.is_pending:
            return 0.0
        spec, cost = entry.planned.spec, self.of(entry.planned.spec)
        evaluations = len(missing_evaluations(entry.history, spec))
        return max(0, spec.steps - entry.history.step) * cost.seconds_per_step + evaluations * cost.evaluation_seconds


def _measured(folders: Iterable[Path], gpus: float) -> RunCost | None:
    steps: list[float] = []
    evaluations: list[float] = []
    runs = 0
    for history in map(RunHistory.read, map(RunFolder, folders)):
        if history.state is not State.COMPLETE or history.spec.get("resources", {}).get("gpus") != gpus:
            continue
        try:
            metrics = history.metrics()
        except RecordError:
            continue
        steps += [line["seconds/step"] for line in metrics if line.get("seconds/step") is not None]
        evaluations += [evaluation.seconds for evaluation in history.evaluations.values() if evaluation.seconds]
        runs += 1
        if runs == RUNS_READ:
            break
    if not evaluations:
        return None
    return RunCost(median(steps) if steps else 0.0, median(evaluations), runs)


def wall_seconds(entries: Sequence[Entry], costs: Costs, cpus: float, gpus: float) -> float:
    """Seconds until all runs are done on a cluster that holds any of them, each started in order as soon as it fits."""
    running: list[tuple[float, float, float]] = []
    clock = 0.0
    for entry in entries:
        asked, seconds = entry.planned.spec.resources, costs.seconds_left(entry)
        while running and (
            sum(run[1] for run in running) + asked.cpus > cpus or sum(run[2] for run in running) + asked.gpus > gpus
        ):
            first = min(running)
            running.remove(first)
            clock = first[0]
        running.append((clock + seconds, asked.cpus, asked.gpus))
    return max((run[0] for run in running), default=0.0)
