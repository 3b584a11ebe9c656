"""AdamW for weights of either precision."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tepo_lab.schema.profile import Trainer


def adamw(model: Any, trainer: Trainer) -> torch.optim.AdamW:
    """The optimizer of a model's weights: on float32 copies of them where the model has bfloat16 ones."""
    kind = MasterAdamW if next(model.parameters()).dtype == torch.bfloat16 else torch.optim.AdamW
    return kind(
        model.parameters(),
        lr=trainer.learning_rate,
        betas=trainer.betas,
        weight_decay=trainer.weight_decay,
        fused=True,
    )


def trained_weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors that the optimizer updates, in the order of the model's parameters; the full gradient is theirs."""
    return [each for group in optimizer.param_groups for each in group["params"]]


class MasterAdamW(torch.optim.AdamW):
    """AdamW on float32 copies of a model's weights, to which each step sets the model's.

    An update of 1e-6 is lost in a bfloat16 weight of 0.05, whose neighbours are 2.4e-4 away. Gradients are summed in
    float32 too: each backward pass adds them to those of the copies.
    """

    def __init__(self, parameters: Iterable[Tensor], **settings: Any) -> None:
        self.computing = list(parameters)
        self.masters: list[Tensor] = [torch.nn.Parameter(each.detach().float()) for each in self.computing]
        super().__init__(self.masters, **settings)
        for own, master in zip(self.computing, self.masters, strict=True):
            own.register_post_accumulate_grad_hook(partial(_add_gradient, master))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.update_model()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's, with the copies as `masters`."""
        return super().state_dict() | {"masters": [each.detach() for each in self.masters]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a `state_dict`; without `masters` the copies stay the model's weights."""
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "masters"})
        with torch.no_grad():
            torch._foreach_copy_(self.masters, state_dict.get("masters", self.masters))
        self.update_model()

    @torch.no_grad()
    def update_model(self) -> None:
        """Set the model's weights to the rounded copies."""
        torch._foreach_copy_(self.computing, self.masters)


def _add_gradient(master: Tensor, own: Tensor) -> None:
    assert own.grad is not None
    gradient = own.grad.float()
    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
    own.grad = None
