"""The settings of an objective: what is refused, and what they read."""

from __future__ import annotations

import pytest

from tepo_lab.errors import ConfigError, ObjectiveError
from tepo_lab.registry.compose import compose_run
from tepo_lab.schema.objective import resolve

KL = {"kind": "kl", "coef": 1.0}
ENTROPY = {"kind": "entropy", "coef": 1.0}
MEASURED = {"penalty": {**KL, "where": "union"}}


@pytest.mark.parametrize(
    ("objective", "key", "fix"),
    [
        ({"ration": "token"}, "ration", "'ratio'"),
        ({"ratio": "sequences"}, "ratio", "'sequence'"),
        ({"penalty": {"kind": "kl"}}, "penalty.coef", "missing"),
        ({"penalty": {**KL, "estimater": "k1"}}, "penalty.estimater", "'estimator'"),
        ({"penalty": {**KL, "where": "unions"}}, "penalty.where", "'union'"),
        ({"penalty": {**KL, "coef": "much"}}, "penalty.coef", "number"),
        ({"penalty": {**KL, "coef": -1.0}}, "penalty.coef", "at least 0"),
        ({"penalty": {**KL, "coef": float("inf")}}, "penalty.coef", "finite"),
        ({"penalty": "kl"}, "penalty", "mapping"),
        ({"clip_low": True}, "clip_low", "number"),
        ({"dual_clip": 1.0}, "dual_clip", "above 1"),
        ({"dual_clip": 3.0, "surrogate": "unclipped"}, "dual_clip", "ppo_clip"),
        ({"shaping": {"kind": "entropy", "kappa": 1.0}}, "shaping.kappa", "above 1"),
        ({"selection": {"kind": "clip_cov", "fraction": 2.0}}, "selection.fraction", "at most 1"),
        ({"selection": {"kind": "clip_cov", "lower": 5.0}}, "selection", "below upper"),
        ({"weights": {"kind": "steer", "low": 1.1}}, "weights", "exceed high"),
        ({"aggregation": "seq-mean-token-sum-norm"}, "max_response_length", "seq-mean-token-sum-norm"),
        ({"surrogate": "log_likelihood"}, "ratio", "none"),
        ({"ratio": "none"}, "surrogate", "log_likelihood"),
        ({"gradient": "line21", "ratio_gradient": "token"}, "ratio_gradient", "full"),
        ({"penalty": {**KL, "estimator": "full", "straight_through": True}}, "straight_through", "k3"),
    ],
)
def test_a_wrong_objective_is_refused_with_its_key_and_a_fix(objective, key, fix):
    with pytest.raises(ObjectiveError) as refused:
        resolve(objective)
    assert key in str(refused.value)
    assert fix in str(refused.value)


def test_the_yaml_and_policy_loss_refuse_the_same():
    with pytest.raises(ConfigError, match="dual_clip"):
        compose_run("grpo_dapo", "nano", ["objective.surrogate=unclipped", "objective.dual_clip=3.0"])


def test_a_written_out_objective_is_the_same_as_its_short_form():
    short = resolve(MEASURED)
    assert resolve(short.model_dump()) == short
    assert resolve(short) is short
    assert hash(resolve(short.model_dump())) == hash(short)


@pytest.mark.parametrize(
    ("objective", "needs", "whole"),
    [
        ({}, set(), None),
        ({"entropy_change": "covariance"}, set(), None),
        (MEASURED, {"entropy", "old_entropy"}, None),
        ({**MEASURED, "entropy_change": "steer"}, {"old_entropy"}, None),
        ({**MEASURED, "entropy_change": "covariance"}, set(), "entropy_change covariance"),
        ({"penalty": ENTROPY}, {"entropy", "entropy_gradient"}, None),
        ({"penalty": {**ENTROPY, "estimator": "full"}}, {"entropy", "entropy_gradient"}, None),
        ({"penalty": {**KL, "estimator": "full"}}, {"logits"}, None),
        ({"penalty": {**KL, "where": "top_covariance"}}, set(), "penalty.where top_covariance"),
        ({"shaping": {"kind": "entropy"}}, {"entropy"}, None),
        ({"weights": {"kind": "steer"}}, {"old_entropy"}, "weights steer"),
        ({"selection": {"kind": "clip_cov"}}, set(), "selection clip_cov"),
    ],
)
def test_what_each_choice_reads(objective, needs, whole):
    settings = resolve(objective)
    assert settings.needs.keys() == needs
    assert settings.whole_mini_batch_choice == whole
