"""Losses and gradients against verl, TRL and loop references (tests/golden/objectives.json names them)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest
import torch

from tepo_lab.objectives import group_advantages, policy_loss
from tepo_lab.objectives.batch import make_batch
from tepo_lab.objectives.entropy import entropy_term
from tepo_lab.schema.objective import Objective, resolve

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "objectives.json").read_text())
SEEDS = sorted(GOLDEN["seeds"])
LONGEST = 16

KL_COV = {"kind": "kl", "coef": 1.0, "estimator": "abs", "where": "top_covariance"}
#: What each word of a row's name says of the objective.
WORDS: dict[str, dict] = {
    **{name: {"aggregation": name} for name in get_args(Objective.model_fields["aggregation"].annotation)},
    "vanilla": {"dual_clip": 10.0},
    "gspo": {"ratio": "sequence"},
    "gpg": {"ratio": "none", "surrogate": "log_likelihood"},
    "clip_cov": {"selection": {"kind": "clip_cov"}},
    "kl_cov": {"surrogate": "unclipped", "penalty": KL_COV},
    "cispo": {"surrogate": "detached_clip"},
    "dapo": {"aggregation": "token-mean"},
    "bnpo": {"aggregation": "token-mean"},
    "grpo": {"aggregation": "seq-mean-token-mean"},
    "dr_grpo": {"aggregation": "seq-mean-token-sum-norm"},
    "luspo": {"aggregation": "seq-mean-token-sum"},
    "token": {"ratio": "token"},
    "sequence": {"ratio": "sequence"},
    "tepo_ref": {"ratio": "sequence"},
    "ppo": {"surrogate": "ppo_clip"},
    "printed": {"surrogate": "printed_clip"},
    "none": {"surrogate": "unclipped"},
    "prefix_is": {"ratio": "prefix"},
    "steer_exp": {"dual_clip": 10.0, "weights": {"kind": "steer", "form": "exp", "low": 0.8, "high": 1.0}},
    "steer_linear": {"dual_clip": 10.0, "weights": {"kind": "steer", "form": "linear", "low": 0.8, "high": 1.2}},
    "entropy_adv": {},
    **{name: {"penalty": {"kind": "kl", "coef": 1.0, "estimator": name}} for name in ("k1", "k2", "k3", "abs")},
    **{f"{k}+": {"penalty": {"kind": "kl", "coef": 1, "estimator": k, "straight_through": True}} for k in ("k1", "k3")},
    **{family: {} for family in ("verl", "trl", "kl", "extra", "nokl")},
}
MASKS = {
    "none": "all",
    "pos": "advantage_positive_entropy_falling",
    "neg": "advantage_negative_entropy_rising",
    "union": "union",
}
#: Not a choice of ours: geo_mean clips token ratios before their geometric mean, sapo has a sigmoid in place of a clip.
EXCLUDED = ("verl:geo_mean", "verl:sapo")
NAMES = [name for name in GOLDEN["seeds"][SEEDS[0]]["rows"] if not name.startswith(EXCLUDED)]


def _objective(name: str) -> dict:
    words = re.split("[:|]", name)
    numbers = dict(word.split("=") for word in words if "=" in word)
    axes: dict = {"max_response_length": LONGEST}
    for word in words:
        axes |= {} if "=" in word else WORDS[word]
    if "eps" in numbers:
        axes["clip_low"], axes["clip_high"] = map(float, numbers["eps"].split(","))
    if "eps_high" in numbers:
        axes |= {"clip_low": 1.0, "clip_high": float(numbers["eps_high"]) - 1}
    if "ratio" in numbers:
        axes["penalty"] = {**axes["penalty"], "top_fraction": float(numbers["ratio"])}
    if float(numbers.get("beta", 0)) > 0:
        where = MASKS[numbers.get("mask", "none")]
        axes["penalty"] = {"kind": "kl", "coef": 0.1, "estimator": numbers.get("kl", "k3"), "where": where}
    if "alpha" in numbers:
        axes["shaping"] = {"kind": "entropy", "coef": float(numbers["alpha"]), "kappa": 2.0}
    return axes


def _inputs(seed: str) -> dict[str, torch.Tensor]:
    """Inputs of every row. verl's gpg rows too were made with the group-normalised advantages."""
    given = {key: torch.tensor(value, dtype=torch.float64) for key, value in GOLDEN["seeds"][seed]["inputs"].items()}
    return {
        "log_probs": given["log_prob"],
        "old_log_probs": given["old_log_prob"],
        "advantages": given["advantages"],
        "response_mask": torch.arange(LONGEST) < given["lengths"].unsqueeze(-1),
        "entropy": given["entropy_new"],
        "old_entropy": given["entropy_old"],
        "full_kl": given["kl_full"],
    }


def _tolerance(name: str) -> float:
    if name.startswith("extra:steer"):
        return 1e-5
    return 1e-8 if name.startswith("verl:") and name.split("|")[1] == "seq-mean-token-mean" else 1e-12


def _expected_metrics(name: str, reference: dict[str, float]) -> dict[str, float]:
    """A reference's metrics by our names, without those that mean something else there."""
    ours = {
        "actor/ppo_kl": "actor/ppo_kl",
        "actor/pg_clipfrac": "selection/dropped" if "clip_cov" in name else "actor/pg_clipfrac",
        "actor/pg_clipfrac_lower": "actor/pg_clipfrac_lower",
        "clip_ratio/low_mean": "actor/clip_fraction_negative",
        "clip_ratio/high_mean": "actor/clip_fraction_positive",
        "clip_ratio/region_mean": "actor/pg_clipfrac",
        "kl": "actor/kl_loss",
    }
    # verl's kl_cov logs mean |d| under this name; TRL's kl is a token mean whatever the loss aggregates.
    other = {"actor/ppo_kl"} if "kl_cov" in name else {"kl"} if "dapo" not in name else set()
    return {ours[key]: value for key, value in reference.items() if key in ours.keys() - other}


def test_what_is_excluded_has_no_reference_value():
    for seed in SEEDS:
        rows = GOLDEN["seeds"][seed]["rows"]
        assert [name for name, row in rows.items() if row is not None] == NAMES


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
def test_loss_gradient_and_metrics_match_the_reference(name, seed):
    row, inputs = GOLDEN["seeds"][seed]["rows"][name], _inputs(seed)
    leaf = inputs["log_probs"].requires_grad_()
    out = policy_loss(_objective(name), **inputs, generator=torch.Generator().manual_seed(1234))
    loss = out.penalty_loss if name.startswith("kl:") else out.loss
    (gradient,) = torch.autograd.grad(loss, leaf)
    tolerance, valid = _tolerance(name), inputs["response_mask"]
    assert loss.item() == pytest.approx(row["loss"], rel=0, abs=tolerance * max(1.0, abs(row["loss"])))
    assert gradient[valid].tolist() == pytest.approx(row["grad"], rel=0, abs=tolerance)
    assert gradient[~valid].abs().max() == 0.0
    expected = _expected_metrics(name, row.get("metrics", {}))
    own = {key: out.metrics[key] for key in expected.keys() & out.metrics.keys()}
    # We report a dual clip where there is one only.
    assert own.keys() >= expected.keys() - {"actor/pg_clipfrac_lower"}
    assert own == pytest.approx({key: expected[key] for key in own}, rel=0, abs=1e-8)
    if "weights" in row:
        assert out.tokens["weights"][valid].tolist() == pytest.approx(row["weights"], rel=0, abs=1e-5)
    if "shaped" in row:
        shaped = entropy_term(make_batch(**inputs), resolve(_objective(name)).shaping)
        assert shaped[valid].tolist() == pytest.approx(row["shaped"], rel=0, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_group_advantages_match_the_reference(seed):
    given = GOLDEN["seeds"][seed]["inputs"]
    rewards, ids = torch.tensor(given["rewards"]), torch.tensor(given["index"]).long()
    assert group_advantages({}, rewards, ids).tolist() == pytest.approx(given["advantages"], abs=1e-6)
    centred = group_advantages({"advantage": "mean_only"}, rewards, ids)
    # verl scales GPG's advantages by responses / nonzero rewards where the paper has B / (B - M).
    scaled = centred * len(rewards) / rewards.count_nonzero()
    assert scaled.tolist() == pytest.approx(given["gpg_advantages"], abs=1e-6)
