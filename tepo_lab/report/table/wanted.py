"""What a table is asked for: its rows, and the benchmarks they are graded on."""

from __future__ import annotations

from dataclasses import dataclass

from tepo_lab.schema.profile import Suite


@dataclass(frozen=True)
class GradedBenchmark:
    """A benchmark: its problems, the samples drawn of each, and the temperature (0: greedy)."""

    name: str
    label: str
    problems: int
    samples: int
    temperature: float

    @property
    def generations(self) -> int:
        return self.problems * self.samples


def graded_benchmarks(suite: Suite) -> tuple[GradedBenchmark, ...]:
    """A suite's benchmarks in order."""
    return tuple(
        GradedBenchmark(name, benchmark.label, benchmark.problems, benchmark.samples, benchmark.temperature)
        for name, benchmark in suite.benchmarks.items()
    )


@dataclass(frozen=True)
class WantedRow:
    """A row asked for. `family` is the run's identity without its seed, as in run.json.

    `seeds` are those expected, and the row names how many of them are present; when empty, all that the home has are
    taken. `steps` is where the row alone may be read; None: where its table is. `published` is its name among published
    rows. `ancestors` are its arm's parent, the parent's parent and so on, for a table without the parent. `damaged` are
    the seeds whose run.json cannot be read.
    """

    panel: str | None
    arm: str
    label: str
    family: str
    seeds: tuple[int, ...] = ()
    steps: int | None = None
    published: str = ""
    ancestors: tuple[str, ...] = ()
    damaged: tuple[int, ...] = ()

    @property
    def published_name(self) -> str:
        return self.published or self.arm


@dataclass(frozen=True)
class Wanted:
    """What one profile gives to a table: its rows in order, the untrained model, and the benchmarks.

    `steps` is where the rows that name no step are read: when no run has a full evaluation there (or it is None), at
    the step at which most have one, with a note.
    """

    profile: str
    suite: Suite
    rows: tuple[WantedRow, ...]
    base: WantedRow | None = None
    steps: int | None = None
