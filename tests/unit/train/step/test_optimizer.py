from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from tepo_lab.registry.compose import compose_run
from tepo_lab.train.step.optimizer import MasterAdamW, adamw, trained_weights
from tests.unit.train.distributed.test_process_group import tiny


def loss_of(model, ids):
    return -model(input_ids=ids).logits.float().log_softmax(-1)[..., 3].mean()


def trained(model, steps, optimizer=None, *, parts=1):
    """Take `steps` steps, each over a batch in `parts` parts."""
    trainer = compose_run("tepo", "nano", ("trainer.learning_rate=1e-6",), seed=1).trainer
    optimizer = optimizer or adamw(model, trainer)
    ids = torch.arange(24).view(4, 6)
    for _ in range(steps):
        optimizer.zero_grad()
        for part in ids.split(4 // parts):
            (loss_of(model, part) / parts).backward()
        optimizer.step()
    return optimizer


def moved(weights, start):
    """How far the weights have come, in one row."""
    return parameters_to_vector(weights).detach() - parameters_to_vector(start)


def test_small_updates_of_a_bfloat16_model_add_up_in_float32():
    precise, half = tiny(tied=True), tiny(tied=True).bfloat16()
    starts = [[each.detach().clone().float() for each in model.parameters()] for model in (precise, half)]
    plain, optimizer = trained(precise, 20), trained(half, 20)
    assert isinstance(optimizer, MasterAdamW)
    expected, found = moved(trained_weights(plain), starts[0]), moved(optimizer.masters, starts[1])
    # Twenty updates of at most 1e-6: each alone would vanish between two neighbouring bfloat16 numbers.
    assert float(found.abs().max()) == pytest.approx(2e-5, rel=0.1)
    assert float(torch.nn.functional.cosine_similarity(found, expected, dim=0)) > 0.95
    for own, master in zip(half.parameters(), optimizer.masters, strict=True):
        assert torch.equal(own, master.bfloat16())


def test_gradients_of_parts_are_added_up_in_float32():
    model = tiny(tied=False).bfloat16()
    optimizer = trained(model, 1, parts=4)
    assert all(each.grad is None for each in model.parameters())
    assert {each.grad.dtype for each in optimizer.masters} == {torch.float32}


def test_going_on_from_a_saved_state_is_going_on():
    model = tiny(tied=True).bfloat16()
    optimizer = trained(model, 3)
    other = tiny(tied=True).bfloat16()
    again = trained(other, 1)
    again.load_state_dict(deepcopy(optimizer.state_dict()))
    trained(model, 2, optimizer)
    trained(other, 2, again)
    assert all(torch.equal(one, two) for one, two in zip(optimizer.masters, again.masters, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))
