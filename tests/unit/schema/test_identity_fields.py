"""What is no part of a run's identity: how it is watched, where its weights come from, what a planner knows of them."""

from __future__ import annotations

import pytest

from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned


@pytest.mark.parametrize(
    ("override", "is_identity"),
    [
        ("rollout.max_sampler_mismatch=0.5", False),
        ("resources.gpu_memory_gb=40", False),
        ("model.sizes.parameters=7", False),
        ("model.origin.license=MIT", False),
        ("model.path=elsewhere", False),
        ("model.sha256=" + "0" * 64, True),
        ("model.system_role=true", False),
        ("model.system_role=false", True),
        ("suite.benchmarks.gsm8k.prompt=null", False),
        ("suite.benchmarks.gsm8k.prompt={template: boxed_chat}", False),
        ("suite.benchmarks.gsm8k.prompt={template: dapo_answer}", True),
        ("suite.benchmarks.gsm8k.grader=null", False),
        ("suite.benchmarks.gsm8k.grader=exact", True),
        ("data.take=8", True),
        ("data.skip=8", True),
    ],
)
def test_what_tells_two_runs_apart(override: str, is_identity: bool) -> None:
    plain, changed = (compose_run("tepo", "smollm2-135m", given).identity_fields() for given in ((), (override,)))
    assert (plain != changed) is is_identity


def test_local_places_are_written_out_and_the_run_stays_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    given = ("data=gsm8k", "data.path=own/train.jsonl", "model.path=./weights")
    spec = compose_run("tepo", "smollm2-135m", given)
    placed = spec.with_absolute_paths()
    assert placed.data.path == str(tmp_path / "own" / "train.jsonl")
    assert placed.suite.benchmarks["gsm8k"].data.path == str(tmp_path / "gsm8k_test.jsonl")
    assert placed.model.path == str(tmp_path / "weights")
    assert planned(placed).run_id == planned(spec).run_id
    assert placed.with_absolute_paths() == placed
    hub = compose_run("tepo", "qwen2.5-7b")
    assert hub.with_absolute_paths() == hub
    nano = compose_run("tepo", "nano")
    assert nano.with_absolute_paths() == nano
