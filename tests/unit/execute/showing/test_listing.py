"""How a plan reads in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from test_plan import plan_of

from tepo_lab.execute.showing import listing


def printed(plan, **cluster):
    console = Console(width=160, file=io.StringIO())
    console.print(listing.plan_table(plan, **cluster))
    return console.file.getvalue()


def test_a_plan_of_many_runs_shows_the_seeds_of_an_arm_in_one_row(tmp_path, monkeypatch):
    plan = plan_of(tmp_path, "base=true", "seeds=[1,2,3]")
    monkeypatch.setattr(listing, "MAX_ROWS", len(plan.entries))
    every = printed(plan)
    monkeypatch.setattr(listing, "MAX_ROWS", len(plan.entries) - 1)
    folded = printed(plan)
    assert every.count("tepo on nano") == 3
    assert "3 of them" not in every
    assert folded.count("tepo on nano") == 1
    assert folded.count("3 of them") == 2
    assert every.split("Runs:")[1] == folded.split("Runs:")[1]


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"gpus": 64}, "on 64 GPUs and the 128 cores that their runs take (--cpus N estimates with fewer), as"),
        ({"gpus": 64, "cpus": 20}, "on 64 GPUs and 20 cores, as"),
        ({}, "on the 16 cores and 8 GPUs that one run takes (--gpus N estimates for more), as"),
        ({"cpus": 20}, "on 20 cores and the 8 GPUs that one run takes (--gpus N estimates for more), as"),
    ],
)
def test_the_time_names_the_machines_it_is_estimated_for(cluster, said, tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    plan = plan_of(tmp_path, "resources.cpus=16", "resources.gpus=8", "resources.learners=8")
    assert said in printed(plan, **cluster)
    assert "on this machine's 2 cores, as" in printed(plan_of(tmp_path))
    assert "on the 16 cores that one run takes, as" in printed(plan_of(tmp_path, "resources.cpus=16"))


def test_a_cluster_too_small_for_a_run_is_told_with_the_numbers(tmp_path):
    plan = plan_of(tmp_path, "resources.cpus=16", "resources.gpus=8", "resources.learners=8")
    assert "Time: none, since one run takes 8 GPUs and --gpus gives 4.\n" in printed(plan, gpus=4)
    both = "Time: none, since one run takes 16 cores and --cpus gives 2 and one run takes 8 GPUs and --gpus gives 1.\n"
    assert both in printed(plan, cpus=2, gpus=1)
    assert "Time: none" not in printed(plan, cpus=16, gpus=8)
