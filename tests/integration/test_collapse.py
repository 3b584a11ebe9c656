"""Panel A's strongest penalty collapses with the estimator k1, for real and at the size of the embedded task."""

from __future__ import annotations

import json

import pytest

from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.registry.expand import expand, load_sweep
from tepo_lab.train.trial import run_trial
from tests.integration.command import call

#: Little of each benchmark: what is trained is the same.
OVERRIDES = (
    "seeds=[1]",
    "base=false",
    "arms=[tepo_kl_1_k1]",
    *(f"suite.benchmarks.{name}.{key}=2" for name in ("sum6", "mix8", "times8") for key in ("problems", "samples")),
    *(f"suite.benchmarks.{name}.problems=2" for name in ("sum3", "mix4", "mix6", "mix7")),
)


@pytest.mark.slow
def test_the_collapse_is_a_result_with_a_row_of_its_own(tmp_path, capsys, monkeypatch):
    sweep, overrides = load_sweep("panel-a", OVERRIDES)
    (run,) = expand(sweep, overrides).runs
    before = entry(tmp_path, run)
    prepare_folder(before)
    progress = run_trial(run.spec, before.folder, stop=sweep.stop)
    assert progress.phase == "collapsed"
    assert progress.step < run.spec.steps
    rewards = [step["reward/mean"] for step in before.folder.metrics()]
    assert max(rewards[:5]) > 0.3
    assert max(rewards[-5:]) < 0.05
    after = entry(tmp_path, run)
    assert (after.history.state, after.action) == ("collapsed", "skip")
    asked = ("report", "panel-a", *OVERRIDES, "profile=nano", "--home", str(tmp_path), "--format", "json")
    done = call(capsys, monkeypatch, *asked)
    assert done.code == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["arm"], row["outcome"]) == ("tepo_kl_1_k1", f"collapsed at step {progress.step}")
    assert row["average"]["generation_weighted"] is not None
