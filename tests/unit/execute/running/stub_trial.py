"""A trial that trains nothing, in the place of `tepo_lab.train.trial.Trial`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tepo_lab.records.events import CheckpointSaved, Complete, Evaluated, Started, Tally
from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import append_event
from tepo_lab.schema.run import RunSpec
from tepo_lab.train import trial
from tepo_lab.train.trial import Progress
from tests.generation_columns import write_evaluation


class StubTrial:
    """Is complete at the first `advance`, before which `hooks` are called, which may raise."""

    opened: list[tuple[RunSpec, dict[str, Any]]]
    hooks: list[Callable[[], None]]

    def __init__(self, spec: RunSpec, folder: RunFolder, **given: Any) -> None:
        type(self).opened.append((spec, given))
        self.spec, self.folder, self.done = spec, folder, False
        append_event(folder, Started())

    def advance(self) -> Progress:
        for hook in type(self).hooks:
            hook()
        complete(self.folder, self.spec)
        self.done = True
        return Progress(self.spec.steps, "complete", {})

    def close(self) -> None:
        pass


def complete(folder: RunFolder, spec: RunSpec) -> None:
    """Records of a run that has come to its end, with a checkpoint there."""
    folder.checkpoint(spec.steps).mkdir(parents=True, exist_ok=True)
    append_event(folder, CheckpointSaved(step=spec.steps))
    write_evaluation(folder, spec.steps, spec.suite)
    counts = {name: benchmark.problems * benchmark.samples for name, benchmark in spec.suite.benchmarks.items()}
    benchmarks = {name: Tally(correct=count, graded=count) for name, count in counts.items()}
    append_event(folder, Evaluated(step=spec.steps, benchmarks=benchmarks))
    append_event(folder, Complete(step=spec.steps))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> type[StubTrial]:
    kind = type("Stub", (StubTrial,), {"opened": [], "hooks": []})
    monkeypatch.setattr(trial, "Trial", kind)
    return kind
