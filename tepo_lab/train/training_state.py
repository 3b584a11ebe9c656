"""The optimizer state and random state of a checkpoint, as safetensors: nothing in it is ever unpickled.

Each rank writes `training-RANK.safetensors` with its rows of every weight's state, under KEY/WEIGHT: `exp_avg` and
`exp_avg_sq` of AdamW, and `master`, the float32 copy of a bfloat16 weight. Rows of all ranks in order make the whole
tensor, so that a checkpoint can be loaded by any number of ranks. `step/WEIGHT` is a scalar, the same on all ranks, and
`torch_rng` of rank 0 the state of torch's generator. All other randomness of a run is derived from its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tepo_lab.errors import RecordError
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from tepo_lab.train.model import read_model
from tepo_lab.train.step.optimizer import MasterAdamW, trained_weights

#: What AdamW has for each weight, besides its number of steps.
MOMENTS = ("exp_avg", "exp_avg_sq")


def save_training_state(
    folder: Path, model: Any, optimizer: torch.optim.Optimizer, process_group: ProcessGroup = SINGLE_PROCESS
) -> None:
    """Write this rank's file. Every rank must call it; on return all files are written."""
    from safetensors.torch import save_file

    tensors = {}
    for name, weight in _named_weights(model, optimizer):
        for key, value in optimizer.state.get(weight, {}).items():
            tensors[f"{key}/{name}"] = local_rows(value).contiguous()
        if isinstance(optimizer, MasterAdamW):
            tensors[f"master/{name}"] = weight.detach()
    if process_group.is_rank_zero:
        tensors["torch_rng"] = torch.get_rng_state()
    save_file(tensors, folder / f"training-{process_group.rank:05d}.safetensors")
    process_group.all_gather(None)


def load_training_state(
    folder: Path, model: Any, optimizer: torch.optim.Optimizer, process_group: ProcessGroup = SINGLE_PROCESS
) -> None:
    """Restore what `save_training_state` wrote into `folder`, a checkpoint of any number of ranks.

    A bfloat16 model's float32 weights come from the model folder where sharded ranks saved it, which is float32 then.
    Raises `RecordError` for the state of another model.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("training-*.safetensors"))
    if not files:
        _load_pickled(folder, optimizer, process_group)
        return
    weights = dict(_named_weights(model, optimizer))
    with ExitStack() as stack, torch.no_grad():
        shards = [stack.enter_context(safe_open(file, "pt")) for file in files]
        keys = set(shards[0].keys())
        try:
            for name, weight in weights.items():
                if f"step/{name}" in keys:
                    moments = {key: torch.zeros_like(weight) for key in MOMENTS}
                    for key, value in moments.items():
                        _read_rows(shards, f"{key}/{name}", value, process_group)
                    # On the weight's device, as the fused AdamW needs it.
                    step = shards[0].get_tensor(f"step/{name}").to(weight.device)
                    optimizer.state[weight] = {"step": step, **moments}
                if f"master/{name}" in keys:
                    _read_rows(shards, f"master/{name}", weight, process_group)
            torch.set_rng_state(shards[0].get_tensor("torch_rng"))
        except (SafetensorError, ValueError) as error:
            raise RecordError(f"{folder}: not the training state of this model ({error}); remove the folder.") from None
        if isinstance(optimizer, MasterAdamW):
            if not any(key.startswith("master/") for key in keys):
                _read_masters(folder / "model", model, weights)
            optimizer.update_model()


def local_rows(value: Tensor) -> Tensor:
    """This rank's rows of a sharded tensor, or all of one that is not sharded."""
    local: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return local.detach()


def _named_weights(model: Any, optimizer: torch.optim.Optimizer) -> list[tuple[str, Tensor]]:
    if hasattr(model, "reshard"):
        # After a forward pass without gradient the root's weights are still gathered, in place of the shards.
        model.reshard()
    return list(zip((name for name, _ in model.named_parameters()), trained_weights(optimizer), strict=True))


def _read_rows(shards: Sequence[Any], key: str, target: Tensor, process_group: ProcessGroup) -> None:
    """Fill this rank's rows of `target` from the rows in all files. Raises `ValueError` for another shape."""
    slices = [shard.get_slice(key) for shard in shards]
    shapes = [rows.get_shape() for rows in slices]
    found = [sum(shape[0] for shape in shapes), *shapes[0][1:]]
    if found != list(target.shape):
        raise ValueError(f"{key} has shape {found}, expected {list(target.shape)}")
    # FSDP2 divides rows as torch.chunk does: as many to each rank, fewer or none to the last ones.
    size = -(-target.shape[0] // process_group.world_size)
    first = min(size * process_group.rank, target.shape[0])
    last = min(first + size, target.shape[0])
    own, begin = local_rows(target), 0
    for rows, shape in zip(slices, shapes, strict=True):
        low, high = max(first, begin), min(last, begin + shape[0])
        if low < high:
            own[low - first : high - first].copy_(rows[low - begin : high - begin])
        begin += shape[0]


def _read_masters(folder: Path, model: Any, weights: dict[str, Tensor]) -> None:
    whole = dict(read_model(folder, dtype=torch.float32, trust_remote_code=model.trust_remote_code).named_parameters())
    for name, weight in weights.items():
        weight.copy_(whole[name])


def _load_pickled(folder: Path, optimizer: torch.optim.Optimizer, process_group: ProcessGroup) -> None:
    """Read training.pt, which release 0.1.0 wrote; of its pickle tensors and plain values alone are accepted."""
    file = folder / "training.pt"
    state = torch.load(file, map_location="cpu", weights_only=True)
    if process_group.world_size > 1 or "optimizer" not in state:
        raise RecordError(
            f"{folder} was saved by several learners, or by another number of them, with an earlier release: remove "
            "the folder to resume from an earlier checkpoint."
        )
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["torch_rng"])
