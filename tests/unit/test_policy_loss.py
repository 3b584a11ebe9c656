from __future__ import annotations

import pytest
import torch

import tepo_lab
from tepo_lab.errors import ConfigError, ObjectiveError
from tepo_lab.objectives import policy_loss


@pytest.fixture
def inputs():
    draw = torch.Generator().manual_seed(0)
    shape = (4, 6)

    def noise(scale):
        return scale * torch.randn(shape, generator=draw, dtype=torch.float64)

    old = -1 + noise(0.3)
    entropy = 1 + noise(0.1)
    return {
        "log_probs": (old + noise(0.2)).requires_grad_(),
        "old_log_probs": old,
        "advantages": torch.tensor([1.5, -0.5, 0.7, -1.7], dtype=torch.float64).unsqueeze(-1).expand(shape),
        "response_mask": torch.arange(6) < torch.tensor([[6], [4], [2], [5]]),
        "entropy": entropy,
        "old_entropy": entropy + noise(0.1),
    }


def test_an_arms_name_means_its_resolved_objective(inputs):
    by_name = tepo_lab.policy_loss("tepo", **inputs)
    penalty = {"kind": "kl", "coef": 0.001, "estimator": "k3", "where": "advantage_positive_entropy_falling"}
    by_hand = policy_loss({"ratio": "sequence", "penalty": penalty}, **inputs)
    assert by_name.loss.item() == by_hand.loss.item()
    assert by_name.metrics == by_hand.metrics


def test_the_profile_chooses_the_coefficient(inputs):
    losses = {
        profile: tepo_lab.policy_loss("tepo", profile=profile, **inputs) for profile in ("qwen2.5-7b", "qwen3-14b")
    }
    small, large = losses["qwen2.5-7b"], losses["qwen3-14b"]
    assert large.penalty_loss.item() == pytest.approx(1000 * small.penalty_loss.item())
    assert large.policy_loss.item() == small.policy_loss.item()


def test_a_mapping_needs_no_registry(inputs):
    assert tepo_lab.policy_loss({"ratio": "token"}, **inputs).loss.item() == policy_loss({}, **inputs).loss.item()


def test_unknown_names_are_refused_with_the_nearest(inputs):
    with pytest.raises(ConfigError, match="Did you mean 'tepo'"):
        tepo_lab.policy_loss("tepoo", **inputs)
    with pytest.raises(ObjectiveError, match="sequence"):
        tepo_lab.policy_loss({"ratio": "sequenc"}, **inputs)


def test_the_untrained_model_has_no_loss(inputs):
    with pytest.raises(ObjectiveError, match="untrained model"):
        tepo_lab.policy_loss("base", **inputs)
