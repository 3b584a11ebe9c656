"""Random ragged batches and random objectives for the tests of this folder."""

from __future__ import annotations

from random import Random
from typing import Any, get_args

import torch
from hypothesis import assume, settings
from hypothesis import strategies as st
from torch import Tensor

from tepo_lab.objectives import entropy_from_logits, policy_loss
from tepo_lab.schema.objective import Objective, Penalty, Shaping, Weights

POSITIVE = "advantage_positive_entropy_falling"
NEGATIVE = "advantage_negative_entropy_rising"
TEPO = {"ratio": "sequence", "penalty": {"kind": "kl", "coef": 0.1, "where": POSITIVE}}
NO_KL = {"ratio": "sequence"}
GSPO = {"ratio": "sequence", "aggregation": "seq-mean-token-mean"}

#: The same examples in every run.
property_test = settings(max_examples=60, deadline=None, derandomize=True)


def ragged(
    seed: int, rows: int = 6, columns: int = 9, *, spread: float = 0.3, vocabulary: int = 7, shortest: int = 1
) -> dict[str, Tensor]:
    """Inputs of policy_loss in float64, responses of `shortest` to `columns` tokens, from two softmax policies.

    `spread` is the standard deviation of the logits' change; 0 makes both policies the same.
    """
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, columns + 1, (rows, 1), generator=draw)
    old_logits = torch.randn(rows, columns, vocabulary, generator=draw, dtype=torch.float64)
    logits = old_logits + spread * torch.randn(old_logits.shape, generator=draw, dtype=torch.float64)
    sampled = torch.randint(vocabulary, (rows, columns, 1), generator=draw)
    return {
        "log_probs": logits.log_softmax(-1).gather(-1, sampled).squeeze(-1),
        "old_log_probs": old_logits.log_softmax(-1).gather(-1, sampled).squeeze(-1),
        "advantages": torch.randn(rows, 1, generator=draw, dtype=torch.float64).expand(rows, columns).clone(),
        "response_mask": (torch.arange(columns) < lengths).long(),
        "entropy": entropy_from_logits(logits),
        "old_entropy": entropy_from_logits(old_logits),
        "full_kl": 0.1 * torch.rand(rows, columns, generator=draw, dtype=torch.float64),
    }


def loss_and_gradient(objective: Any, batch: dict[str, Tensor], **more) -> tuple[float, Tensor]:
    """The loss and its gradient (B, T) with respect to the log-probabilities."""
    leaf = batch["log_probs"].clone().requires_grad_()
    loss = policy_loss(objective, **{**batch, "log_probs": leaf}, **more).loss
    (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    return loss.item(), torch.zeros_like(leaf) if gradient is None else gradient


def batches() -> st.SearchStrategy[dict[str, Tensor]]:
    """Batches of 1 to 7 responses of 0 to 6 tokens, of a policy that has moved or not."""
    return st.builds(
        ragged,
        st.integers(0, 10_000),
        rows=st.integers(1, 7),
        columns=st.integers(1, 6),
        spread=st.sampled_from([0.0, 0.3, 1.0]),
        shortest=st.sampled_from([0, 1]),
    )


@st.composite
def objectives(draw: st.DrawFn, *, by_micro_batch: bool = False) -> Objective:
    """Any choice on every axis, or those that micro-batches can be given to.

    Of Clip-Cov all candidates are dropped, so that nothing is random.
    """
    random = Random(draw(st.integers(0, 2**32)))

    def choice(model: type, key: str) -> Any:
        return random.choice(get_args(model.model_fields[key].annotation))

    def maybe(share: float, part: dict[str, Any]) -> dict[str, Any] | None:
        return part if random.random() < share else None

    surrogate, gradient = choice(Objective, "surrogate"), choice(Objective, "gradient")
    penalty = {key: choice(Penalty, key) for key in ("estimator", "where", "direction")}
    penalty |= {"kind": random.choice(["kl", "kl", "kl", "entropy"]), "coef": 0.3, "top_fraction": 0.2}
    penalty["straight_through"] = penalty["estimator"] != "full" and random.random() < 0.3
    objective = Objective.model_validate(
        {
            "ratio": "none" if surrogate == "log_likelihood" else random.choice(["token", "sequence", "prefix"]),
            "ratio_gradient": "full" if gradient == "line21" else choice(Objective, "ratio_gradient"),
            "surrogate": surrogate,
            "clip_low": random.choice([0.05, 0.2]),
            "dual_clip": random.choice([None, 1.5]) if surrogate == "ppo_clip" else None,
            "aggregation": choice(Objective, "aggregation"),
            "max_response_length": 50,
            "penalty": maybe(0.8, penalty),
            "entropy_change": choice(Objective, "entropy_change"),
            "entropy_change_tolerance": random.choice([0.0, 0.05]),
            "selection": maybe(0.2, {"kind": "clip_cov", "fraction": 1.0, "lower": 0.01}),
            "weights": maybe(0.2, {"kind": "steer", "form": choice(Weights, "form"), "high": 1.2}),
            "shaping": maybe(0.3, {"kind": choice(Shaping, "kind")}),
            "gradient": gradient,
        }
    )
    assume(not by_micro_batch or objective.whole_mini_batch_choice is None)
    return objective
