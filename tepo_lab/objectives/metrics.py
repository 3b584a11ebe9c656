"""What an objective did to a batch, as plain numbers: gathered in few tensor operations, moved to the CPU once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from tepo_lab.objectives.batch import Batch
from tepo_lab.schema.objective import Objective

ADDITIVE = frozenset({"actor/pg_loss", "actor/kl_loss"})
"""Metrics already divided by the mini-batch's totals: those of its micro-batches add up."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What one evaluation of an objective produced: (B, T) tensors unless said otherwise.

    Attributes:
        policy: the first term of the loss, scalar.
        ratio: importance weights, detached; their value on padding means nothing.
        clipped, clipped_lower: where the surrogate's clip and the dual clip take hold, boolean.
        dropped: tokens taken out by a selection, boolean.
        weights: token weights; their value on padding means nothing.
        change: entropy change in nats (the covariance estimate: of no scale), or None where its inputs are missing.
        moved: the same, 0 where it is within the objective's tolerance.
        mask: tokens on which the penalty acts, boolean.
        kl: the aggregated KL (nats) before its coefficient, scalar. kl_on_mask: its values, 0 off the mask.
    """

    policy: Tensor
    ratio: Tensor
    clipped: Tensor
    clipped_lower: Tensor | None
    dropped: Tensor | None
    weights: Tensor | None
    change: Tensor | None
    moved: Tensor | None
    mask: Tensor | None
    kl: Tensor | None
    kl_on_mask: Tensor | None


def gather(batch: Batch, terms: Terms, settings: Objective) -> tuple[dict[str, float], int]:
    """Metrics of a batch by name, and its number of valid tokens. One transfer from the device.

    Means and shares are over the batch's valid tokens; where there are none, means are 0 and extremes 1.
    """
    means, scalars = _token_means(batch, terms, settings), _scalars(batch, terms)
    crossed, counts = _by_sign(batch, terms)
    names = [*means, *crossed]
    sums = torch.stack([value.to(counts.dtype) for value in means.values()]).sum((1, 2))
    transferred = torch.cat([sums, counts, torch.stack([batch.tokens.to(counts.dtype), *scalars.values()])]).tolist()
    tokens = int(transferred[len(names)])
    metrics = {name: total / max(tokens, 1) for name, total in zip(names, transferred, strict=False)}
    metrics |= dict(zip(scalars, transferred[len(names) + 1 :], strict=True))
    if tokens == 0:
        metrics |= {name: 1.0 for name in metrics if name.endswith(("/min", "/max"))}
    if settings.penalty is not None and "penalty/kl_on_mask" in metrics:
        metrics["actor/kl_coef"] = settings.penalty.coef
        metrics["penalty/kl_on_mask"] /= metrics["mask/share"] or 1.0
    return metrics, tokens


def _token_means(batch: Batch, terms: Terms, settings: Objective) -> dict[str, Tensor]:
    """Values (B, T), zero on padding, whose mean over the valid tokens is the metric of that name."""
    ratio = terms.ratio.masked_fill(batch.padding, 0.0)
    values = {
        "ratio/mean": ratio,
        "actor/ppo_kl": -batch.log_ratio.detach(),
        "actor/pg_clipfrac": terms.clipped,
        "actor/clip_fraction_high": ratio > 1 + settings.clip_high,
        "actor/clip_fraction_low": (ratio < 1 - settings.clip_low) & batch.valid,
        "actor/pg_clipfrac_lower": terms.clipped_lower,
        "actor/entropy": None if batch.entropy is None else batch.entropy.detach(),
        "entropy/change_mean": terms.change,
        "selection/dropped": terms.dropped,
        "weights/mean": None if terms.weights is None else terms.weights.masked_fill(batch.padding, 0.0),
        "mask/share": terms.mask,
        "penalty/kl_on_mask": None if terms.kl_on_mask is None else terms.kl_on_mask.detach(),
    }
    return {name: value for name, value in values.items() if value is not None}


def _scalars(batch: Batch, terms: Terms) -> dict[str, Tensor]:
    values = {"actor/pg_loss": terms.policy.detach()}
    for name, tensor in (("ratio", terms.ratio), ("weights", terms.weights)):
        if tensor is not None:
            values[f"{name}/min"] = tensor.masked_fill(batch.padding, torch.inf).amin()
            values[f"{name}/max"] = tensor.masked_fill(batch.padding, -torch.inf).amax()
    if terms.kl is not None:
        values["actor/kl_loss"] = terms.kl.detach()
    return values


def _by_sign(batch: Batch, terms: Terms) -> tuple[list[str], Tensor]:
    """Names and counts of tokens by the sign of A crossed with clipped, dH falling and dH rising."""
    dtype = batch.log_probs.dtype
    signs = torch.stack((batch.advantages > 0, batch.advantages < 0))
    names, flags = ["actor/clip_fraction_{}"], [terms.clipped]
    if terms.moved is not None:
        names += ["cells/{}_falling", "cells/{}_rising"]
        flags += [terms.moved < 0, terms.moved > 0]
    counts = torch.stack(flags).flatten(1).to(dtype) @ signs.flatten(1).to(dtype).T
    return [name.format(sign) for name in names for sign in ("positive", "negative")], counts.flatten()


def combine_metrics(micro_batches: Iterable[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """Metrics of one mini-batch from those of its micro-batches, each with its number of valid tokens.

    Losses add up, extremes stay extremes, all else is averaged over tokens. The micro-batches must have been given
    the mini-batch's totals and the same inputs; those without tokens do not count. Empty when there are none.
    """
    return _combined(micro_batches, sum)


def average_metrics(updates: Iterable[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """Metrics of a training step from those of its mini-batches: as `combine_metrics`, but losses are averaged."""
    return _combined(updates, fmean)


def _combined(
    parts: Iterable[tuple[Mapping[str, float], int]], combine_losses: Callable[[list[float]], float]
) -> dict[str, float]:
    given = list(parts)
    filled = [part for part in given if part[1] > 0] or given[:1]
    combined: dict[str, float] = {}
    for name in filled[0][0] if filled else ():
        values = [metrics[name] for metrics, _ in filled]
        if name in ADDITIVE:
            combined[name] = combine_losses(values)
        elif name.endswith("/min"):
            combined[name] = min(values)
        elif name.endswith("/max"):
            combined[name] = max(values)
        else:
            # The KL on the mask is a mean over the masked tokens, all else over all valid ones.
            of_mask = name == "penalty/kl_on_mask"
            weights = [tokens * metrics["mask/share"] if of_mask else tokens for metrics, tokens in filled]
            total = sum(weights)
            weighted = sum(w * v for w, v in zip(weights, values, strict=True))
            combined[name] = weighted / total if total else fmean(values)
    return combined
