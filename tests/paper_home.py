"""A home with runs of the paper's own profiles, their generations made up: k of n near the printed percents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from tepo_lab.records.files import RunFolder, append_line, write_json
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned
from tepo_lab.schema.profile import Suite
from tests.generation_columns import generation_columns


def paper_run(
    home: Path, arm: str, seed: int, steps: Sequence[int], percents: dict[str, float], profile: str = "qwen2.5-7b"
) -> RunFolder:
    """A complete run with evaluations at `steps`: each benchmark has `percents` of its generations right, at random."""
    asked = (f"trainer.steps={max(steps)}",) if max(steps) else ()
    run = planned(compose_run(arm, profile, asked, seed=seed))
    folder = RunFolder(home / "runs" / run.folder)
    provenance = {"commit": "0123456789abcdef", "dirty": False}
    spec = run.spec.model_dump(mode="json")
    values = {"id": run.run_id, "family": run.family, "name": run.folder, "spec": spec, "provenance": provenance}
    write_json(folder.run_file, values)
    append_line(folder.events_file, {"time": 1.7e9, "event": "started", "step": 0})
    for step in range(1, max(steps) + 1):
        values = {"reward/mean": step / 200, "rollout/tokens": 1000.0, "seconds/step": 350.0}
        append_line(folder.metrics_file, {"step": step, **values})
    for step in steps:
        folder.generations(step).parent.mkdir(exist_ok=True)
        columns = generations(run.spec.suite, percents, seed=[seed, step])
        parquet.write_table(pa.table(columns), folder.generations(step))
        append_line(folder.events_file, evaluated(step, columns))
    append_line(folder.events_file, {"time": 1.7e9, "event": "complete", "step": max(steps)})
    return folder


def evaluated(step: int, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The event of an evaluation with these columns of generations."""
    benchmarks, correct = np.asarray(columns["benchmark"]), np.asarray(columns["correct"])
    tallies = {
        name: {"correct": int(correct[benchmarks == name].sum()), "graded": int((benchmarks == name).sum())}
        for name in dict.fromkeys(benchmarks.tolist())
    }
    return {"time": 1.7e9, "event": "evaluated", "step": step, "benchmarks": tallies}


def generations(suite: Suite, percents: dict[str, float], seed: list[int]) -> dict[str, np.ndarray]:
    """All of a suite's generations, `percents` of each benchmark's right, its problems of different difficulty."""
    random = np.random.default_rng(seed)
    correct = {}
    for name, each in suite.benchmarks.items():
        size = each.problems * each.samples
        right = round(size * percents[name] / 100)
        # Problems are hard or easy for all of their samples alike.
        difficulty = np.repeat(random.standard_normal(each.problems), each.samples) + random.standard_normal(size) / 2
        correct[name] = np.argsort(np.argsort(difficulty)) < right
    return generation_columns(suite, correct)
