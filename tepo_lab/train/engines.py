"""The rollout engine that a run asks for, over the trainer's model."""

from __future__ import annotations

from tepo_lab.errors import ResourceError
from tepo_lab.rollout.engine import Engine
from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.schema.run import RunSpec
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from tepo_lab.train.distributed.sharing import SharedEngine
from tepo_lab.train.model import LoadedModel, model_path


def open_engine(spec: RunSpec, loaded: LoadedModel, process_group: ProcessGroup = SINGLE_PROCESS) -> Engine:
    """The engine of `spec.rollout.engine`; several processes have one each, and divide the prompts.

    Raises `ResourceError` when vLLM is asked for and not installed.
    """
    engine = _own_engine(spec, loaded, is_sharded=process_group.world_size > 1)
    return SharedEngine(engine, process_group) if process_group.world_size > 1 else engine


def _own_engine(spec: RunSpec, loaded: LoadedModel, *, is_sharded: bool) -> Engine:
    if spec.rollout.engine == "transformers" and is_sharded:
        from tepo_lab.train.distributed.sharded import ReplicaEngine

        return ReplicaEngine(
            loaded.model,
            dtype=spec.model.dtype,
            end_ids=loaded.end_ids,
            pad_id=loaded.pad_id,
            sequences_per_batch=spec.rollout.sequences_per_batch,
        )
    if spec.rollout.engine == "transformers":
        return TransformersEngine(
            loaded.model,
            end_ids=loaded.end_ids,
            pad_id=loaded.pad_id,
            sequences_per_batch=spec.rollout.sequences_per_batch,
        )
    if is_sharded and loaded.model.device.type == "cpu":
        raise ResourceError(
            "rollout.engine=vllm works beside several learners on GPUs only; set rollout.engine=transformers or "
            "resources.learners=1."
        )
    from tepo_lab.rollout.vllm_engine import VllmEngine

    return VllmEngine(
        loaded.model,
        checkpoint=model_path(spec.model),
        revision=spec.model.revision,
        dtype=spec.model.dtype,
        end_ids=loaded.end_ids,
        max_tokens=spec.rollout.max_prompt_tokens + max(spec.rollout.max_new_tokens, spec.suite.max_new_tokens),
        sequences_per_batch=spec.rollout.sequences_per_batch,
        memory_share=spec.resources.sampler_memory_share,
        has_peers=is_sharded,
    )
