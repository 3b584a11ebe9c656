"""Loading a causal language model and its tokenizer, from the package, a folder or the hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from tepo_lab.errors import ModelError, ResourceError, TepoLabError, is_machine_failure
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
    """The folder or hub name that transformers is given. Raises `ModelError` for an unknown package checkpoint."""
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
    spec: ModelSpec,
    device: torch.device,
    *,
    weights: Path | None = None,
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> LoadedModel:
    """Load the model that `spec` names; `weights` is a checkpoint folder of it to load instead.

    Several ranks hold it in shards (`tepo_lab.train.distributed.sharded`), and all must call this.

    Raises `ModelError` when it cannot be loaded, its weights are not exactly those that its config asks for, or their
    SHA-256 is not `spec.sha256`. Failures of the machine (memory, open files, the disk) are raised as they are.
    """
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    path = model_path(spec)
    if spec.sha256 is not None:
        process_group.on_rank_zero(lambda: _check_hash(Path(path), spec))
    revision = {"revision": spec.revision} if spec.revision is not None else {}
    trust = spec.trust_remote_code

    def read(dtype: torch.dtype) -> Any:
        with _as_model_error(spec):
            if weights is not None:
                return read_model(weights, dtype=dtype, trust_remote_code=trust)
            return read_model(path, dtype=dtype, trust_remote_code=trust, **revision)

    with _as_model_error(spec):
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust, **revision)
    if process_group.world_size > 1:
        from tepo_lab.train.distributed.sharded import load_sharded

        model = load_sharded(spec, process_group, device, lambda: read(torch.float32))
    else:
        model = read(getattr(torch, spec.dtype))
    with _as_model_error(spec):
        if spec.gradient_checkpointing and process_group.world_size == 1:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        end_ids = _end_ids(model, tokenizer, spec)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else end_ids[0]
    return LoadedModel(model.to(device), tokenizer, end_ids, pad_id)


@contextmanager
def _as_model_error(spec: ModelSpec) -> Iterator[None]:
    """Raise `ModelError` for whatever transformers raises at a model's files; failures of the machine as they are."""
    try:
        yield
    except TepoLabError:
        raise
    except UnpicklingError:
        # Of pickled weights only tensors are accepted: anything else could run code.
        raise ModelError(
            f"model.path={spec.path}: cannot be loaded (its weights are pickled and contain more than tensors, or are "
            "damaged); use weights in model.safetensors."
        ) from None
    except Exception as error:
        if is_machine_failure(error):
            raise
        if "trust_remote_code" in str(error):
            reason = "it runs Python code of its own; if you trust its authors, set model.trust_remote_code=true"
        else:
            kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
            reason = kind + " ".join(str(error).split())[:200]
        raise ModelError(
            f"model.path={spec.path}: cannot be loaded ({reason}); restore the model's own files, or name another."
        ) from None


def read_model(source: str | Path, *, dtype: torch.dtype, trust_remote_code: bool = False, **place: Any) -> Any:
    """The causal language model of `source` (a folder or hub name) on the CPU, without dropout.

    Dropout would add noise to the ratios of an update, which compare log-probs of one policy. It is set to zero in the
    config rather than by eval mode, because transformers skips gradient checkpointing in eval mode.
    Args: `place`, more arguments of transformers' `from_pretrained`, such as `revision`.
    Raises `ModelError`, with their names, for weights that are missing, unexpected or of another shape: transformers
    would initialise them at random, or ignore them.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, **place)
    _set_dropout_to_zero(config)
    model, loading = AutoModelForCausalLM.from_pretrained(
        source,
        config=config,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
        # Reported below, with the others.
        ignore_mismatched_sizes=True,
        **place,
    )
    for fault in ("missing", "unexpected", "mismatched"):
        names = sorted(name if isinstance(name, str) else name[0] for name in loading[f"{fault}_keys"])
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise ModelError(
                f"{source}: its weights do not fit its config.json: {', '.join(names[:5])}{more} {fault}; restore the "
                "model's own files."
            )
    model.trust_remote_code = trust_remote_code
    return model


def _set_dropout_to_zero(config: Any) -> None:
    from transformers import PretrainedConfig

    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            _set_dropout_to_zero(value)
        elif "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def _end_ids(model: Any, tokenizer: Any, spec: ModelSpec) -> tuple[int, ...]:
    declared = model.generation_config.eos_token_id
    ids = declared if isinstance(declared, list) else [declared]
    end_ids = {int(token) for token in [*ids, tokenizer.eos_token_id] if token is not None}
    if not end_ids:
        raise ModelError(f"model.path={spec.path}: neither model nor tokenizer names an end-of-sequence token.")
    return tuple(sorted(end_ids))


def _check_hash(folder: Path, spec: ModelSpec) -> None:
    file = folder / "model.safetensors"
    if not file.is_file():
        raise ModelError(
            f"model.path={spec.path}: no model.safetensors to check against model.sha256; for another model, set "
            "model.sha256=null."
        )
    digest = file_sha256(file)
    if digest != spec.sha256:
        raise ModelError(
            f"model.path={spec.path}: model.safetensors has SHA-256 {digest[:12]}…, declared is {spec.sha256!s:.12}…; "
            "restore the file, or declare the new hash (or null)."
        )
