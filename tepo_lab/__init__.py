"""Declare, run and report ablations of RL objectives for reasoning models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tepo_lab.objectives import LossOutput, PolicyLoss


def resolve_loss(objective: str | Mapping[str, Any], *, profile: str = "qwen2.5-7b") -> PolicyLoss:
    """The loss of an arm or of an objective, resolved once; call it for every micro-batch (`PolicyLoss`).

    Args: `objective`, an arm's name, looked up in the registry with the choices that `profile` makes for it (TEPO's
    KL coefficient), or a mapping with the YAML's keys.
    Raises `ConfigError` for an unknown arm or profile, `ObjectiveError` for an objective that cannot be used.
    """
    from tepo_lab.errors import ObjectiveError
    from tepo_lab.objectives import PolicyLoss

    if not isinstance(objective, str):
        return PolicyLoss(objective)
    from tepo_lab.registry.compose import compose_run

    spec = compose_run(objective, profile)
    if not spec.arm.trained:
        raise ObjectiveError(f"policy_loss: arm {objective!r} is the untrained model and has no objective.")
    return PolicyLoss(spec.objective)


def policy_loss(objective: str | Mapping[str, Any], *, profile: str = "qwen2.5-7b", **inputs: Any) -> LossOutput:
    """The loss of an arm or of an objective, for any trainer: `resolve_loss` called once.

    Args: `objective` and `profile` as for `resolve_loss`; `inputs` as for `tepo_lab.objectives.PolicyLoss`.
    Raises as `resolve_loss`, and `ObjectiveError` for inputs that do not fit.

        out = tepo_lab.policy_loss("tepo", log_probs=..., old_log_probs=..., advantages=..., response_mask=...,
                                   entropy=..., old_entropy=...)
        out.loss.backward()
    """
    return resolve_loss(objective, profile=profile)(**inputs)
