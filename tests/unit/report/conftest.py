"""Homes with synthetic runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_home import SyntheticHome


@pytest.fixture
def home(tmp_path: Path) -> SyntheticHome:
    return SyntheticHome(tmp_path)


@pytest.fixture
def full_home(tmp_path: Path) -> SyntheticHome:
    """The untrained model, two complete arms of three seeds, one that collapsed and one of each kind of gap."""
    home = SyntheticHome(tmp_path)
    home.want("base", (0,), panel=None)
    home.run("base", 0, right={"greedy": [1, 0, 0, 0, 0, 0], "sampled": [1, 0, 0]}, steps=0)
    for arm in ("plain", "masked", "collapsing", "broken", "absent", "partial"):
        home.want(arm)
    for seed in (1, 2, 3):
        home.run("plain", seed, right={"greedy": [1, 1, 0, 0, seed % 2, 0], "sampled": [2, 1, 3]})
        home.run("masked", seed, right={"greedy": [1, 1, 1, 1, 0, 1], "sampled": [3, 3, seed]}, parent="plain")
        home.run(
            "collapsing",
            seed,
            right={"greedy": [0] * 6, "sampled": [0, seed % 2, 0]},
            steps=9,
            parent="plain",
            events=({"event": "collapsed", "step": 9, "rule": "reward/mean < 0.02"},),
        )
        failure = {"event": "failed", "step": 3, "kind": "user", "error": "loss is not finite"}
        home.run("broken", seed, events=(failure,))
    home.run("partial", 2, right={"greedy": [1] * 6, "sampled": [4, 0, 0]}, parent="plain")
    return home
