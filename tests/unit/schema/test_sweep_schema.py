"""A sweep's blocks, and stop rules as they are written."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tepo_lab.schema.sweep import MUST_BE_FINITE, StopRule, Sweep


def test_blocks_fill_in_what_the_sweep_says_for_all():
    sweep = Sweep(
        name="s",
        title="S",
        arms=("a",),
        seeds=(1, 2),
        steps=5,
        overrides={"trainer.epochs": 2, "suite.seed": 1},
        axes={"objective.clip_low": (0.1,)},
        parts=[{"arms": ["b"], "seeds": [3]}, {"arms": ["a", "c"], "steps": 9, "overrides": {"suite.seed": 4}}],
    )
    found = [
        (part.arms, part.seeds, part.steps, part.overrides["suite.seed"], list(part.axes)) for part in sweep.blocks
    ]
    assert found == [
        (("a",), (1, 2), 5, 1, ["objective.clip_low"]),
        (("b",), (3,), 5, 1, []),
        (("a", "c"), (1, 2), 9, 4, []),
    ]
    assert all(part.overrides["trainer.epochs"] == 2 for part in sweep.blocks)
    assert sweep.all_arms == ("a", "b", "c")


def test_a_profile_is_written_as_a_name_or_a_list():
    assert Sweep(name="s", title="S", arms=("a",), profile="nano").profiles == ("nano",)
    many = Sweep(name="s", title="S", arms=("a",), profile=["x", "y"])
    assert (many.profiles, many.profile) == (("x", "y"), "x, y")
    assert many.model_dump(by_alias=True)["profile"] == ("x", "y")


def test_a_name_cannot_lead_out_of_a_folder():
    with pytest.raises(ValidationError):
        Sweep(name="../s", title="S", arms=("a",))


@pytest.mark.parametrize("when", ["reward/mean < 0.02", "actor/entropy >= 3e-2", "actor/entropy is not finite"])
def test_conditions_as_they_are_written(when):
    rule = StopRule.model_validate({"when": when, "for": 5})
    assert (rule.when, rule.steps, rule.outcome) == (when, 5, "collapsed")
    assert rule.metric == when.split()[0]


@pytest.mark.parametrize("when", ["reward", "reward < ", "reward/mean = 1", "__import__('os') < 1"])
def test_other_conditions_are_refused(when):
    with pytest.raises(ValidationError):
        StopRule(when=when)


@pytest.mark.parametrize("metric", MUST_BE_FINITE)
def test_a_run_ends_at_its_first_step_without_meaning_so_no_rule_can_wait_for_more(metric):
    when = f" {metric} is not finite "
    assert StopRule.model_validate({"when": when, "for": 1}).metric == metric
    with pytest.raises(ValidationError, match="can never hold for 2 steps"):
        StopRule.model_validate({"when": when, "for": 2})
    assert StopRule.model_validate({"when": f"{metric} > 5", "for": 2}).steps == 2
