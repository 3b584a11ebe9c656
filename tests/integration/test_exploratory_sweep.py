"""An exploratory sweep with real Ray Tune: worse points are ended early, the best is chosen on validation alone."""

from __future__ import annotations

import json

import pytest

from tepo_lab.records.files import run_folders
from tepo_lab.records.history import read_histories
from tests.conftest import SMALL
from tests.integration.faults import event_names
from tests.integration.test_run import run

SWEEP = """
title: exploring
arms: [tepo_no_kl]
axes: {trainer.learning_rate: [1.0e-4, 2.0e-4, 3.0e-6, 1.0e-6]}
search:
  algorithm: grid
  every: 2
  grace_steps: 2
  reduction_factor: 2
  validation:
    mix5: {label: Mix-5, problems: 20, data: {kind: chain, split: validation, terms: [5], operators: ["+-*"]}}
"""


@pytest.mark.slow
def test_a_search_ends_the_worse_points_and_its_table_says_what_was_chosen(tmp_path):
    sweep, home = tmp_path / "explore.yaml", tmp_path / "home"
    sweep.write_text(SWEEP)
    arguments = (str(sweep), *SMALL, "trainer.steps=4", "--home", str(home))
    table = json.loads(run("run", *arguments, "--format", "json").stdout)
    last = {folder.name: event_names(folder)[-1] for folder in run_folders(home)}
    assert set(last.values()) == {"complete", "stopped"}
    assert {step for history in read_histories(home) for step in history.validations} == {2, 4}
    selection = json.loads((home / "sweeps" / "explore" / "selection.json").read_text())
    (chosen,) = selection["chosen"]
    assert selection["scores"][chosen] == max(selection["scores"].values())
    assert [row["label"] for row in table["rows"] if "chosen among 4 points" in row["label"]] != []
    assert [row["outcome"] for row in table["rows"]].count("ended at step 2 by the search") == list(
        last.values()
    ).count("stopped")
    # The command given again finds nothing to do: what the search ended stays ended.
    assert "nothing was started" in run("run", *arguments, "--format", "json").stderr
