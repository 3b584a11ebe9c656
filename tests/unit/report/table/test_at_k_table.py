"""avg@n and pass@k beside a table's scores."""

from __future__ import annotations

from itertools import combinations

import pytest
from synthetic_home import SyntheticHome

from tepo_lab.errors import ConfigError


def by_enumeration(right: list[int], samples: int, k: int) -> float:
    """The share of all ways to pick k of a problem's samples that have a right one, over the problems."""
    shares = []
    for count in right:
        picks = list(combinations(range(samples), k))
        shares.append(sum(any(sample < count for sample in pick) for pick in picks) / len(picks))
    return 100 * sum(shares) / len(shares)


def test_pass_at_k_is_that_of_all_picks(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    home.run("plain", 1, right={"greedy": [1, 0, 0, 0, 0, 0], "sampled": [2, 1, 0]})
    (row,) = home.table(pass_at=(4, 1, 2)).rows
    assert list(row.at_k) == ["sampled"]
    scores = row.at_k["sampled"]
    assert list(scores) == ["avg@4", "pass@1", "pass@2", "pass@4"]
    assert scores["avg@4"][0] == pytest.approx(row.scores["sampled"].percent)
    for k in (1, 2, 4):
        value, (low, high) = scores[f"pass@{k}"]
        assert value == pytest.approx(by_enumeration([2, 1, 0], 4, k))
        assert low <= value <= high


def test_the_interval_of_avg_is_that_of_the_cell(full_home: SyntheticHome) -> None:
    for row in full_home.table("base", pass_at=(1, 2)).rows:
        if not row.scores:
            assert row.at_k == {}
        else:
            score = row.scores["sampled"]
            assert row.at_k["sampled"]["avg@4"] == (score.percent, score.ci95)
            # One sample's chance is the same number, over the same draws.
            assert row.at_k["sampled"]["pass@1"][0] == pytest.approx(score.percent)
            assert row.at_k["sampled"]["pass@1"][1] == pytest.approx(score.ci95)


def test_more_than_the_samples_is_refused(full_home: SyntheticHome) -> None:
    with pytest.raises(ConfigError, match=r"pass@5 needs 5 samples .* is 4 samples a problem, of Sampled @4"):
        full_home.table("base", pass_at=(1, 5))
