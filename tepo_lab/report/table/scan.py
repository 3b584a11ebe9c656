"""The runs of a home, and the graded counts of their evaluations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from tepo_lab.errors import RecordError
from tepo_lab.records.files import RunFolder, readable_runs, tell_passed_over
from tepo_lab.records.generations import read_generations
from tepo_lab.records.lock import is_locked
from tepo_lab.records.provenance import Files, commit_name, differences, input_files
from tepo_lab.report.table.frame import Column, Missing

Key = TypeVar("Key", bound=Hashable)

#: What arms may differ in on purpose; only a row's seeds must have the same. Benchmarks must be the same in all runs.
_OWN = ("model", "training data")
OWN_INPUTS = frozenset({*_OWN, *map(commit_name, _OWN)})

STATUS_EVENTS = frozenset({"started", "resumed", "complete", "collapsed", "stopped", "failed"})


@dataclass(frozen=True)
class FoundRun:
    """A run of the home: its identity and what last happened to it.

    `status` is the last of `STATUS_EVENTS`; `full_steps` are the evaluated steps with as many rows as the suite has
    generations. `dirty`: made from a source tree that differs from its commit; `continued`: partly made with another
    tree, other versions, another machine or device; `mismatch_limit`: above it sampler and trainer disagree too much;
    `damaged`: why its events (or the step metrics, where they were asked for) cannot be read, in which case nothing
    else of it counts; `asked_steps`: how far it was to train; `tallies`: how many generations were right, and how many
    graded, as its events say, by step and benchmark; `inputs`: SHA-256 of the local files, and commits of the hub, that
    it was made from, by what they are, and `unusual_benchmarks` those of them that most of the runs found with it were
    not graded on.
    """

    folder: RunFolder
    id: str
    family: str
    arm: str
    parent: str | None
    seed: int
    commit: str | None
    status: dict[str, Any]
    last_step: int
    running: bool
    evaluated_steps: tuple[int, ...]
    full_steps: tuple[int, ...]
    dirty: bool = False
    continued: bool = False
    mismatch_limit: float | None = None
    damaged: str | None = None
    asked_steps: int = 0
    tallies: Mapping[int, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    inputs: Mapping[str, Files] = field(default_factory=dict)
    unusual_benchmarks: tuple[str, ...] = ()

    @property
    def collapsed_at(self) -> int | None:
        """The step at which the run collapsed, if it ended so."""
        return int(self.status["step"]) if self.status.get("event") == "collapsed" else None

    def evaluation_for(self, step: int) -> int | None:
        """The evaluation that speaks for the run at `step`: the one there, or that of an earlier collapse."""
        if step in self.evaluated_steps:
            return step
        collapsed = self.collapsed_at
        return collapsed if collapsed is not None and collapsed <= step and collapsed in self.evaluated_steps else None


@dataclass(frozen=True)
class Counts:
    """A benchmark's problems in order of their ids, how many samples of each were graded and how many are right.

    `truncated` and `unextracted` count samples over all problems: ended by the length limit, and without an answer.
    """

    ids: tuple[str, ...]
    correct: NDArray[np.int64]
    graded: NDArray[np.int64]
    truncated: int = 0
    unextracted: int = 0


def scan(
    home: Path, families: Iterable[str], columns: Iterable[Column], *, metrics: bool = True
) -> dict[tuple[str, int], FoundRun]:
    """The home's runs of the families wanted, by (family, seed).

    A run with a damaged run.json is passed over; one with damaged events or metrics is named on standard error.
    Args: `metrics`, whether what is read of the runs needs their step metrics, so that damaged ones rule a run out.
    """
    wanted = set(families)
    records = ((folder, run) for folder, run in readable_runs(home) if run.get("family") in wanted)
    return scan_of(records, columns, metrics=metrics)


def scan_of(
    records: Iterable[tuple[RunFolder, dict[str, Any]]], columns: Iterable[Column], *, metrics: bool = True
) -> dict[tuple[str, int], FoundRun]:
    """As `scan`, of runs whose run.json has been read."""
    generations = sum(column.generations for column in columns)
    found: dict[tuple[str, int], FoundRun] = {}
    for folder, run in records:
        each = _found(folder, run, generations, metrics)
        found[each.family, each.seed] = each
    unusual = unusual_inputs(found)
    return {
        key: replace(each, unusual_benchmarks=tuple(what for what in unusual[key] if what not in OWN_INPUTS))
        for key, each in found.items()
    }


def unusual_inputs(runs: Mapping[Key, FoundRun]) -> dict[Key, tuple[str, ...]]:
    """What each run was made from that is not what more than half of the runs were: on a tie, none is the usual one.

    Runs of which the files are not known do not count.
    """
    seen: defaultdict[str, Counter[Files]] = defaultdict(Counter)
    for run in runs.values():
        for what, files in run.inputs.items():
            seen[what][files] += 1
    return {
        key: tuple(what for what, files in run.inputs.items() if 2 * seen[what][files] <= seen[what].total())
        for key, run in runs.items()
    }


def _found(folder: RunFolder, run: dict[str, Any], generations: int, metrics: bool) -> FoundRun:
    spec, provenance = run["spec"], run.get("provenance") or {}
    earlier = [each for each in run.get("earlier_provenance") or [] if isinstance(each, dict)]
    rollout = spec.get("rollout") or {}
    commit = provenance.get("commit")
    damaged, events, steps = None, [], []
    try:
        events, steps = folder.events(), folder.evaluated_steps()
        if metrics:
            folder.whole_metrics()
    except RecordError as error:
        tell_passed_over(folder, error)
        damaged, events, steps = str(error), [], []
    return FoundRun(
        folder=folder,
        id=run["id"],
        family=run["family"],
        arm=spec["arm"]["name"],
        parent=spec["arm"].get("parent"),
        seed=spec["seed"],
        commit=f"{commit}+changes" if commit and provenance.get("dirty") else commit,
        status=next((event for event in reversed(events) if event["event"] in STATUS_EVENTS), {}),
        last_step=max((int(event.get("step") or 0) for event in events), default=0),
        running=damaged is None and is_locked(folder),
        evaluated_steps=tuple(steps),
        full_steps=tuple(step for step in steps if _has_rows(folder.generations(step), generations)),
        dirty=any(each.get("dirty") for each in (provenance, *earlier)),
        continued=_changed([*earlier, provenance]) or _moved(events),
        mismatch_limit=rollout.get("max_sampler_mismatch"),
        damaged=damaged,
        asked_steps=int(spec["trainer"]["steps"]),
        # Of an evaluation that was graded again the last event tells.
        tallies={event["step"]: event.get("benchmarks", {}) for event in events if event["event"] == "evaluated"},
        inputs=input_files(provenance),
    )


def _changed(made_with: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run was made with differing code, versions, machines, devices or inputs: other resources may change."""
    return any(differences(last, now) - {"resources"} for last, now in pairwise(made_with))


def _moved(events: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a run was made on nodes of differing hardware, as far as its events tell."""
    noted = [event for event in events if isinstance(event.get("hardware"), dict)]
    told = [(int(event.get("step") or 0), event["hardware"]) for event in noted]
    # Nothing is left of an attempt after which the run went on from no further than that had.
    lasting = [each for place, (step, each) in enumerate(told) if all(step < later for later, _ in told[place + 1 :])]
    return any(each != lasting[0] for each in lasting)


def read_counts(run: FoundRun, step: int, columns: Iterable[Column]) -> dict[str, Counts]:
    """Graded and right samples of each problem at `step`, by benchmark.

    Raises `RecordError` for a file that cannot be read, or whose rows cannot be counted (`fault_of`).
    """
    rows = read_generations(run.folder.generations(step))
    grouped = rows.group_by(["benchmark", "problem"]).aggregate(
        [("correct", "sum"), ("correct", "count"), ("truncated", "sum"), ("extracted", "count")]
    )
    names = np.asarray(grouped["benchmark"].to_pylist(), dtype=object)
    ids = np.asarray([str(each) for each in grouped["problem"].to_pylist()], dtype=object)
    correct, graded, truncated, extracted = (
        grouped[name].to_numpy().astype(np.int64)
        for name in ("correct_sum", "correct_count", "truncated_sum", "extracted_count")
    )
    counts = {}
    for column in columns:
        held = np.flatnonzero(names == column.name)
        held = held[np.argsort(ids[held], kind="stable")]
        unextracted = int((graded[held] - extracted[held]).sum())
        counts[column.name] = Counts(
            tuple(ids[held]), correct[held], graded[held], int(truncated[held].sum()), unextracted
        )
    return counts


def shortfall(counts: dict[str, Counts], columns: Iterable[Column]) -> str | None:
    """What an evaluation lacks of the suite, or None when every sample of every problem was graded once."""
    for column in columns:
        graded = counts[column.name].graded
        if len(graded) != column.problems or (graded != column.samples).any():
            return f"{column.name}: {int(graded.sum())} of {column.generations} graded"
    return None


def end_of(run: FoundRun, step: int) -> str:
    """How a run that is not complete ended, at `step` where nothing else is recorded, in one phrase."""
    event = run.status.get("event")
    if event == "failed":
        return f"failed: {run.status.get('kind', 'unknown')}"
    if event == "collapsed":
        return f"collapsed at step {run.collapsed_at}"
    if event == "stopped":
        return f"ended at step {step} by the search"
    return "running" if run.running else f"stopped at step {step}"


def missing_reason(run: FoundRun | None, step: int | None) -> tuple[Missing, str, str]:
    """Why a run without a usable evaluation has no score: one word, the outcome, and the whole reason."""
    if run is not None and run.damaged is not None:
        return "damaged", "records damaged", f"its records are damaged: {run.damaged}"
    if run is None or not run.status:
        return "not run", "not run", "not run"
    event, collapsed = run.status["event"], run.collapsed_at
    if collapsed is not None and (step is None or collapsed <= step):
        reason = f"{end_of(run, collapsed)}, not evaluated"
        return "collapsed", reason, reason
    if event == "failed":
        outcome = end_of(run, run.last_step)
        error = run.status.get("error")
        return "failed", outcome, f"{outcome}: {error}" if error else outcome
    if event == "stopped":
        reason = end_of(run, run.status["step"])
        return "stopped", reason, f"{reason} ({run.status.get('by', 'unknown')}), not evaluated"
    if event in {"started", "resumed"}:
        outcome = end_of(run, run.last_step)
        if run.running:
            return "running", outcome, f"{outcome}, past step {run.last_step}"
        return "stopped", outcome, f"{outcome}; the command that ran it goes on from there"
    there = ", ".join(str(each) for each in run.evaluated_steps) or "none"
    outcome = "not evaluated"
    if step is not None:
        outcome = f"not evaluated at step {step}"
    elif run.evaluated_steps:  # without a step, runs are read where all have spent the same
        outcome = "not evaluated within the budget"
    return "not graded", outcome, f"{outcome} (evaluated steps: {there})"


def _has_rows(path: Path, least: int) -> bool:
    """Whether an evaluation has as many rows. One that cannot be read was made: reading its counts says the rest."""
    try:
        return int(parquet.read_metadata(path).num_rows) >= least
    except (pyarrow.ArrowException, OSError):
        return True
