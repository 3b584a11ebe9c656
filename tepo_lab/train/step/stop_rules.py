"""Stop rules: a run whose metric stays beyond a limit has collapsed, which is a result."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from tepo_lab.schema.sweep import CONDITION, StopRule

_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def broken_rule(rules: Sequence[StopRule], metrics: Sequence[Mapping[str, Any]]) -> StopRule | None:
    """The first rule whose condition held in each of the last `rule.steps` step metrics, or None.

    Args: `metrics`, one mapping a step in order; a value of None was not finite. Where a step has no such metric
    (it had no group to learn from, for example), the condition does not hold.
    """
    for rule in rules:
        recent = metrics[-rule.steps :]
        if len(recent) == rule.steps and all(_holds(rule, step) for step in recent):
            return rule
    return None


def _holds(rule: StopRule, metrics: Mapping[str, Any]) -> bool:
    match = CONDITION.fullmatch(rule.when)
    if match is None:
        return rule.metric in metrics and metrics[rule.metric] is None
    value = metrics.get(rule.metric)
    return value is not None and bool(_COMPARISONS[match["comparison"]](value, float(match["limit"])))
