"""An objective as data: one choice on each axis (formulas in `tepo_lab.objectives`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tepo_lab.schema.base import NUMBER, Strict

Positive = Annotated[float, Field(gt=0), NUMBER]
NonNegative = Annotated[float, Field(ge=0), NUMBER]
Fraction = Annotated[float, Field(ge=0, le=1), NUMBER]

Where = Literal[
    "all", "advantage_positive_entropy_falling", "advantage_negative_entropy_rising", "union", "top_covariance"
]


class Penalty(Strict):
    """A term added to the loss on the tokens that `where` selects: KL to the rollout policy, or entropy."""

    kind: Literal["kl", "entropy"]
    coef: NonNegative
    estimator: Literal["k1", "k2", "k3", "abs", "k3_is", "full"] = "k3"
    straight_through: bool = False
    where: Where = "all"
    top_fraction: Fraction = 2e-3
    direction: Literal["maximise", "minimise"] = "maximise"


class Selection(Strict):
    """Clip-Cov: tokens of high covariance between log-probability and advantage leave the gradient."""

    kind: Literal["clip_cov"]
    fraction: Fraction = 2e-4
    lower: float = 1.0
    upper: float = 5.0

    @model_validator(mode="after")
    def _ordered(self) -> Selection:
        if self.lower >= self.upper:
            raise ValueError(f"lower ({self.lower}) must be below upper ({self.upper})")
        return self


class Weights(Strict):
    """STEER: token weights from the estimated entropy change."""

    kind: Literal["steer"]
    form: Literal["exp", "linear"] = "exp"
    low: Positive = 0.8
    high: Positive = 1.0


class Shaping(Strict):
    """An entropy term added to the advantage (Cheng et al., arXiv 2506.14758, Eq. 4 to 6)."""

    kind: Literal["entropy"]
    coef: NonNegative = 0.4
    kappa: Annotated[float, Field(gt=1)] = 2.0


class Objective(Strict):
    """One choice on each axis of a policy-gradient loss for groups of sampled responses."""

    advantage: Literal["group_normalised", "mean_only", "gpg"] = "group_normalised"
    advantage_eps: NonNegative = 1e-6
    advantage_ddof: Literal[0, 1] = 1
    ratio: Literal["token", "sequence", "prefix", "none"] = "token"
    ratio_gradient: Literal["full", "token"] = "full"
    surrogate: Literal["ppo_clip", "printed_clip", "unclipped", "detached_clip", "log_likelihood"] = "ppo_clip"
    clip_low: NonNegative = 0.2
    clip_high: NonNegative = 0.28
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    aggregation: Literal[
        "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "token-sum"
    ] = "token-mean"
    max_response_length: Annotated[int, Field(gt=0)] | None = None
    penalty: Penalty | None = None
    entropy_change: Literal["measured", "covariance", "steer"] = "measured"
    entropy_change_tolerance: NonNegative = 0.0
    selection: Selection | None = None
    weights: Weights | None = None
    shaping: Shaping | None = None
    gradient: Literal["autograd", "line21"] = "autograd"

    @property
    def unread(self) -> frozenset[str]:
        """Dotted keys that no term of this objective reads: their values change nothing."""
        keys = set()
        if self.surrogate in ("unclipped", "log_likelihood"):
            keys |= {"clip_low", "clip_high"}
        if self.aggregation != "seq-mean-token-sum-norm":
            keys.add("max_response_length")
        if self.penalty is None or self.penalty.where in ("all", "top_covariance"):
            keys |= {"entropy_change", "entropy_change_tolerance"}
        if self.penalty is not None:
            of_kind = {"kl": {"direction"}, "entropy": {"estimator", "straight_through"}}[self.penalty.kind]
            keys |= {f"penalty.{key}" for key in of_kind}
            if self.penalty.where != "top_covariance":
                keys.add("penalty.top_fraction")
        return frozenset(keys)

    @model_validator(mode="after")
    def _consistent(self) -> Objective:
        if self.surrogate == "log_likelihood" and self.ratio != "none":
            raise ValueError("surrogate log_likelihood takes ratio: none")
        if self.ratio == "none" and self.surrogate != "log_likelihood":
            raise ValueError("ratio: none takes surrogate: log_likelihood")
        if self.aggregation == "seq-mean-token-sum-norm" and self.max_response_length is None:
            raise ValueError("aggregation seq-mean-token-sum-norm needs max_response_length")
        return self
