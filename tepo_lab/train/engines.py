"""The rollout engine that a run asks for, over the trainer's model."""

from __future__ import annotations

from tepo_lab.rollout.engine import Engine
from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.schema.run import RunSpec
from tepo_lab.train.model import LoadedModel, model_path


def open_engine(spec: RunSpec, loaded: LoadedModel) -> Engine:
    """The engine of `spec.rollout.engine`. Raises `ResourceError` when vLLM is asked for and not installed."""
    if spec.rollout.engine == "transformers":
        return TransformersEngine(
            loaded.model,
            end_ids=loaded.end_ids,
            pad_id=loaded.pad_id,
            sequences_per_batch=spec.rollout.sequences_per_batch,
        )
    from tepo_lab.rollout.vllm_engine import VllmEngine

    return VllmEngine(
        loaded.model,
        checkpoint=model_path(spec.model),
        end_ids=loaded.end_ids,
        max_tokens=spec.rollout.max_prompt_tokens + max(spec.rollout.max_new_tokens, spec.suite.max_new_tokens),
        sequences_per_batch=spec.rollout.sequences_per_batch,
    )
