"""The settings of an objective: one choice on each axis, with defaults and bounds (formulas in `tepo_lab.objectives`).

The one definition of its keys, read by YAML files, the JSON Schema, run ids and `policy_loss`. It imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tepo_lab.errors import ConfigError, ObjectiveError
from tepo_lab.schema.base import NUMBER, NonNegativeFloat, PositiveFloat, Strict, validate

Fraction = Annotated[float, Field(ge=0, le=1), NUMBER]
AboveOne = Annotated[float, Field(gt=1), NUMBER]
Number = Annotated[float, NUMBER]

Where = Literal[
    "all", "advantage_positive_entropy_falling", "advantage_negative_entropy_rising", "union", "top_covariance"
]


class Penalty(Strict):
    """A term added to the loss on the tokens that `where` selects: KL to the rollout policy, or entropy."""

    kind: Literal["kl", "entropy"]
    coef: NonNegativeFloat
    estimator: Literal["k1", "k2", "k3", "abs", "k3_is", "full"] = "k3"
    straight_through: bool = False
    where: Where = "all"
    top_fraction: Fraction = 2e-3
    direction: Literal["maximise", "minimise"] = "maximise"

    @model_validator(mode="after")
    def _consistent(self) -> Penalty:
        if self.straight_through and self.estimator == "full":
            raise ValueError("straight_through: estimator full has its own gradient; use k1, k3 or abs")
        return self


class Selection(Strict):
    """Clip-Cov: the share of tokens to drop, and the open interval in which their covariance must lie."""

    kind: Literal["clip_cov"]
    fraction: Fraction = 2e-4
    lower: Number = 1.0
    upper: Number = 5.0

    @model_validator(mode="after")
    def _ordered(self) -> Selection:
        if self.lower >= self.upper:
            raise ValueError(f"lower ({self.lower}) must be below upper ({self.upper})")
        return self


class Weights(Strict):
    """STEER: token weights within [low, high] from the estimated entropy change."""

    kind: Literal["steer"]
    form: Literal["exp", "linear"] = "exp"
    low: PositiveFloat = 0.8
    high: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> Weights:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) must not exceed high ({self.high})")
        return self


class Shaping(Strict):
    """An entropy term added to the advantage, at most |A| / kappa (Cheng et al., arXiv 2506.14758, Eq. 4 to 6)."""

    kind: Literal["entropy"]
    coef: NonNegativeFloat = 0.4
    kappa: AboveOne = 2.0


class Objective(Strict):
    """One choice on each axis of a policy-gradient loss for groups of sampled responses; the defaults are GRPO/DAPO."""

    advantage: Literal["group_normalised", "mean_only", "gpg"] = "group_normalised"
    advantage_eps: NonNegativeFloat = 1e-6
    advantage_ddof: Literal[0, 1] = 1
    ratio: Literal["token", "sequence", "prefix", "none"] = "token"
    ratio_gradient: Literal["full", "token"] = "full"
    surrogate: Literal["ppo_clip", "printed_clip", "unclipped", "detached_clip", "log_likelihood"] = "ppo_clip"
    clip_low: NonNegativeFloat = 0.2
    clip_high: NonNegativeFloat = 0.28
    dual_clip: AboveOne | None = None
    aggregation: Literal[
        "token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "token-sum"
    ] = "token-mean"
    max_response_length: Annotated[int, Field(gt=0)] | None = None
    penalty: Penalty | None = None
    entropy_change: Literal["measured", "covariance", "steer"] = "measured"
    entropy_change_tolerance: NonNegativeFloat = 0.0
    selection: Selection | None = None
    weights: Weights | None = None
    shaping: Shaping | None = None
    gradient: Literal["autograd", "line21"] = "autograd"

    @model_validator(mode="after")
    def _consistent(self) -> Objective:
        if self.surrogate == "log_likelihood" and self.ratio != "none":
            raise ValueError("surrogate log_likelihood takes ratio: none")
        if self.ratio == "none" and self.surrogate != "log_likelihood":
            raise ValueError("ratio: none takes surrogate: log_likelihood")
        if self.aggregation == "seq-mean-token-sum-norm" and self.max_response_length is None:
            raise ValueError("aggregation seq-mean-token-sum-norm needs max_response_length")
        if self.dual_clip is not None and self.surrogate != "ppo_clip":
            raise ValueError(f"surrogate {self.surrogate} has no dual_clip; use ppo_clip, or dual_clip: null")
        if self.gradient == "line21" and self.ratio_gradient != "full":
            raise ValueError("gradient: line21 sets the ratio's gradient itself; leave ratio_gradient: full")
        return self

    @property
    def reads_entropy_change(self) -> bool:
        """Whether where the penalty acts depends on the entropy change."""
        return self.penalty is not None and self.penalty.where not in ("all", "top_covariance")

    @property
    def needs(self) -> dict[str, str]:
        """What the loss needs besides log-probabilities, advantages and mask, each with the choice that reads it.

        Keys: `entropy` (of the current policy), `entropy_gradient` (that entropy must be differentiable),
        `old_entropy`, `logits` (logits and old_logits, or full_kl).
        """
        needs: dict[str, str] = {}
        if self.penalty is not None and self.penalty.kind == "entropy":
            needs |= dict.fromkeys(("entropy", "entropy_gradient"), "penalty.kind entropy")
        elif self.penalty is not None and self.penalty.estimator == "full":
            needs["logits"] = "penalty.estimator full"
        if self.penalty is not None and self.reads_entropy_change:
            reads = {"measured": ("entropy", "old_entropy"), "steer": ("old_entropy",), "covariance": ()}
            reader = f"penalty.where {self.penalty.where} with entropy_change {self.entropy_change}"
            needs |= dict.fromkeys(reads[self.entropy_change], reader)
        if self.shaping is not None:
            needs["entropy"] = f"shaping {self.shaping.kind}"
        if self.weights is not None:
            needs["old_entropy"] = f"weights {self.weights.kind}"
        return needs

    @property
    def whole_mini_batch_choice(self) -> str | None:
        """The choice that reads statistics over all tokens of a mini-batch, which must then come in one call."""
        if self.selection is not None:
            return f"selection {self.selection.kind}"
        if self.weights is not None:
            return f"weights {self.weights.kind}"
        if self.penalty is not None and self.penalty.where == "top_covariance":
            return "penalty.where top_covariance"
        return (
            "entropy_change covariance" if self.reads_entropy_change and self.entropy_change == "covariance" else None
        )

    @property
    def unread(self) -> frozenset[str]:
        """Dotted keys that no term of this objective reads: their values change nothing."""
        keys = set()
        if self.surrogate in ("unclipped", "log_likelihood"):
            keys |= {"clip_low", "clip_high"}
        if self.aggregation != "seq-mean-token-sum-norm":
            keys.add("max_response_length")
        if not self.reads_entropy_change:
            keys |= {"entropy_change", "entropy_change_tolerance"}
        if self.penalty is not None:
            of_kind = {"kl": {"direction"}, "entropy": {"estimator", "straight_through"}}[self.penalty.kind]
            keys |= {f"penalty.{key}" for key in of_kind}
            if self.penalty.where != "top_covariance":
                keys.add("penalty.top_fraction")
        return frozenset(keys)


def resolve(objective: Objective | Mapping[str, Any]) -> Objective:
    """The settings of an objective given by the YAML's keys, missing ones at their defaults.

    Raises `ObjectiveError`, naming the key and the nearest right name, for an unknown key or choice, a value out of
    range, and choices that contradict each other.
    """
    if isinstance(objective, Objective):
        return objective
    try:
        return validate(Objective, objective, where="objective")
    except ConfigError as error:
        raise ObjectiveError(str(error)) from None
