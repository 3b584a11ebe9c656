"""Wrong inputs to a process of its own, as a user starts it: one line, exit code 2, nothing changes on disk."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("run", "panel-e", "arms=[tepoo]"), "'tepoo'. Did you mean 'tepo'?"),
        (("status", "panel-f"), "'panel-f'. Did you mean 'panel-e'?"),
        (("run", "panel-e", "rollout.engine=vllm"), "pip install -e '.[vllm]'"),
        (("run", "panel-e", "resources.cpus=1000"), "1000 CPUs"),
        (("run", "panel-e", "resources.gpus=1", "resources.device=cuda"), "GPUs"),
        (("run", "panel-e", "--address", "nowhere:1"), "nowhere:1"),
        (("ui",), "tepo-lab run"),
    ],
)
def test_a_wrong_input_gets_one_line_and_changes_nothing(arguments, named, tmp_path):
    command = [sys.executable, "-m", "tepo_lab", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("tepo-lab: "))
    assert named in line
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
