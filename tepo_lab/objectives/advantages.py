"""Axis `advantage`: from the rewards of a group of responses to one prompt to their advantages."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tepo_lab.errors import ObjectiveError
from tepo_lab.schema.objective import Objective, resolve


class Groups(NamedTuple):
    """Statistics of each response's group, (B,) each. A group of one has mean 0 and deviation 1, as in verl."""

    mean: Tensor
    std: Tensor
    varied: Tensor
    """False where all of a group of two or more have the same reward; its advantages are exactly 0."""


def group_normalised(rewards: Tensor, groups: Groups, settings: Objective) -> Tensor:
    """(R - mean) / (std + eps) (GRPO, arXiv 2402.03300; TEPO Eq. 9)."""
    return (rewards - groups.mean) / (groups.std + settings.advantage_eps)


def mean_only(rewards: Tensor, groups: Groups, settings: Objective) -> Tensor:
    """R - mean (Dr. GRPO, arXiv 2503.20783)."""
    return rewards - groups.mean


def gpg(rewards: Tensor, groups: Groups, settings: Objective) -> Tensor:
    """(R - mean) B / (B - M), with M responses in groups whose rewards are all equal (GPG, arXiv 2504.02546)."""
    varied = groups.varied.sum().clamp(min=1)
    return (rewards - groups.mean) * (len(rewards) / varied)


ADVANTAGES: dict[str, Callable[[Tensor, Groups, Objective], Tensor]] = {
    "group_normalised": group_normalised,
    "mean_only": mean_only,
    "gpg": gpg,
}


def group_advantages(
    objective: Objective | Mapping[str, Any], rewards: Tensor, group_ids: Tensor | Sequence[Hashable] | None = None
) -> Tensor:
    """Advantages of responses among the responses to the same prompt, in the shape of the rewards.

    Args: objective with `advantage`, `advantage_eps` and `advantage_ddof` (1: Bessel's correction); rewards either
    (P, G), one row per prompt, or (B,) with group_ids naming the prompt of each. Groups may differ in size.
    Raises ObjectiveError for shapes that fit neither.
    """
    settings = resolve(objective)
    values = rewards if rewards.is_floating_point() else rewards.float()
    if group_ids is None and values.dim() == 2:
        index = torch.arange(len(values), device=values.device).repeat_interleave(values.shape[1])
    elif group_ids is not None and values.dim() == 1:
        ids = group_ids.tolist() if isinstance(group_ids, Tensor) else list(group_ids)
        if len(ids) != len(values):
            raise ObjectiveError(
                f"group_advantages: {len(ids)} group ids for {len(values)} rewards; give one per response."
            )
        number = {name: i for i, name in enumerate(dict.fromkeys(ids))}
        index = torch.tensor([number[name] for name in ids], dtype=torch.long, device=values.device)
    else:
        raise ObjectiveError(
            f"group_advantages: rewards have shape {tuple(rewards.shape)}; give (P, G), or (B,) with group_ids."
        )
    if values.numel() == 0:
        return values
    flat = values.flatten()
    groups = _statistics(flat, index, settings.advantage_ddof)
    advantages = ADVANTAGES[settings.advantage](flat, groups, settings)
    # Equal rewards need not subtract to 0 in floating point, and eps would blow the remainder up.
    return advantages.masked_fill(~groups.varied, 0.0).view_as(values)


def _statistics(rewards: Tensor, index: Tensor, ddof: int) -> Groups:
    """Of rewards (B,) whose groups are numbered from 0 by `index` (B,)."""
    zeros = rewards.new_zeros(int(index.max()) + 1)
    count = zeros.index_add(0, index, torch.ones_like(rewards))
    single = count == 1
    mean = zeros.index_add(0, index, rewards) / count
    squares = zeros.index_add(0, index, (rewards - mean[index]).square())
    std = torch.where(single, 1.0, (squares / (count - ddof).clamp(min=1)).sqrt())
    lowest = zeros.scatter_reduce(0, index, rewards, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, index, rewards, "amax", include_self=False)
    return Groups(mean.masked_fill(single, 0.0)[index], std[index], (single | (highest > lowest))[index])
