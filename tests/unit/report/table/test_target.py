"""Steps to reach a target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from synthetic_home import REPORT, RIGHT, SUITE, SyntheticHome, columns_of

from tepo_lab.errors import ConfigError, RecordError
from tepo_lab.records.files import append_line
from tepo_lab.report.render.formats import render
from tepo_lab.report.table.target import Target, TargetTable, first_at, make_target, steps_to_target
from tests.golden_files import assert_golden


def train(home: SyntheticHome, arm: str, seed: int, rewards: list[float], **options: object) -> None:
    folder = home.run(arm, seed, columns=columns_of(SUITE, RIGHT), **{"events": (), **options})
    for step, reward in enumerate(rewards, start=1):
        append_line(
            folder.metrics_file, {"step": step, "reward/mean": reward, "rollout/tokens": 100, "seconds/step": 2.0}
        )


@pytest.fixture
def trained(home: SyntheticHome) -> SyntheticHome:
    home.want("fast")
    home.want("slow", (1, 2))
    home.want("absent", (1,))
    for seed, first in ((1, 3), (2, 4), (3, 6)):
        train(home, "fast", seed, [0.1] * (first - 1) + [0.6] * 6)
    train(home, "slow", 1, [0.1] * 5 + [0.6])
    train(home, "slow", 2, [0.1] * 8)
    return home


def table_of(home: SyntheticHome, target: Target) -> TargetTable:
    return steps_to_target(REPORT, [home.wanted()], target, home=home.path, draws=200)


@pytest.mark.parametrize(
    ("level", "window", "step"),
    # A lucky step does not count: two steps' means are 50, 50, 30, 60.
    [(60.0, 1, 2), (60.0, 2, 5), (55.0, 3, 6), (61.0, 3, None), (0.0, 7, None)],
)
def test_the_first_step_of_a_moving_mean(level: float, window: int, step: int | None) -> None:
    assert first_at({1: 0.0, 2: 100.0, 3: 0.0, 4: 60.0, 5: 60.0, 6: 60.0}, level, window) == step


def test_each_seed_and_the_mean_over_seeds(trained: SyntheticHome) -> None:
    fast, slow, absent = table_of(trained, Target(60.0, window=2)).arms
    assert [(seed.seed, seed.step, seed.tokens, seed.seconds) for seed in fast.seeds] == [
        (1, 4, 400, 8),
        (2, 5, 500, 10),
        (3, 7, 700, 14),
    ]
    assert fast.mean == pytest.approx(16 / 3)
    assert fast.ci95 is not None
    expected = stats.t.interval(0.95, 2, loc=np.mean([4, 5, 7]), scale=stats.sem([4, 5, 7]))
    assert fast.ci95 == pytest.approx((max(0.0, expected[0]), expected[1]))
    # No mean over those that happened to get there.
    assert [(seed.outcome, seed.last_step) for seed in slow.seeds] == [("not reached", 6), ("not reached", 8)]
    assert (slow.mean, slow.ci95) == (None, None)
    assert [seed.outcome for seed in absent.seeds] == ["not run"]


def test_what_is_reached_in_the_first_window_may_have_been_so_earlier(home: SyntheticHome) -> None:
    home.want("quick", (1, 2))
    train(home, "quick", 1, [0.9] * 7)
    train(home, "quick", 2, [0.9] * 7)
    table = table_of(home, Target(60.0))
    (quick,) = table.arms
    assert [(seed.step, seed.or_earlier) for seed in quick.seeds] == [(5, True), (5, True)]
    # The mean is the most that it can be: no interval holds it.
    assert (quick.mean, quick.ci95) == (5.0, None)
    assert [seed["or_earlier"] for seed in table.to_dict()["rows"][0]["seeds"]] == [True, True]
    assert "5.0 or earlier (2 seeds)" in " ".join(render(table, "text").split())
    single = table_of(home, Target(60.0, window=1))
    assert [(seed.step, seed.or_earlier) for seed in single.arms[0].seeds] == [(1, False), (1, False)]
    assert "earlier" not in render(single, "text")


def test_a_damaged_run_is_not_one_that_was_not_run(trained: SyntheticHome) -> None:
    trained.rows["absent"] = replace(trained.rows["absent"], seeds=(1, 2), damaged=(2,))
    *_, absent = table_of(trained, Target(60.0)).arms
    assert [(seed.seed, seed.outcome) for seed in absent.seeds] == [(1, "not run"), (2, "records damaged")]


def test_evaluations_are_listed_and_none_is_picked(trained: SyntheticHome) -> None:
    scores = table_of(trained, Target(60.0)).evaluated
    assert [(score.arm, score.step, score.seeds) for score in scores] == [("fast", 20, (1, 2, 3)), ("slow", 20, (1, 2))]
    assert scores[0].percent == pytest.approx(100 * 7 / 18)


def test_a_search_has_its_validation_score(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    events = tuple({"event": "validated", "step": step, "value": value} for step, value in ((4, 20.0), (8, 55.0)))
    train(home, "plain", 1, [0.1] * 9, events=events)
    (arm,) = table_of(home, make_target(50, "validation", None)).arms
    assert (arm.seeds[0].step, arm.seeds[0].tokens) == (8, 800)


@pytest.mark.parametrize("metric", ["sampled", "avg"])
def test_a_benchmark_chooses_no_step(metric: str) -> None:
    with pytest.raises(ConfigError, match=f"--metric {metric}"):
        make_target(50, metric, None)


def test_nothing_recorded_names_the_home(home: SyntheticHome) -> None:
    home.want("plain", (1,))
    home.run("plain", 1)
    with pytest.raises(RecordError, match=r"no run of its arms has recorded reward/mean under .*--home"):
        table_of(home, Target(50.0))


def test_golden(trained: SyntheticHome) -> None:
    assert_golden("report/target", "json", render(table_of(trained, Target(60.0, window=2)), "json"))


@pytest.mark.parametrize("percent", [0.0, -1.0, 100.5, float("nan")])
def test_a_target_is_a_share_above_zero(percent: float) -> None:
    with pytest.raises(ConfigError, match="--target"):
        make_target(percent, "reward/mean", None)
    assert make_target(100.0, "reward/mean", None).percent == 100
