"""Benchmarks: `python -m tests.bench` prints what things take beside their targets, and writes bench.json.

No test: nothing fails for being slow. Seconds are CPU seconds of one process with its children, unless said otherwise.
"""

# ruff: noqa: T201 - a program that prints
from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.grading import grading_rates
from tests.bench.steps import ARMS, records_size, step_split, yardstick_ratios
from tests.bench.tools import tool_seconds

PARTS = ("tools", "records", "grading", "step")


def main() -> None:
    """Run the parts asked for, in order."""
    options = _options()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    result: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    with tempfile.TemporaryDirectory() as scratch:
        if "tools" in options.parts:
            result["tools"] = tool_seconds(Path(scratch))
        if "records" in options.parts:
            result["records"] = records_size(Path(scratch))
        if "grading" in options.parts:
            result["grading"] = grading_rates()
        if "step" in options.parts:
            result["step"] = step_split(Path(scratch), options.checkpoint, options.prompts, options.steps)
    if options.yardstick is not None:
        if options.checkpoint is None or options.prompts is None:
            sys.exit("--yardstick needs --checkpoint and --prompts: both programs do the same work.")
        result["yardstick"] = yardstick_ratios(
            options.yardstick,
            options.checkpoint,
            options.prompts,
            options.steps,
            options.rounds,
            options.yardstick_arms,
        )
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"Written: {options.out}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--checkpoint", type=Path, help="else the model inside the package")
    parser.add_argument("--prompts", type=Path, help="JSON lines with prompt and answer; else the embedded task's")
    parser.add_argument("--steps", type=int, default=8, help="training steps measured for each arm")
    parser.add_argument(
        "--yardstick",
        nargs=2,
        metavar=("PYTHON", "PROGRAM"),
        help="an interpreter, and a program that does the same work with another trainer: it takes the options of "
        "tepo-lab bench step (all but --arm) and prints a JSON object with cpu_s_per_step",
    )
    parser.add_argument(
        "--yardstick-arms", nargs="+", default=ARMS, choices=ARMS, help="of ours, that take turns with it"
    )
    parser.add_argument("--rounds", type=int, default=3, help="times the two programs take turns")
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
