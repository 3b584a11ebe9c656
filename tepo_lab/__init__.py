"""Declare, run and report ablations of RL objectives for reasoning models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tepo_lab.objectives import LossOutput


def policy_loss(objective: str | Mapping[str, Any], *, profile: str = "qwen2.5-7b", **inputs: Any) -> LossOutput:
    """The loss of an arm or of an objective, for any trainer.

    Args: `objective`, an arm's name, looked up in the registry with the choices that `profile` makes for it (TEPO's
    KL coefficient), or a mapping with the YAML's keys; `inputs` as for `tepo_lab.objectives.policy_loss`.
    Raises `ConfigError` for an unknown arm or profile, `ObjectiveError` for inputs that do not fit.

        out = tepo_lab.policy_loss("tepo", log_probs=..., old_log_probs=..., advantages=..., response_mask=...,
                                   entropy=..., old_entropy=...)
        out.loss.backward()
    """
    from tepo_lab import objectives
    from tepo_lab.errors import ObjectiveError

    if isinstance(objective, str):
        from tepo_lab.registry.compose import compose_run

        spec = compose_run(objective, profile)
        if not spec.arm.trained:
            raise ObjectiveError(f"policy_loss: arm {objective!r} is the untrained model and has no objective.")
        objective = spec.objective.model_dump()
    return objectives.policy_loss(objective, **inputs)
