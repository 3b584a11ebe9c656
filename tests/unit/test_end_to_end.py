"""One small sweep from the command to its table: Ray trains and evaluates, the records say so, MLflow mirrors it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tepo_lab.records.files import run_folders
from tepo_lab.records.history import RunHistory, State
from tests.conftest import SMALL
from tests.integration.command import call


def test_a_sweep_runs_and_ends_with_its_table(tmp_path, capsys, monkeypatch):
    home = tmp_path / "home"
    overrides = ["arms=[tepo]", "seeds=[1]", "base=false", "trainer.steps=2", *SMALL]
    command = [sys.executable, "-m", "tepo_lab", "run", "panel-e", *overrides, "--home", str(home), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"TMPDIR": "/tmp"})
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads(done.stdout)["rows"]
    (folder,) = run_folders(home)
    history = RunHistory.read(folder)
    assert (history.state, history.step, history.complete_evaluations) == (State.COMPLETE, 2, (2,))
    counts = {name: [tally.correct, tally.graded] for name, tally in history.evaluations[2].counts.items()}
    assert counts == {name: [cell["correct"], cell["graded"]] for name, cell in row["cells"].items()}
    assert sum(graded for _, graded in counts.values()) == 3 * 2 * 4 + 4 * 6
    assert [line["step"] for line in history.metrics()] == [1, 2]
    assert (home / "mlflow.db").stat().st_size > 0
    # Once done, the same command starts nothing.
    again = call(capsys, monkeypatch, *command[3:])
    assert (again.code, again.stdout) == (0, done.stdout)
    assert RunHistory.read(folder).events == history.events
