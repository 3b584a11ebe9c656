"""What the commands take that plan, show and report."""

# ruff: noqa: T201 - a program that prints
from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from tepo_lab.records.files import RunFolder, write_json
from tepo_lab.registry.expand import PlannedRun, expand, load_sweep
from tepo_lab.schema.run import RunSpec

ARMS = (
    "grpo_dapo, gspo, gpg, cispo, prefix_is, seq_mean_token_sum, tepo_no_kl, tepo, tepo_kl_both, "
    "tepo_kl_negative_rising, tepo_kl_1, tepo_kl_0.1, tepo_kl_0.01, tepo_kl_0.001, tepo_kl_0.0001, max_entropy, "
    "min_entropy, clip_cov, kl_cov, entropy_term"
)

TABLES = ("table1", "table2", "table3", "table4")

#: When the evaluations were written, in Unix seconds.
WRITTEN = 1.7e9

#: A step's metrics, of the size that training writes them.
METRICS = {f"actor/metric_{number}": 0.123456789012345 for number in range(45)}


def tool_seconds(scratch: Path) -> dict[str, Any]:
    """Wall and CPU seconds of each command, with the target for the wall."""
    many, some, sixty = (
        _sweep(scratch / f"{seeds}-seeds.yaml", seeds, profile)
        for seeds, profile in ((500, "nano"), (50, "nano"), (3, "qwen2.5-7b"))
    )
    wide, deep = scratch / "2000-runs", scratch / "60-runs"
    _write_home(wide, _sweep(scratch / "status.yaml", 100, "nano"), are_alike=True)
    _write_home(deep, sixty, are_alike=False)
    nowhere = scratch / "empty"
    table = ["report", str(sixty), "--home", str(deep)]
    measured = {
        "--help": _timed(["--help"], 0.3),
        "plan of four tables": _timed(["plan", *TABLES, "--home", str(nowhere)], 1.5),
        "plan of 1,000 runs": _timed(["plan", str(some), "--home", str(nowhere)], None),
        "plan of 10,000 runs": _timed(["plan", str(many), "--home", str(nowhere)], 10.0),
        "status over 2,000 runs": _timed(["status", "--home", str(wide)], 2.0),
        "table over 60 runs x 8,834 generations": _timed(table, 10.0),
        "its page": _timed([*table, "--page", "--out", str(scratch / "page.html")], None),
    }
    for name, values in measured.items():
        target = "" if values["target_s"] is None else f"  (target {values['target_s']} s)"
        print(f"{name:42}{values['wall_s']:8.2f} s wall{values['cpu_s']:8.2f} s CPU{target}", flush=True)
    return measured


def _timed(arguments: list[str], target: float | None, repeats: int = 3) -> dict[str, Any]:
    """The fastest of a few: the first has files to read and modules to compile."""
    program = [sys.executable, "-c", "from tepo_lab.cli import main; main()", *arguments]
    walls, cpus = [], []
    for _ in range(repeats):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append(time.perf_counter() - began)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if done.returncode != 0:
            raise RuntimeError(f"tepo-lab {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-500:]}")
    return {"wall_s": round(min(walls), 3), "cpu_s": round(min(cpus), 3), "target_s": target}


def _sweep(path: Path, seeds: int, profile: str) -> Path:
    """A sweep of twenty arms."""
    path.write_text(f"title: bench\nprofile: {profile}\narms: [{ARMS}]\nseeds: {list(range(1, seeds + 1))}\n")
    return path


def _write_home(home: Path, sweep: Path, *, are_alike: bool) -> None:
    """A home in which every run of a sweep is over, with five steps of metrics and its last evaluation.

    Args: `are_alike`: all evaluations are one file by many names.
    """
    first: Path | None = None
    for number, run in enumerate(expand(*load_sweep(str(sweep))).runs):
        folder = RunFolder(home / "runs" / run.folder)
        _write_records(folder, run)
        place = folder.generations(run.spec.steps)
        place.parent.mkdir()
        if first is not None and are_alike:
            place.hardlink_to(first)
            continue
        parquet.write_table(pa.table(_generations(run.spec, number)), place, compression="zstd")
        os.utime(place, (WRITTEN, WRITTEN))
        first = place


def _write_records(folder: RunFolder, run: PlannedRun) -> None:
    spec = run.spec.model_dump(mode="json")
    values = {"id": run.run_id, "family": run.family, "identity_version": 1, "name": folder.name, "created": 1.7e9}
    write_json(folder.run_file, values | {"spec": spec, "provenance": {"commit": "0" * 40, "dirty": False}})
    steps = "".join(_line({"step": step} | METRICS) for step in range(1, 6))
    folder.metrics_file.write_text(steps)
    tallies = {
        name: {"correct": 0, "graded": each.problems * each.samples} for name, each in run.spec.suite.benchmarks.items()
    }
    events = (
        {"event": "started", "step": 0},
        {"event": "evaluated", "step": run.spec.steps, "seconds": 60.0, "benchmarks": tallies},
        {"event": "complete", "step": run.spec.steps},
    )
    folder.events_file.write_text("".join(_line({"time": WRITTEN + 1} | event) for event in events))


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":")) + "\n"


def _generations(spec: RunSpec, seed: int) -> dict[str, Any]:
    """The suite's generations, half of them right."""
    random = np.random.default_rng(seed)
    parts = [(name, each.problems, each.samples) for name, each in spec.suite.benchmarks.items()]
    size = sum(problems * samples for _, problems, samples in parts)
    text = ("prompt", "answer", "response", "extracted", "how", "grader")
    return {
        **{column: np.full(size, "2") for column in text},
        "benchmark": np.concatenate([np.full(problems * samples, name) for name, problems, samples in parts]),
        "problem": np.concatenate([np.repeat(np.arange(each), samples).astype(str) for _, each, samples in parts]),
        "sample": np.concatenate([np.tile(np.arange(samples), problems) for _, problems, samples in parts]),
        "tokens": np.full(size, 3),
        "truncated": np.zeros(size, dtype=bool),
        "correct": (random.random(size) < 0.5).astype(np.int64),
    }
