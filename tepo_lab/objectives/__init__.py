"""Policy-gradient objectives as choices on orthogonal axes; knows no configuration file, no run and no disk.

An objective is a mapping with one choice on each axis. Each axis is a module with a table, name -> pure function:
`advantages`, `ratios`, `surrogates`, `weighting` (selection and weights), `aggregation`, `penalties`, `masks` (where a
penalty acts) and `entropy` (entropy change and shaping). `policy_loss` puts the choices together.
"""

from __future__ import annotations

from tepo_lab.objectives.batch import BatchTotals, batch_totals, full_kl_from_logits
from tepo_lab.objectives.entropy import entropy_from_logits
from tepo_lab.objectives.groups import group_advantages
from tepo_lab.objectives.metrics import average_metrics, combine_metrics
from tepo_lab.objectives.objective import LossOutput, gradient_ratio, parameter_gradient_ratio, policy_loss
from tepo_lab.objectives.settings import Settings, needs, needs_whole_mini_batch, resolve

__all__ = [
    "BatchTotals",
    "LossOutput",
    "average_metrics",
    "Settings",
    "batch_totals",
    "combine_metrics",
    "entropy_from_logits",
    "full_kl_from_logits",
    "gradient_ratio",
    "group_advantages",
    "needs",
    "needs_whole_mini_batch",
    "parameter_gradient_ratio",
    "policy_loss",
    "resolve",
]
