"""Axis `advantage`: from the rewards of a group of responses to one prompt to their advantages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Groups(NamedTuple):
    """Statistics of each response's group, (B,) each. A group of one has mean 0 and deviation 1, as in verl."""

    mean: Tensor
    std: Tensor
    varied: Tensor
    """False where all of a group of two or more have the same reward; its advantages are exactly 0."""


def group_normalised(rewards: Tensor, groups: Groups, eps: float) -> Tensor:
    """(R - mean) / (std + eps) (GRPO, arXiv 2402.03300; TEPO Eq. 9)."""
    return (rewards - groups.mean) / (groups.std + eps)


def mean_only(rewards: Tensor, groups: Groups, eps: float) -> Tensor:
    """R - mean (Dr. GRPO, arXiv 2503.20783)."""
    return rewards - groups.mean


def gpg(rewards: Tensor, groups: Groups, eps: float) -> Tensor:
    """(R - mean) B / (B - M), with M responses in groups whose rewards are all equal (GPG, arXiv 2504.02546)."""
    varied = groups.varied.sum().clamp(min=1)
    return (rewards - groups.mean) * (len(rewards) / varied)


ADVANTAGES: dict[str, Callable[[Tensor, Groups, float], Tensor]] = {
    "group_normalised": group_normalised,
    "mean_only": mean_only,
    "gpg": gpg,
}
