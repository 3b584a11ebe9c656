"""From a sweep to its runs: order, counts, axes and parts."""

from __future__ import annotations

import math

import pytest

from tepo_lab.errors import ConfigError
from tepo_lab.registry import compose
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import expand, load_sweep, merge, planned, point_label
from tepo_lab.schema.sweep import Draw, SweepPart

TABLES = ("table1", "table2", "table3", "table4")


def runs_of(name: str, *overrides: str):
    return expand(*load_sweep(name, overrides)).runs


def merged(*names: str, overrides: tuple[str, ...] = ()):
    found = {}
    for name in names:
        merge(found, runs_of(name, *overrides))
    return list(found.values())


def test_one_seed_of_every_arm_comes_before_the_second_of_any():
    found = [(run.spec.arm.name, run.spec.seed) for run in runs_of("panel-e", "seeds=[4,2]")]
    arms = ["tepo_no_kl", "tepo_kl_negative_rising", "tepo_kl_both", "tepo"]
    assert found == [("base", 0), *((arm, 4) for arm in arms), *((arm, 2) for arm in arms)]


def test_the_papers_tables_need_36_training_runs_and_5_untrained_models():
    runs = merged(*TABLES)
    trained = [run.spec for run in runs if run.spec.arm.trained]
    by_profile = {}
    for spec in trained:
        by_profile[spec.profile.name] = by_profile.get(spec.profile.name, 0) + 1
    assert (len(trained), len(runs) - len(trained)) == (36, 5)
    assert by_profile == {
        "qwen2.5-7b": 23,
        "qwen3-14b": 7,
        "deepseek-r1-distill-llama-8b": 2,
        "mistral-7b-instruct-v0.2": 2,
        "deepseek-r1-distill-qwen-7b": 2,
    }
    steps = {(spec.arm.name, spec.seed): spec.evaluation_steps for spec in trained if spec.steps != 72}
    assert steps == {("grpo_dapo", 1): (72, 132), ("grpo_dapo", 2): (72, 132)}


def test_table_3_holds_every_arm_of_its_panels_once():
    panels = {run.spec.arm.name for panel in "abcde" for run in runs_of(f"panel-{panel}")}
    table = [run.spec.arm.name for run in runs_of("table3")]
    assert len(table) == len(set(table)) == 22
    assert set(table) == {arm for arm in panels if not arm.endswith("_k1")}


def test_a_profile_given_replaces_the_tables_own():
    runs = merged(*TABLES, overrides=("profile=nano",))
    assert {run.spec.profile.name for run in runs} == {"nano"}
    assert len(runs) == 24
    assert {run.spec.profile.name for run in runs_of("table2", "profile=[nano,smollm2-135m]")} == {
        "nano",
        "smollm2-135m",
    }


def test_a_run_asked_for_twice_goes_furthest_and_is_evaluated_wherever_either_asks():
    runs = {
        (run.spec.arm.name, run.spec.seed): run.spec for run in merged("table1", "table4", overrides=("profile=nano",))
    }
    assert runs["grpo_dapo", 2].evaluation_steps == (20, 72, 132)
    assert runs["grpo_dapo", 1].evaluation_steps == (72, 132)
    assert runs["tepo", 2].evaluation_steps == (20, 72)


def test_an_override_of_seeds_or_steps_holds_for_every_part():
    runs = runs_of("table4", "seeds=[9]", "trainer.steps=3")
    assert {(run.spec.seed, run.spec.steps) for run in runs if run.spec.arm.trained} == {(9, 3)}
    assert {run.spec.steps for run in runs_of("table4", "steps=4") if run.spec.arm.trained} == {4}


def test_listed_axes_are_crossed_drawn_ones_drawn_together():
    part = SweepPart(
        arms=("tepo",),
        axes={
            "objective.clip_low": (0.1, 0.2),
            "trainer.learning_rate": Draw(loguniform=(1e-6, 1e-4), samples=3),
            "objective.ratio": Draw(choice=("token", "sequence"), samples=3),
        },
        points=({"trainer.epochs": 1}, {"trainer.epochs": 2}),
    )
    found = part.all_points()
    assert len(found) == 2 * 2 * 3
    pairs = {(each["trainer.learning_rate"], each["objective.ratio"]) for each in found}
    assert len(pairs) == 3
    assert found == part.all_points()


def test_draws_are_the_same_everywhere_and_follow_their_distribution():
    assert Draw(loguniform=(1e-4, 1.0), samples=3).values("a.b") == [0.000762602, 0.0284397, 0.00881149]
    values = Draw(loguniform=(1e-4, 1.0), samples=2000).values("x")
    assert all(1e-4 <= value <= 1 for value in values)
    assert sum(math.log10(value) for value in values) / 2000 == pytest.approx(-2, abs=0.1)
    assert sum(Draw(uniform=(0, 10), samples=2000).values("x")) / 2000 == pytest.approx(5, abs=0.3)
    choices = Draw(choice=("a", "b", "c"), samples=3000).values("x")
    assert all(choices.count(each) == pytest.approx(1000, abs=100) for each in "abc")
    assert Draw(uniform=(0, 1), samples=2, seed=1).values("x") != Draw(uniform=(0, 1), samples=2).values("x")


def test_a_point_sets_its_values_and_is_named_in_the_label(sweep_file):
    path = sweep_file("{title: T, arms: [tepo], axes: {objective.penalty.coef: [0.5, 2]}, labels: {tepo: masked}}")
    half, two = (run.spec for run in runs_of(path) if run.spec.arm.trained)
    assert (half.objective.penalty.coef, two.objective.penalty.coef) == (0.5, 2)
    assert (half.arm.label, two.arm.label) == ("masked [coef=0.5]", "masked [coef=2]")
    assert half.arm.point == {"objective.penalty.coef": 0.5}
    assert point_label(
        {"a.penalty.coef": 1, "a.shaping.coef": None, "b.terms": [3, 4], "c": {"kind": "kl", "x": 1}}
    ) == ("penalty.coef=1, shaping.coef=none, terms=3/4, c=kl")


def test_the_factorial_design_meets_the_arms_it_is_made_of():
    runs = {run.run_id for run in runs_of("factorial", "seeds=[1]")}
    assert len(runs) == 9
    for arm in ("tepo_no_kl", "tepo", "gspo", "grpo_dapo"):
        assert planned(compose_run(arm, "nano", seed=1)).run_id in runs


def test_planning_composes_a_profile_once_however_many_runs(sweep_file, monkeypatch):
    compose.clear_caches()
    calls = []
    from hydra import compose as hydra_compose

    monkeypatch.setattr("hydra.compose", lambda *a, **k: (calls.append(1), hydra_compose(*a, **k))[1])
    path = sweep_file(
        "{title: T, arms: [tepo, gspo], seeds: [1, 2],"
        " axes: {trainer.learning_rate: {loguniform: [1e-6, 1e-3], samples: 10}}}"
    )
    assert len(runs_of(path)) == 41
    assert len(calls) == 1


def test_the_search_of_an_exploratory_sweep_is_kept_with_it(sweep_file):
    sweep, _ = load_sweep(sweep_file(EXPLORATORY))
    assert (sweep.search.metric, sweep.search.scheduler) == ("validation/average", "asha")
    assert len(runs_of(sweep_file(EXPLORATORY))) == 7


EXPLORATORY = """
title: Exploratory
arms: [tepo]
axes: {objective.penalty.coef: {loguniform: [0.01, 10], samples: 6}}
search:
  validation:
    held: {label: Held, problems: 50, data: {kind: chain, split: validation, terms: [6]}}
"""


def test_a_sweep_anywhere_on_disk_and_in_a_users_registry(sweep_file, user_registry):
    assert len(runs_of(sweep_file("{title: T, arms: [tepo, gspo]}"))) == 3
    user_registry(**{"sweeps/own": "{title: Own, arms: [tepo]}"})
    assert [run.spec.arm.name for run in runs_of("own")] == ["base", "tepo"]


def test_an_override_that_makes_two_arms_one_is_refused_and_one_that_does_not_is_taken() -> None:
    def planned_arms(*overrides: str) -> list[str]:
        return [each.spec.arm.name for each in expand(*load_sweep("panel-d", ["seeds=[1]", *overrides])).runs]

    with pytest.raises(ConfigError, match="arm 'gspo' is the same as 'tepo_no_kl'"):
        planned_arms("objective.aggregation=token-mean")
    assert planned_arms("objective.clip_low=0.1") == planned_arms()
    assert planned_arms("objective.aggregation=token-mean", "arms=[gspo]") == ["base", "gspo"]


def test_short_keys_of_the_field_are_taken() -> None:
    (base, run) = expand(*load_sweep("panel-e", ["seeds=[1]", "arms=[tepo]", "trainer.lr=3e-5"])).runs
    assert not base.spec.arm.trained
    assert run.spec.trainer.learning_rate == 3e-5
