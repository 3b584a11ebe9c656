"""What is no part of a run's identity: how it is watched, where its weights come from, what a planner knows of them."""

from __future__ import annotations

import pytest

from tepo_lab.registry.compose import compose_run


@pytest.mark.parametrize(
    ("override", "is_science"),
    [
        ("rollout.max_sampler_mismatch=0.5", False),
        ("resources.gpu_memory_gb=40", False),
        ("model.sizes.parameters=7", False),
        ("model.origin.license=MIT", False),
        ("model.path=elsewhere", False),
        ("model.sha256=" + "0" * 64, True),
        ("data.take=8", True),
        ("data.skip=8", True),
    ],
)
def test_what_tells_two_runs_apart(override: str, is_science: bool) -> None:
    plain, changed = (compose_run("tepo", "smollm2-135m", given).science() for given in ((), (override,)))
    assert (plain != changed) is is_science
