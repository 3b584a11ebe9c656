"""Policy-gradient objectives as choices on orthogonal axes; knows no configuration file, no run and no disk.

The settings of an objective are `tepo_lab.schema.objective.Objective`, shared with the YAML files: one choice on each
axis. Each axis is a module with a table, name -> pure function: `advantages`, `ratios`, `surrogates`, `weighting`
(selection and weights), `aggregation`, `penalties`, `masks` (where a penalty acts) and `entropy` (entropy change and
shaping). A function takes the batch, what earlier axes made of it, and last the settings: the objective, or its own
part of it. `PolicyLoss` puts the choices together.
"""

from __future__ import annotations

from tepo_lab.objectives.advantages import group_advantages
from tepo_lab.objectives.batch import BatchTotals, batch_totals, full_kl_from_logits
from tepo_lab.objectives.entropy import entropy_from_logits
from tepo_lab.objectives.loss import LossOutput, PolicyLoss, gradient_ratio, policy_loss
from tepo_lab.objectives.metrics import average_metrics, combine_metrics
from tepo_lab.schema.objective import Objective, resolve

__all__ = [
    "BatchTotals",
    "LossOutput",
    "Objective",
    "PolicyLoss",
    "average_metrics",
    "batch_totals",
    "combine_metrics",
    "entropy_from_logits",
    "full_kl_from_logits",
    "gradient_ratio",
    "group_advantages",
    "policy_loss",
    "resolve",
]
