from __future__ import annotations

import pytest

from tepo_lab.errors import ConfigError
from tepo_lab.schema.base import validate
from tepo_lab.schema.sweep import StopRule
from tepo_lab.train.step.stop_rules import broken_rule


def rule(when, steps=1):
    return StopRule.model_validate({"when": when, "for": steps})


def steps(*rewards):
    return [{"reward/mean": reward} for reward in rewards]


def test_a_condition_must_hold_for_all_the_steps_running():
    low = rule("reward/mean < 0.02", 3)
    assert broken_rule([low], steps(0.5, 0.01, 0.01)) is None
    assert broken_rule([low], steps(0.01, 0.5, 0.01, 0.01)) is None
    assert broken_rule([low], steps(0.5, 0.01, 0.0, 0.019)) == low


def test_limits_are_strict_or_not_as_written():
    assert broken_rule([rule("reward/mean < 0.5")], steps(0.5)) is None
    assert broken_rule([rule("reward/mean <= 0.5")], steps(0.5)) is not None
    assert broken_rule([rule("reward/mean > 5e-1")], steps(0.5)) is None
    assert broken_rule([rule("reward/mean >= 5e-1")], steps(0.5)) is not None


def test_not_finite_is_a_recorded_null_and_a_missing_metric_says_nothing():
    not_finite = rule("actor/pg_loss is not finite")
    assert broken_rule([not_finite], [{"actor/pg_loss": None}]) == not_finite
    assert broken_rule([not_finite], [{"actor/pg_loss": 0.1}]) is None
    spaced = rule(" actor/pg_loss is not finite ")
    assert broken_rule([spaced], [{"actor/pg_loss": None}]) == spaced
    assert broken_rule([not_finite], [{"reward/mean": 0.1}]) is None
    assert broken_rule([rule("actor/entropy < 1")], [{"actor/entropy": None}]) is None


def test_a_rule_that_cannot_be_read_is_refused():
    with pytest.raises(ConfigError, match="METRIC < NUMBER"):
        validate(StopRule, {"when": "reward goes down"}, where="sweep")
