"""Generations made up, in the columns of `tepo_lab.records.files`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from tepo_lab.records.files import RunFolder
from tepo_lab.schema.profile import Suite


def generation_columns(suite: Suite, correct: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All of a suite's generations. `correct`: 0 or 1 for each sample of each problem of a benchmark, by its name."""
    names, problems, samples = [], [], []
    for name, each in suite.benchmarks.items():
        names.append(np.full(each.problems * each.samples, name))
        problems.append(np.repeat([f"{name}-{number}" for number in range(each.problems)], each.samples))
        samples.append(np.tile(np.arange(each.samples), each.problems))
    size = sum(map(len, names))
    words = dict.fromkeys(("prompt", "answer", "response", "extracted", "how", "grader"), np.full(size, "2"))
    return words | {
        "benchmark": np.concatenate(names),
        "problem": np.concatenate(problems),
        "sample": np.concatenate(samples),
        "tokens": np.full(size, 3),
        "truncated": np.zeros(size, dtype=bool),
        "correct": np.concatenate([correct[name] for name in suite.benchmarks]).astype(np.int8),
    }


def write_evaluation(folder: RunFolder, step: int, suite: Suite, *, ungraded: int = 0, lacking: int = 0) -> None:
    """An evaluation with every answer right, but for some that have no grade and some rows that are not there."""
    right = {name: np.ones(each.problems * each.samples) for name, each in suite.benchmarks.items()}
    columns = generation_columns(suite, right)
    correct = pa.array(columns["correct"], mask=np.arange(len(columns["correct"])) < ungraded)
    rows = pa.table(columns | {"correct": correct})
    folder.generations(step).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(rows.slice(lacking), folder.generations(step))
