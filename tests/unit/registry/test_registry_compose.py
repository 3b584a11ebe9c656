"""From names to one resolved run: layers, overrides, references, and differences between runs."""

from __future__ import annotations

import pytest

from tepo_lab.errors import ConfigError
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.difference import check_against_parent, difference, read_difference
from tepo_lab.registry.locations import parse_yaml
from tepo_lab.registry.values import overlaid, plain_keys, resolved, with_value


def test_overrides_follow_the_arm_and_are_read_by_hydras_grammar():
    spec = compose_run(
        "tepo", "nano", ["trainer.learning_rate=1e-4", "trainer.betas=[0.9,0.95]", "suite.seed=3"], seed=7
    )
    assert (spec.trainer.learning_rate, spec.trainer.betas, spec.suite.seed, spec.seed) == (1e-4, (0.9, 0.95), 3, 7)
    assert compose_run("tepo", "nano", ["objective.penalty=null"]).objective.penalty is None
    assert compose_run("tepo", "nano", ["objective.penalty={coef: 0.5}"]).objective.penalty.estimator == "k3"


def test_a_group_is_chosen_by_name_and_settings_come_before_overrides():
    spec = compose_run("tepo", "nano", ["trainer.steps=5"], settings={"trainer": "paper", "trainer.steps": 9})
    assert (spec.trainer.prompts_per_step, spec.trainer.learning_rate, spec.trainer.steps) == (64, 5e-7, 5)
    assert compose_run("tepo", "nano", ["model=smollm2-135m"]).model.name == "smollm2-135m"


def test_a_reference_follows_an_override_of_what_it_refers_to():
    assert compose_run("tepo", "nano", ["profile.tepo_kl_coef=0.25"]).objective.penalty.coef == 0.25


MINE = "label: mine\nparent: tepo\nvaries: [objective.clip_high]\nobjective: {clip_high: 0.5}\n"


def test_a_users_registry_adds_arms_groups_and_profiles_and_hides_files_of_the_same_name(user_registry):
    user_registry(
        **{
            "experiments/arm/mine": MINE,
            "experiments/trainer/nano": "{steps: 7, learning_rate: 1e-4, prompts_per_step: 8, mini_batch_prompts: 2}",
            "experiments/profile/own": (
                "defaults: [{/model: nano}, {/data: chain}, {/prompt: plain}, {/suite: nano}, {/rollout: nano},"
                " {/trainer: nano}, _self_]\n"
                "profile: {name: own, label: own, tepo_kl_coef: 0.5,"
                " estimates: {seconds_per_step: 1, evaluation_seconds: 1}}\n"
            ),
        }
    )
    mine = compose_run("mine", "own")
    assert (mine.objective.clip_high, mine.objective.penalty.coef, mine.trainer.steps) == (0.5, 0.5, 7)
    assert compose_run("tepo", "nano").steps == 7


def test_without_the_users_registry_the_packages_files_are_back():
    assert compose_run("tepo", "nano").steps == 20


def test_an_arm_is_not_offered_as_its_own_parent(user_registry):
    user_registry(**{"experiments/arm/nopar": "label: a\nparent: nope\n"})
    with pytest.raises(ConfigError, match="unknown parent 'nope'") as caught:
        compose_run("nopar", "nano")
    assert "nopar'?" not in str(caught.value)


def test_an_arm_that_differs_outside_varies_is_refused_with_the_difference(user_registry):
    folder = user_registry(
        **{"experiments/arm/mine": MINE.replace("{clip_high: 0.5}", "{clip_high: 0.5, ratio: token}")}
    )
    with pytest.raises(ConfigError) as caught:
        check_against_parent("mine", "nano")
    assert str(caught.value).startswith(f"{folder / 'experiments/arm/mine.yaml'}: ")
    assert "objective.ratio (sequence -> token)" in str(caught.value)


def test_difference_shows_what_tells_two_arms_apart():
    found = difference(compose_run("tepo", "nano"), compose_run("tepo_kl_both", "nano"))
    assert found == {"objective.penalty.where": ("advantage_positive_entropy_falling", "union")}
    assert difference(compose_run("tepo_no_kl", "nano"), compose_run("gspo", "nano")) == {
        "objective.aggregation": ("token-mean", "seq-mean-token-mean")
    }


def test_keys_that_neither_side_reads_are_left_out():
    tepo, gspo, entropy = (compose_run(arm, "nano") for arm in ("tepo", "gspo", "max_entropy"))
    assert set(difference(tepo, gspo)) - set(read_difference(tepo, gspo)) == {
        "objective.penalty.direction",
        "objective.penalty.top_fraction",
    }
    assert set(read_difference(tepo, entropy)) == {f"objective.penalty.{key}" for key in ("coef", "kind", "where")}
    read = read_difference(gspo, entropy)
    assert read["objective.penalty.direction"] == (None, "maximise")
    assert "objective.penalty.estimator" not in read


def test_layers_merge_mappings_and_leave_what_they_are_laid_over_alone():
    below = {"a": {"b": 1, "c": [1, 2]}, "d": 1}
    assert overlaid(below, {"a": {"c": [3]}, "d": None}) == {"a": {"b": 1, "c": [3]}, "d": None}
    assert with_value(below, "a.e.f", 5) == {"a": {"b": 1, "c": [1, 2], "e": {"f": 5}}, "d": 1}
    assert below == {"a": {"b": 1, "c": [1, 2]}, "d": 1}


def test_references_are_followed_through_each_other_and_into_text(monkeypatch):
    monkeypatch.setenv("TEPO_LAB_TEST_FOLDER", "/data")
    values = {
        "a": {"b": 3, "name": "x"},
        "c": "${a.b}",
        "d": ["${c}", "${a}"],
        "e": "${oc.env:TEPO_LAB_TEST_FOLDER}/${a.name}",
    }
    assert resolved(values)["d"] == [3, {"b": 3, "name": "x"}]
    assert resolved(values)["e"] == "/data/x"
    assert plain_keys(values) == {"a"}


def test_yaml_is_read_without_its_surprises():
    values = parse_yaml("{rate: 5e-7, off: off, day: 2026-01-01, yes: true, half: .5, none: null}")
    assert values == {"rate": 5e-7, "off": "off", "day": "2026-01-01", "yes": True, "half": 0.5, "none": None}
