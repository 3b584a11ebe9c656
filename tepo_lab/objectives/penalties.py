"""Axis `penalty`: estimators of KL(pi || pi_old) on the sampled tokens, and the entropy term.

Every function returns (B, T) in nats, zero on padding, differentiable. With d = log pi - log pi_old (estimators k1 to
k3: Schulman 2020, "Approximating KL divergence"; names and clamps: verl `kl_penalty`).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tepo_lab.objectives.batch import Batch
from tepo_lab.schema.objective import Penalty

LOG_RATIO_LIMIT = 20.0
K3_LIMIT = 10.0


def k1(batch: Batch) -> Tensor:
    """d: its gradient does not vanish at pi = pi_old, where it pushes every sampled token down."""
    return batch.log_ratio


def absolute(batch: Batch) -> Tensor:
    """|d|, the penalty of KL-Cov; no gradient at d = 0."""
    return batch.log_ratio.abs()


def k2(batch: Batch) -> Tensor:
    """d^2 / 2."""
    return 0.5 * batch.log_ratio.square()


def k3(batch: Batch) -> Tensor:
    """exp(-d) + d - 1, never negative; d clamped to +-20 and the value to +-10."""
    log_ratio = batch.log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return ((-log_ratio).exp() + log_ratio - 1).clamp(max=K3_LIMIT)


def k3_is(batch: Batch) -> Tensor:
    """r k3 = 1 - r + r d, whose mean over samples of pi_old is KL(pi || pi_old) exactly, as is its gradient's."""
    log_ratio = batch.log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return log_ratio.exp() * (log_ratio - 1) + 1


def full(batch: Batch) -> Tensor:
    """sum_v pi log(pi / pi_old), over the whole vocabulary."""
    assert batch.full_kl is not None
    return batch.full_kl


KL_ESTIMATORS: dict[str, Callable[[Batch], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "abs": absolute,
    "k3_is": k3_is,
    "full": full,
}


def kl(batch: Batch, settings: Penalty) -> Tensor:
    """The estimate; `straight_through` keeps its value and takes k2's gradient (verl's suffix `+`)."""
    value = KL_ESTIMATORS[settings.estimator](batch)
    if not settings.straight_through:
        return value
    with_gradient = k2(batch)
    return with_gradient + (value - with_gradient).detach()


def entropy(batch: Batch, settings: Penalty) -> Tensor:
    """The current policy's entropy, negated where it is to be maximised (TEPO Table 3, Panel B)."""
    assert batch.entropy is not None
    return -batch.entropy if settings.direction == "maximise" else batch.entropy


PENALTIES: dict[str, Callable[[Batch, Penalty], Tensor]] = {"kl": kl, "entropy": entropy}
