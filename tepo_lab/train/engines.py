"""The rollout engine that a run asks for, over the trainer's model."""

from __future__ import annotations

from typing import Any

from tepo_lab.errors import ResourceError
from tepo_lab.rollout.engine import Engine
from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.schema.run import RunSpec
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from tepo_lab.train.distributed.sharing import SharedEngine
from tepo_lab.train.model import LoadedModel, model_path


def open_engine(spec: RunSpec, loaded: LoadedModel, process_group: ProcessGroup = SINGLE_PROCESS) -> Engine:
    """The engine of `spec.rollout.engine`. Each of several ranks has one and samples its share of the prompts.

    Raises `ResourceError` for vLLM where it is not installed, or beside several ranks on a CPU.
    """
    is_sharded = process_group.world_size > 1
    common: dict[str, Any] = {"end_ids": loaded.end_ids, "sequences_per_batch": spec.rollout.sequences_per_batch}
    engine: Engine
    if spec.rollout.engine == "vllm":
        if is_sharded and loaded.model.device.type == "cpu":
            raise ResourceError(
                "rollout.engine=vllm works beside several learners on GPUs only; set rollout.engine=transformers or "
                "resources.learners=1."
            )
        from tepo_lab.rollout.vllm_engine import VllmEngine

        engine = VllmEngine(
            loaded.model,
            checkpoint=model_path(spec.model),
            revision=spec.model.revision,
            trust_remote_code=spec.model.trust_remote_code,
            dtype=spec.model.dtype,
            max_tokens=spec.rollout.max_prompt_tokens + max(spec.rollout.max_new_tokens, spec.suite.max_new_tokens),
            memory_share=spec.resources.sampler_memory_share,
            has_peers=is_sharded,
            **common,
        )
    elif is_sharded:
        from tepo_lab.train.distributed.sharded import ReplicaEngine

        engine = ReplicaEngine(loaded.model, dtype=spec.model.dtype, pad_id=loaded.pad_id, **common)
    else:
        engine = TransformersEngine(loaded.model, pad_id=loaded.pad_id, **common)
    return SharedEngine(engine, process_group) if is_sharded else engine
