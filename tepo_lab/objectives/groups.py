"""Advantages of sampled responses: statistics of each group, then the choice of the axis `advantage`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tepo_lab.errors import ObjectiveError
from tepo_lab.objectives.advantages import ADVANTAGES, Groups
from tepo_lab.objectives.settings import resolve


def _statistics(rewards: Tensor, index: Tensor, ddof: int) -> Groups:
    groups = int(index.max()) + 1
    zeros = rewards.new_zeros(groups)
    count = zeros.index_add(0, index, torch.ones_like(rewards))
    single = count == 1
    mean = zeros.index_add(0, index, rewards) / count
    squares = zeros.index_add(0, index, (rewards - mean[index]).square())
    std = torch.where(single, 1.0, (squares / (count - ddof).clamp(min=1)).sqrt())
    lowest = zeros.scatter_reduce(0, index, rewards, "amin", include_self=False)
    highest = zeros.scatter_reduce(0, index, rewards, "amax", include_self=False)
    return Groups(mean.masked_fill(single, 0.0)[index], std[index], (single | (highest > lowest))[index])


def _dense_index(group_ids: Tensor | Sequence[Hashable], responses: int, device: torch.device) -> Tensor:
    ids = group_ids.tolist() if isinstance(group_ids, Tensor) else list(group_ids)
    if len(ids) != responses:
        raise ObjectiveError(f"group_advantages: {len(ids)} group ids for {responses} rewards; give one per response.")
    number = {name: i for i, name in enumerate(dict.fromkeys(ids))}
    return torch.tensor([number[name] for name in ids], dtype=torch.long, device=device)


def group_advantages(
    objective: Mapping[str, Any], rewards: Tensor, group_ids: Tensor | Sequence[Hashable] | None = None
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
        index = _dense_index(group_ids, len(values), values.device)
    else:
        raise ObjectiveError(
            f"group_advantages: rewards have shape {tuple(rewards.shape)}; give (P, G), or (B,) with group_ids."
        )
    if values.numel() == 0:
        return values
    flat = values.flatten()
    groups = _statistics(flat, index, settings.advantage_ddof)
    advantages = ADVANTAGES[settings.advantage](flat, groups, settings.advantage_eps)
    # Equal rewards need not subtract to 0 in floating point, and eps would blow the remainder up.
    return advantages.masked_fill(~groups.varied, 0.0).view_as(values)
