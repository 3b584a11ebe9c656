"""A model whose weights, gradients and optimizer state lie in shards on several processes (FSDP2).

Each transformer block is gathered when it runs and let go of again. Weights that are trained are float32; a model
declared bfloat16 computes in bfloat16 and sums its gradients in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.schema.profile import ModelSpec
from tepo_lab.train.distributed.process_group import ProcessGroup
from tepo_lab.train.step.optimizer import MasterAdamW

_FROM_FIRST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def load_sharded(spec: ModelSpec, process_group: ProcessGroup, device: torch.device, read: Any) -> Any:
    """The model that `spec` names, sharded over `process_group`; only rank 0 ever holds all of it, on its CPU.

    Args: `read` gives the whole model on the CPU in float32; called on the first process only.
    """
    wholes: list[Any] = []

    def describe() -> tuple[Any, Any, dict[str, Tensor]]:
        wholes.append(read())
        return wholes[0].config, wholes[0].generation_config, dict(wholes[0].named_buffers())

    config, generation_config, buffers = process_group.on_rank_zero(describe)
    model = _skeleton(config, torch.float32)
    model.generation_config = generation_config
    if spec.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    shard(model, process_group, device, torch.bfloat16 if spec.dtype == "bfloat16" else torch.float32)
    _allocate(model, device, buffers)
    set_model_state_dict(model, wholes[0].state_dict() if wholes else {}, options=_FROM_FIRST)
    return model.eval()


def shard(model: Any, process_group: ProcessGroup, device: torch.device, dtype: torch.dtype) -> None:
    """Shard each transformer block, and with the root what is left (embeddings, last norm, head: tied ones are one).

    Gradients are summed over the processes, since each loss is already divided by the whole mini-batch's totals.
    """
    mesh = init_device_mesh(device.type, (process_group.world_size,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    names = set(model._no_split_modules or ())
    for module in [each for each in model.modules() if type(each).__name__ in names]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    # Scoring runs the trunk and the head apart; the trunk's call gathers the root's weights as the model's own would.
    model.trunk = MethodType(_trunk, model)
    register_fsdp_forward_method(model, "trunk")


def full_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Names and whole weights, one at a time. Of a sharded model every process must run through all of them."""
    _let_go(model)
    for name, value in model.state_dict().items():
        yield name, value.full_tensor() if hasattr(value, "full_tensor") else value


class ReplicaEngine(TransformersEngine):
    """Samples with a whole copy of a sharded model's weights, taken over by `sync_weights`, which all must call.

    Its log-probabilities tell whether the copy is the trainer's model.
    """

    gives_log_probs = True

    def __init__(
        self, model: Any, *, dtype: str, end_ids: Sequence[int], pad_id: int, sequences_per_batch: int
    ) -> None:
        replica = _skeleton(model.config, getattr(torch, dtype))
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
    """Write an ordinary model folder, float32, from the first process."""
    weights = {name: value.cpu() for name, value in full_weights(model) if process_group.is_rank_zero}
    if process_group.is_rank_zero:
        whole = _skeleton(model.config, torch.float32)
        whole.generation_config = model.generation_config
        whole.load_state_dict(weights, assign=True)
        whole.tie_weights()
        whole.save_pretrained(folder)


def save_optimizer(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Write each process's shard of the optimizer's state, by the parameters' names."""
    _let_go(model)
    save({"optimizer": _optimizer_state(model, optimizer)}, checkpoint_id=folder)


def load_optimizer(
    folder: Path, model: Any, optimizer: torch.optim.Optimizer, process_group: ProcessGroup, *, weights: Path
) -> None:
    """Read what `save_optimizer` wrote, on any number of processes.

    One process with a bfloat16 model takes the float32 weights, too, from `weights`, the folder of `save_model`.
    """
    if isinstance(optimizer, MasterAdamW):
        _load_masters(folder, model, optimizer, weights)
        return
    _let_go(model)
    state = get_optimizer_state_dict(model, optimizer)
    load({"optimizer": state}, checkpoint_id=folder, no_dist=process_group.world_size == 1)
    set_optimizer_state_dict(model, optimizer, state)


def _load_masters(folder: Path, model: Any, optimizer: MasterAdamW, weights: Path) -> None:
    """The shards' moments and the weights that the model's were rounded from, all in float32."""
    from transformers import AutoModelForCausalLM

    names = [name for name, _ in model.named_parameters()]
    state = {
        name: {"step": torch.zeros(()), "exp_avg": torch.zeros_like(master), "exp_avg_sq": torch.zeros_like(master)}
        for name, master in zip(names, optimizer.masters, strict=True)
    }
    load({"optimizer": {"state": state}}, checkpoint_id=folder, no_dist=True)
    whole = dict(AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).named_parameters())
    taken = {"state": dict(enumerate(state.values())), "masters": [whole[name] for name in names]}
    optimizer.load_state_dict(optimizer.state_dict() | taken)


def scatter_optimizer(whole: dict[str, Any], model: Any, optimizer: torch.optim.Optimizer) -> None:
    """Give each process its shard of one process's `state_dict`, whose parameters are known by their order."""
    _let_go(model)
    names = [name for name, _ in model.named_parameters()]
    state: dict[str, Any] = {
        "state": {names[index]: values for index, values in whole["state"].items()},
        "param_groups": [
            group | {"params": [names[index] for index in group["params"]]} for group in whole["param_groups"]
        ],
    }
    # Before the first update there is none, and torch would make one up that has counted a step.
    if state["state"]:
        set_optimizer_state_dict(model, optimizer, state, options=_FROM_FIRST)
    if "masters" in whole:
        # The model folder of one process has bfloat16 weights; these are what they were rounded from.
        masters = dict(zip(names, whole["masters"], strict=True))
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
        set_model_state_dict(model, masters, options=options)


def _optimizer_state(model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state by the parameters' names; before the first update moments of zero, and no step counted."""
    if not optimizer.state:
        # Torch makes the state up by a step that changes no weight, and counts it.
        get_optimizer_state_dict(model, optimizer)
        for values in optimizer.state.values():
            values["step"].zero_()
    return get_optimizer_state_dict(model, optimizer)


def _let_go(model: Any) -> None:
    # After a pass without a gradient the root's weights are still gathered, and stand in for the shards.
    if isinstance(model, FSDPModule):
        model.reshard()


def _trunk(model: Any, *args: Any, **kwargs: Any) -> Any:
    return model.base_model(*args, **kwargs)


def _skeleton(config: Any, dtype: torch.dtype) -> Any:
    """The model without any memory for weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _allocate(model: Any, device: torch.device, buffers: dict[str, Tensor]) -> None:
    """Memory for a skeleton's weights, whose values are to come. Its buffers get the values given.

    What is reckoned when a model is made, such as rotary frequencies, is no part of its state.
    """
    model.to_empty(device=device)
    for name, value in buffers.items():
        module, _, buffer = name.rpartition(".")
        setattr(model.get_submodule(module), buffer, value.to(device))
