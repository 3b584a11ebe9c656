"""A model whose weights, gradients and optimizer state are sharded over the ranks (FSDP2).

Each transformer block is gathered for its forward and backward pass, and resharded afterwards. Trained weights are
float32; a model declared bfloat16 computes in bfloat16 and sums its gradients in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.schema.profile import ModelSpec
from tepo_lab.train.distributed.process_group import ProcessGroup


def load_sharded(spec: ModelSpec, process_group: ProcessGroup, device: torch.device, read: Callable[[], Any]) -> Any:
    """The model that `spec` names, sharded over the ranks; only rank 0 ever has all of it, on its CPU.

    Args: `read` returns the unsharded model on the CPU in float32; called on rank 0 only.
    """
    unsharded: list[Any] = []

    def describe() -> tuple[Any, Any, dict[str, Tensor]]:
        model = read()
        unsharded.append(model)
        return model.config, model.generation_config, dict(model.named_buffers())

    config, generation_config, buffers = process_group.on_rank_zero(describe)
    model = _without_memory(config, torch.float32, spec.trust_remote_code)
    model.generation_config = generation_config
    if spec.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    shard(model, process_group, device, torch.bfloat16 if spec.dtype == "bfloat16" else torch.float32)
    _allocate(model, device, buffers)
    state = unsharded[0].state_dict() if unsharded else {}
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return model.eval()


def shard(model: Any, process_group: ProcessGroup, device: torch.device, dtype: torch.dtype) -> None:
    """Shard each transformer block, and the other weights with the root (embeddings, last norm, head, tied or not).

    Gradients are summed over the ranks, not averaged: each loss is already divided by the whole mini-batch's totals.
    """
    mesh = init_device_mesh(device.type, (process_group.world_size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    block_names = set(model._no_split_modules or ())
    for block in [module for module in model.modules() if type(module).__name__ in block_names]:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    # Scoring calls the trunk and the head separately; a call of the trunk must gather the root's weights as well.
    model.trunk = MethodType(lambda model, *args, **kwargs: model.base_model(*args, **kwargs), model)
    register_fsdp_forward_method(model, "trunk")


def full_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Names and unsharded weights, one at a time. Every rank must iterate over all of them."""
    if isinstance(model, FSDPModule):
        # After a forward pass without gradient the root's weights are still gathered, in place of the shards.
        model.reshard()
    for name, value in model.state_dict().items():
        yield name, value.full_tensor() if hasattr(value, "full_tensor") else value


class ReplicaEngine(TransformersEngine):
    """Samples with an unsharded copy of a sharded model, updated by `sync_weights`, which every rank must call.

    Its log-probs show whether the copy has the trainer's weights.
    """

    gives_log_probs = True

    def __init__(
        self, model: Any, *, dtype: str, end_ids: Sequence[int], pad_id: int, sequences_per_batch: int
    ) -> None:
        replica = _without_memory(model.config, getattr(torch, dtype), model.trust_remote_code)
        _allocate(replica, model.device, dict(model.named_buffers()))
        replica.tie_weights()
        super().__init__(replica.eval(), end_ids=end_ids, pad_id=pad_id, sequences_per_batch=sequences_per_batch)
        self.sharded = model
        self.sync_weights()

    @torch.no_grad()
    def sync_weights(self) -> None:
        weights = self.model.state_dict()
        for name, value in full_weights(self.sharded):
            weights[name].copy_(value)


def save_model(folder: Path, model: Any, process_group: ProcessGroup) -> None:
    """Write an ordinary model folder in float32 from rank 0. Every rank must call it."""
    weights = {name: value.cpu() for name, value in full_weights(model) if process_group.is_rank_zero}
    if process_group.is_rank_zero:
        unsharded = _without_memory(model.config, torch.float32, model.trust_remote_code)
        unsharded.generation_config = model.generation_config
        unsharded.load_state_dict(weights, assign=True)
        unsharded.tie_weights()
        unsharded.save_pretrained(folder)


def _without_memory(config: Any, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """The model with its weights on the meta device."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trust_remote_code)
    model.trust_remote_code = trust_remote_code
    return model


def _allocate(model: Any, device: torch.device, buffers: dict[str, Tensor]) -> None:
    """Allocate a model on the meta device, weights uninitialised, and set its buffers.

    Buffers that are computed when a model is made, such as rotary frequencies, are not part of its state.
    """
    model.to_empty(device=device)
    for name, value in buffers.items():
        module, _, buffer = name.rpartition(".")
        setattr(model.get_submodule(module), buffer, value.to(device))
