"""Loading a causal language model and its tokenizer, from the package, a folder or the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from tepo_lab.errors import ModelError, ResourceError, is_machine_failure
from tepo_lab.records.provenance import file_sha256
from tepo_lab.schema.profile import ModelSpec, Resources
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup


@dataclass(frozen=True)
class LoadedModel:
    """A model on its device with its tokenizer and the tokens that end a response."""

    model: Any
    tokenizer: Any
    end_ids: tuple[int, ...]
    pad_id: int


def model_path(spec: ModelSpec) -> str:
    """The folder or hub name transformers is given. Raises `ModelError` for an unknown package checkpoint."""
    folder = spec.folder
    if spec.is_packaged and not (folder / "config.json").is_file():
        raise ModelError(f"model.path={spec.path}: the package has no such checkpoint; 'package:nano' is one.")
    return str(folder) if folder.exists() else spec.path


def pick_device(resources: Resources) -> torch.device:
    """The run's device. Raises `ResourceError` when a GPU is asked for and none is visible."""
    if resources.is_on_gpu and not torch.cuda.is_available():
        raise ResourceError("the run asks for a GPU and none is visible; set resources.device=cpu resources.gpus=0.")
    return torch.device("cuda" if resources.is_on_gpu else "cpu")


def load_model(
    spec: ModelSpec, device: torch.device, *, weights: Path | None = None, process_group: ProcessGroup = SINGLE_PROCESS
) -> LoadedModel:
    """Load the model that `spec` names; `weights` is a checkpoint folder of it to load instead.

    Several processes hold it in shards (`tepo_lab.train.distributed.sharded`), and all must call this. Dropout is off,
    whatever config.json says: the ratios of an update compare one policy's log-probabilities, without dropout noise.

    Raises `ModelError` when it cannot be loaded, or its weights are not those that `spec.sha256` declares. What the
    machine lacks (memory, open files, the disk it lies on) is raised as it is.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    path = model_path(spec)
    if spec.sha256 is not None:
        process_group.on_rank_zero(lambda: _check_hash(Path(path), spec))
    source = str(weights) if weights is not None else path
    revision = {} if weights is not None or spec.revision is None else {"revision": spec.revision}

    def read(dtype: torch.dtype) -> Any:
        config = AutoConfig.from_pretrained(source, **revision)
        # In the config rather than by eval mode, in which transformers leaves gradient checkpointing out.
        _without_dropout(config)
        return AutoModelForCausalLM.from_pretrained(source, config=config, dtype=dtype, **revision)

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **({"revision": spec.revision} if spec.revision else {}))
        if process_group.world_size > 1:
            from tepo_lab.train.distributed.sharded import load_sharded

            model = load_sharded(spec, process_group, device, lambda: read(torch.float32))
        else:
            model = read(getattr(torch, spec.dtype))
            if spec.gradient_checkpointing:
                model.gradient_checkpointing_enable({"use_reentrant": False})
    except (OSError, ValueError, KeyError) as error:
        if is_machine_failure(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"model.path={spec.path}: cannot be loaded ({reason}).") from None
    except UnpicklingError:
        # Of pickled weights tensors alone are read: anything else in them could run code.
        raise ModelError(
            f"model.path={spec.path}: cannot be loaded (its weights are pickled and hold more than tensors, or are "
            "damaged); take weights in model.safetensors."
        ) from None
    end_ids = _end_ids(model, tokenizer, spec)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end_ids[0]
    return LoadedModel(model.to(device), tokenizer, end_ids, pad_id)


def _without_dropout(config: Any) -> None:
    from transformers import PretrainedConfig

    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            _without_dropout(value)
        elif "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def _end_ids(model: Any, tokenizer: Any, spec: ModelSpec) -> tuple[int, ...]:
    declared = model.generation_config.eos_token_id
    ids = declared if isinstance(declared, list) else [declared]
    found = {int(each) for each in [*ids, tokenizer.eos_token_id] if each is not None}
    if not found:
        raise ModelError(f"model.path={spec.path}: neither model nor tokenizer names an end-of-sequence token.")
    return tuple(sorted(found))


def _check_hash(folder: Path, spec: ModelSpec) -> None:
    file = folder / "model.safetensors"
    if not file.is_file():
        raise ModelError(
            f"model.path={spec.path}: no model.safetensors to check against model.sha256; for another "
            "model, set model.sha256=null."
        )
    found = file_sha256(file)
    if found != spec.sha256:
        raise ModelError(
            f"model.path={spec.path}: model.safetensors has SHA-256 {found[:12]}…, declared is "
            f"{str(spec.sha256)[:12]}…; "
            "restore the file, or declare the new hash (or null)."
        )
