"""The runs of a home behind a table: where each is read, and why it has no score there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from tepo_lab.errors import RecordError
from tepo_lab.records.events import Failed, Stopped
from tepo_lab.records.files import RunFolder, report_left_out
from tepo_lab.records.history import RunHistory, State, read_histories
from tepo_lab.records.provenance import Files, commit_name
from tepo_lab.report.table.counts import ProblemCounts, read_counts
from tepo_lab.report.table.wanted import GradedBenchmark, WantedRow

Key = TypeVar("Key", bound=Hashable)

#: One word for a cell without a score, where there is room for no more; `Row.reason` is the full sentence.
Missing = Literal["not run", "running", "stopped", "failed", "collapsed", "not graded", "incomplete", "damaged"]

#: What arms may differ in on purpose; only a row's seeds must have the same. Benchmarks must be the same in all runs.
_OWN = ("model", "training data")
OWN_INPUTS = frozenset({*_OWN, *map(commit_name, _OWN)})


@dataclass(frozen=True)
class HomeRuns:
    """Runs by (family, seed), and the benchmarks that they are read for.

    A run whose run.json or events are damaged is known by its folder's name alone: its history is empty but for that.
    """

    by_key: Mapping[tuple[str, int], RunHistory]
    benchmarks: Sequence[GradedBenchmark] = ()
    _counts: dict[tuple[str, int], dict[str, ProblemCounts] | RecordError] = field(default_factory=dict)

    def of(self, row: WantedRow) -> dict[int, RunHistory | None]:
        """The run of each seed of a row, None where there is none; all seeds of the home where the row names none."""
        seeds = row.seeds or sorted(seed for family, seed in self.by_key if family == row.family)
        return {seed: self.by_key.get((row.family, seed)) for seed in seeds}

    def full_steps(self, run: RunHistory) -> tuple[int, ...]:
        """The steps at which a run is evaluated on all of the benchmarks' generations."""
        if run.damage is not None:
            return ()
        return tuple(
            step
            for step in run.complete_evaluations
            if all(
                benchmark.name in (counts := run.evaluations[step].counts)
                and counts[benchmark.name].graded >= benchmark.generations
                for benchmark in self.benchmarks
            )
        )

    def counts(self, run: RunHistory, step: int) -> dict[str, ProblemCounts]:
        """The counts of a run's evaluation, read once however many rows show it.

        Raises `RecordError` for a damaged file, which is named on standard error the first time.
        """
        if (run.id, step) not in self._counts:
            try:
                self._counts[run.id, step] = read_counts(run.folder.generations(step), self.benchmarks)
            except RecordError as error:
                report_left_out(run.folder, str(error))
                self._counts[run.id, step] = error
        counts = self._counts[run.id, step]
        if isinstance(counts, RecordError):
            raise counts
        return counts

    @cached_property
    def unusual_benchmarks(self) -> dict[str, tuple[str, ...]]:
        """By run id, the benchmarks whose files are not those that most of the runs were graded on."""
        unusual = unusual_inputs(self.by_key)
        return {
            run.id: tuple(what for what in unusual[key] if what not in OWN_INPUTS) for key, run in self.by_key.items()
        }


def read_runs(
    home: Path, rows: Iterable[WantedRow], benchmarks: Sequence[GradedBenchmark] = (), *, metrics: bool = True
) -> HomeRuns:
    """The home's runs of the rows wanted. Those with damaged records are named on standard error.

    Args: `metrics`, whether step metrics are needed, so that damaged ones rule a run out.
    """
    wanted = list(rows)
    families = {row.family for row in wanted}
    unreadable = RunHistory(
        RunFolder(home / "runs"), State.DAMAGED, damage="tepo-lab status names the file and the fix"
    )
    runs = {(row.family, seed): unreadable for row in wanted for seed in row.damaged}
    for history in read_histories(home):
        if history.family not in families:
            continue
        run = with_metrics(history) if metrics else history
        if run.damage is not None:
            report_left_out(run.folder, run.damage)
        runs[run.family, run.seed] = run
    return HomeRuns(runs, benchmarks)


def with_metrics(history: RunHistory) -> RunHistory:
    """The history, as damaged where its step metrics are."""
    try:
        if history.damage is None:
            history.metrics()
    except RecordError as error:
        return replace(history, state=State.DAMAGED, damage=str(error))
    return history


def evaluation_at(run: RunHistory, step: int) -> int | None:
    """The step of the evaluation that counts for a run at `step`: the one there, or that of an earlier collapse."""
    if run.damage is not None:
        return None
    if step in run.evaluations:
        return step
    collapsed = run.collapsed_at
    return collapsed if collapsed is not None and collapsed <= step and collapsed in run.evaluations else None


def unusual_inputs(runs: Mapping[Key, RunHistory]) -> dict[Key, tuple[str, ...]]:
    """What each run was made from that is not what more than half of the runs were: on a tie, none is the usual one.

    Runs of which the files are not known do not count.
    """
    inputs = {key: run.inputs for key, run in runs.items()}
    seen: defaultdict[str, Counter[Files]] = defaultdict(Counter)
    for own in inputs.values():
        for what, files in own.items():
            seen[what][files] += 1
    return {
        key: tuple(what for what, files in own.items() if 2 * seen[what][files] <= seen[what].total())
        for key, own in inputs.items()
    }


def end_of(run: RunHistory, step: int) -> str:
    """How a run that is not complete ended, at `step` where nothing else is recorded, in one phrase."""
    if isinstance(run.outcome, Failed):
        return f"failed: {run.outcome.kind}"
    if run.collapsed_at is not None:
        return f"collapsed at step {run.collapsed_at}"
    if isinstance(run.outcome, Stopped):
        return f"ended at step {step} by the search"
    return "running" if run.state is State.RUNNING else f"stopped at step {step}"


def missing_reason(run: RunHistory | None, step: int | None) -> tuple[Missing, str, str]:
    """Why a run without a usable evaluation has no score: one word, the outcome, and the full reason."""
    if run is None or (run.damage is None and not run.events):
        return "not run", "not run", "not run"
    if run.damage is not None:
        return "damaged", "records damaged", f"its records are damaged: {run.damage}"
    outcome, ended = run.outcome, end_of(run, run.step)
    if run.collapsed_at is not None and (step is None or run.collapsed_at <= step):
        reason = f"{ended}, not evaluated"
        return "collapsed", reason, reason
    if isinstance(outcome, Failed):
        return "failed", ended, f"{ended}: {outcome.error}" if outcome.error else ended
    if isinstance(outcome, Stopped):
        ended = end_of(run, outcome.step)
        return "stopped", ended, f"{ended} ({outcome.by}), not evaluated"
    if outcome is None:
        if run.state is State.RUNNING:
            return "running", ended, f"{ended}, past step {run.step}"
        return "stopped", ended, f"{ended}; the command that ran it goes on from there"
    evaluated = ", ".join(map(str, sorted(run.evaluations))) or "none"
    phrase = "not evaluated"
    if step is not None:
        phrase = f"not evaluated at step {step}"
    elif run.evaluations:  # without a step, runs are read where all have spent the same
        phrase = "not evaluated within the budget"
    return "not graded", phrase, f"{phrase} (evaluated steps: {evaluated})"
