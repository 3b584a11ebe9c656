"""An objective as its caller writes it, a mapping with the YAML's keys, checked and completed with the defaults."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tepo_lab.errors import ObjectiveError, nearest
from tepo_lab.objectives.advantages import ADVANTAGES
from tepo_lab.objectives.aggregation import AGGREGATIONS
from tepo_lab.objectives.entropy import ENTROPY_CHANGES, SHAPINGS
from tepo_lab.objectives.masks import READS_ENTROPY_CHANGE, WHERE
from tepo_lab.objectives.penalties import ENTROPY_DIRECTIONS, KL_ESTIMATORS
from tepo_lab.objectives.ratios import RATIOS
from tepo_lab.objectives.surrogates import SURROGATES
from tepo_lab.objectives.weighting import SELECTIONS, STEER_FORMS, WEIGHTS

PENALTY_KINDS = ("kl", "entropy")
RATIO_GRADIENTS = ("full", "token")
GRADIENTS = ("autograd", "line21")


@dataclass(frozen=True, slots=True)
class PenaltySettings:
    """A term added to the loss: `coef` times KL to the rollout policy, or the entropy with the direction's sign."""

    kind: str
    coef: float
    estimator: str = "k3"
    straight_through: bool = False
    where: str = "all"
    top_fraction: float = 2e-3
    direction: str = "maximise"


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """Clip-Cov: share of tokens to drop and the open interval their covariance must lie in."""

    kind: str
    fraction: float = 2e-4
    lower: float = 1.0
    upper: float = 5.0


@dataclass(frozen=True, slots=True)
class WeightsSettings:
    """STEER: the form of the weight and its bounds."""

    kind: str
    form: str = "exp"
    low: float = 0.8
    high: float = 1.0


@dataclass(frozen=True, slots=True)
class ShapingSettings:
    """Entropy-shaped advantages: scale of the entropy and the share of |A| that bounds it, 1 / kappa."""

    kind: str
    coef: float = 0.4
    kappa: float = 2.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Every axis with its choice; the defaults are those of GRPO/DAPO."""

    advantage: str = "group_normalised"
    advantage_eps: float = 1e-6
    advantage_ddof: int = 1
    ratio: str = "token"
    ratio_gradient: str = "full"
    surrogate: str = "ppo_clip"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    aggregation: str = "token-mean"
    max_response_length: int | None = None
    penalty: PenaltySettings | None = None
    entropy_change: str = "measured"
    entropy_change_tolerance: float = 0.0
    selection: SelectionSettings | None = None
    weights: WeightsSettings | None = None
    shaping: ShapingSettings | None = None
    gradient: str = "autograd"

    @property
    def mask_reads_entropy_change(self) -> bool:
        """Whether where the penalty acts depends on the entropy change."""
        return self.penalty is not None and self.penalty.where in READS_ENTROPY_CHANGE


PARTS: dict[str, type] = {
    "penalty": PenaltySettings,
    "selection": SelectionSettings,
    "weights": WeightsSettings,
    "shaping": ShapingSettings,
}
CHOICES: dict[str, Iterable[str]] = {
    "advantage": ADVANTAGES,
    "ratio": RATIOS,
    "ratio_gradient": RATIO_GRADIENTS,
    "surrogate": SURROGATES,
    "aggregation": AGGREGATIONS,
    "penalty.kind": PENALTY_KINDS,
    "penalty.estimator": KL_ESTIMATORS,
    "penalty.where": WHERE,
    "penalty.direction": ENTROPY_DIRECTIONS,
    "entropy_change": ENTROPY_CHANGES,
    "selection.kind": SELECTIONS,
    "weights.kind": WEIGHTS,
    "weights.form": STEER_FORMS,
    "shaping.kind": SHAPINGS,
    "gradient": GRADIENTS,
}
BOUNDS: dict[str, tuple[float, float, bool]] = {
    # key: lowest, highest, whether the lowest itself is allowed
    "advantage_eps": (0.0, math.inf, True),
    "advantage_ddof": (0.0, 1.0, True),
    "clip_low": (0.0, math.inf, True),
    "clip_high": (0.0, math.inf, True),
    "dual_clip": (1.0, math.inf, False),
    "max_response_length": (0.0, math.inf, False),
    "penalty.coef": (0.0, math.inf, True),
    "penalty.top_fraction": (0.0, 1.0, True),
    "entropy_change_tolerance": (0.0, math.inf, True),
    "selection.fraction": (0.0, 1.0, True),
    "selection.lower": (-math.inf, math.inf, True),
    "selection.upper": (-math.inf, math.inf, True),
    "weights.low": (0.0, math.inf, False),
    "weights.high": (0.0, math.inf, False),
    "shaping.coef": (0.0, math.inf, True),
    "shaping.kappa": (1.0, math.inf, False),
}


def _check_value(key: str, value: object) -> None:
    if key in CHOICES:
        if not isinstance(value, str) or value not in CHOICES[key]:
            raise ObjectiveError(f"objective.{key}: unknown choice {value!r}.{nearest(str(value), CHOICES[key])}")
    elif key in BOUNDS:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ObjectiveError(f"objective.{key}: {value!r} is not a number; YAML reads 1e-3 as text, 1.0e-3 as one.")
        low, high, inclusive = BOUNDS[key]
        if not (low <= value <= high) or (value == low and not inclusive):
            wanted = f"{'at least' if inclusive else 'above'} {low:g}" + (
                f" and at most {high:g}" if high < math.inf else ""
            )
            raise ObjectiveError(f"objective.{key}: {value!r} is out of range; it must be {wanted}.")
    elif not isinstance(value, bool):
        raise ObjectiveError(f"objective.{key}: {value!r} is not true or false.")


def _build(kind: type, given: object, prefix: str) -> Any:
    """The dataclass `kind` from a mapping; `prefix` is '' at the top and 'penalty.' and so on below."""
    if not isinstance(given, Mapping):
        raise ObjectiveError(f"objective{'.' if prefix else ''}{prefix[:-1]}: {given!r} is not a mapping of settings.")
    known = {field.name: field for field in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise ObjectiveError(f"objective.{prefix}{name}: unknown key.{nearest(str(name), known)}")
        if value is None and known[name].default is None:
            continue
        key = prefix + name
        if key in PARTS:
            value = _build(PARTS[key], value, f"{key}.")
        else:
            _check_value(key, value)
        values[name] = value
    try:
        return kind(**values)
    except TypeError:
        required = ("kind", "coef") if kind is PenaltySettings else ("kind",)
        missing = next(name for name in required if name not in values)
        raise ObjectiveError(f"objective.{prefix}{missing}: missing; give it a value.") from None


def _check_together(settings: Settings) -> None:
    """Raises ObjectiveError for choices that are right on their own and wrong together."""
    if (settings.surrogate == "log_likelihood") != (settings.ratio == "none"):
        raise ObjectiveError(
            f"objective: surrogate {settings.surrogate} with ratio {settings.ratio}; "
            f"log_likelihood and ratio none go together."
        )
    if settings.aggregation == "seq-mean-token-sum-norm" and settings.max_response_length is None:
        raise ObjectiveError(
            "objective.max_response_length: missing; aggregation seq-mean-token-sum-norm divides by it."
        )
    if settings.dual_clip is not None and settings.surrogate != "ppo_clip":
        raise ObjectiveError(f"objective.dual_clip: surrogate {settings.surrogate} has none; use ppo_clip, or null.")
    if settings.gradient == "line21" and settings.ratio_gradient != "full":
        raise ObjectiveError("objective.gradient: line21 sets the ratio's gradient itself; leave ratio_gradient full.")
    selection, weights, penalty = settings.selection, settings.weights, settings.penalty
    if selection is not None and selection.lower >= selection.upper:
        raise ObjectiveError(f"objective.selection: lower ({selection.lower}) must be below upper ({selection.upper}).")
    if weights is not None and weights.low > weights.high:
        raise ObjectiveError(f"objective.weights: low ({weights.low}) must not exceed high ({weights.high}).")
    if penalty is not None and penalty.straight_through and penalty.estimator == "full":
        raise ObjectiveError(
            "objective.penalty.straight_through: estimator full has its own gradient; use k1, k3 or abs."
        )


def resolve(objective: Mapping[str, Any]) -> Settings:
    """The settings of an objective, missing keys at their defaults.

    Raises ObjectiveError, naming the key and the nearest right name, for anything unknown, out of range or
    contradictory. Keys of a part that its kind does not read (an estimator on an entropy penalty) are checked, then
    left alone, so that a fully written-out objective passes.
    """
    settings: Settings = _build(Settings, objective, "")
    _check_together(settings)
    return settings


def needs(objective: Mapping[str, Any]) -> frozenset[str]:
    """What `policy_loss` must be given besides log-probabilities, advantages and mask.

    Members: `entropy` (of the current policy), `entropy_gradient` (that entropy must be differentiable),
    `old_entropy`, `logits` (logits and old_logits, or full_kl).
    """
    return needed_by(resolve(objective))


def needed_by(settings: Settings) -> frozenset[str]:
    """`needs` of settings already resolved."""
    needed: set[str] = set()
    if settings.mask_reads_entropy_change:
        needed |= {"measured": {"entropy", "old_entropy"}, "steer": {"old_entropy"}}.get(settings.entropy_change, set())
    if settings.penalty is not None and settings.penalty.kind == "entropy":
        needed |= {"entropy", "entropy_gradient"}
    if settings.penalty is not None and settings.penalty.kind == "kl" and settings.penalty.estimator == "full":
        needed.add("logits")
    if settings.shaping is not None:
        needed.add("entropy")
    if settings.weights is not None:
        needed.add("old_entropy")
    return frozenset(needed)


def whole_mini_batch_reason(settings: Settings) -> str | None:
    """The choice whose statistics span the mini-batch, as `key value`, or None."""
    if settings.selection is not None:
        return f"selection {settings.selection.kind}"
    if settings.weights is not None:
        return f"weights {settings.weights.kind}"
    if settings.penalty is not None and settings.penalty.where == "top_covariance":
        return "penalty.where top_covariance"
    if settings.mask_reads_entropy_change and settings.entropy_change == "covariance":
        return "entropy_change covariance"
    return None


def needs_whole_mini_batch(objective: Mapping[str, Any]) -> bool:
    """Whether a mini-batch must come in one call, since some choice reads statistics over all of its tokens."""
    return whole_mini_batch_reason(resolve(objective)) is not None
