"""Random ragged batches for the tests of this folder."""

from __future__ import annotations

import torch
from torch import Tensor

from tepo_lab.objectives import entropy_from_logits, policy_loss

TEPO = {
    "ratio": "sequence",
    "penalty": {"kind": "kl", "coef": 0.1, "where": "advantage_positive_entropy_falling"},
}
NO_KL = {"ratio": "sequence"}


def ragged(
    seed: int, rows: int = 6, columns: int = 9, *, spread: float = 0.3, vocabulary: int = 7
) -> dict[str, Tensor]:
    """Inputs of policy_loss in float64, responses of 1 to `columns` tokens, from two softmax policies.

    `spread` is the standard deviation of the logits' change; 0 makes both policies the same.
    """
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, columns + 1, (rows, 1), generator=draw)
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
    }


def loss_and_gradient(objective: dict, batch: dict[str, Tensor], **more) -> tuple[float, Tensor]:
    """The loss and its gradient (B, T) with respect to the log-probabilities."""
    leaf = batch["log_probs"].clone().requires_grad_()
    loss = policy_loss(objective, **{**batch, "log_probs": leaf}, **more).loss
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.item(), gradient
