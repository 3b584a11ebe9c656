"""How much memory of one GPU a run takes, estimated; and the refusal of what cannot fit.

Formulas, with P parameters, L layers, width h, t tokens of a micro-batch, N learners:

- Weights, gradients, optimizer: 4 + 4 + 8 bytes a parameter, all float32, over N where N learners share them. That is
  what ZeRO counts (arXiv 1910.02054, Sec. 3.1; stage 3 shares it), whose 2 + 2 + 12 has weights and gradients in half
  precision beside float32 weights; one process with a bfloat16 model has those 2 bytes for its weights besides.
- Activations: with checkpointing a layer keeps its input, 2 t h bytes, and one layer at a time is done again, as in
  Korthikanti et al. (arXiv 2205.05198, Sec. 5). What a layer keeps follows their count (Sec. 4.1: the inputs of its
  norms, products and activation functions), here for gated feed-forwards and grouped keys and without their attention
  matrix, which fused attention does not keep.
- Logits: the scorer's chunks, in float32, four times: logits, their log-softmax, its exponential, their gradient.
- Key/value cache: keys and values of every layer, for as many sequences of full length as are decoded at once.

Estimated, not measured: what libraries hold besides is `OVERHEAD_GB`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tepo_lab.errors import ResourceError
from tepo_lab.schema.profile import ModelSpec, Sizes
from tepo_lab.schema.run import RunSpec

#: CUDA's context, communication buffers and what the allocator cannot use.
OVERHEAD_GB = 2.0

#: Logits held at once, and how many tensors of that size (`tepo_lab.train.step.scoring.MAX_LOGITS`, `_token_scores`).
MAX_LOGITS, LOGIT_COPIES = 2**29, 4

GB = 1e9


@dataclass(frozen=True)
class Memory:
    """GB (1e9 bytes) on one GPU.

    `weights`, `gradients` and `optimizer` are the learner's; `gathered` is what sharding brings together for a while;
    `activations` and `logits` stand while it learns; `engine` while it samples (vLLM's: weights and one sequence);
    `replica` is the copy of the weights that several learners sample with where vLLM does not, and never let go of.
    """

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float
    engine: float
    replica: float

    @property
    def learning(self) -> float:
        """At the height of an update. A colocated vLLM sleeps."""
        parts = (self.weights, self.gradients, self.optimizer, self.gathered, self.activations, self.logits)
        return sum(parts) + self.replica + OVERHEAD_GB

    @property
    def resting(self) -> float:
        """What the learner keeps while the engine samples."""
        return self.weights + self.optimizer + self.replica + OVERHEAD_GB

    def needed(self) -> float:
        """The smallest GPU that does, in GB."""
        return max(self.learning, self.resting + self.engine)


def estimate(spec: RunSpec) -> Memory | None:
    """What a trained run takes of each of its GPUs; None for one without GPUs, or a model of unknown sizes."""
    # Sizes last: they are read from a file.
    if not spec.resources.gpus or not spec.arm.trained or (sizes := sizes_of(spec.model)) is None:
        return None
    learners = spec.resources.learners
    is_half = spec.model.dtype == "bfloat16"
    per_value = 2 if is_half else 4
    parameters = sizes.parameters / GB
    # A bfloat16 model in one process lies beside the float32 weights that are updated.
    beside = 2 * parameters if is_half and learners == 1 else 0.0
    tokens = _micro_batch_tokens(spec)
    return Memory(
        weights=4 * parameters / learners + beside,
        gradients=4 * parameters / learners,
        optimizer=8 * parameters / learners,
        gathered=_gathered(sizes, per_value) if learners > 1 else 0.0,
        activations=_activations(sizes, tokens, per_value, spec.model.gradient_checkpointing),
        logits=min(tokens * sizes.vocabulary, MAX_LOGITS) * 4 * LOGIT_COPIES / GB,
        engine=_engine(spec, sizes, per_value),
        replica=parameters * per_value if learners > 1 and spec.rollout.engine == "transformers" else 0.0,
    )


def check_memory(specs: Iterable[RunSpec], gpu_memory_gb: float | None = None) -> None:
    """Raise `ResourceError`, with the numbers, for the first run that needs more than its GPUs have.

    Args: `gpu_memory_gb` of one GPU; None: what the run's own `resources.gpu_memory_gb` says, if anything.
    """
    for spec in specs:
        has = gpu_memory_gb or spec.resources.gpu_memory_gb
        memory = estimate(spec)
        if memory is None or has is None or memory.needed() + _vllm_surplus(spec, memory, has) <= has:
            continue
        raise ResourceError(
            f"{spec.arm.name} on {spec.profile.name} needs {memory.needed():.0f} GB of each GPU ({parts(memory)}), and "
            f"one has {has:g} GB; {_fix(spec, memory, has)}."
        )


def memory_lines(specs: Iterable[RunSpec], gpu_memory_gb: float | None = None) -> list[str]:
    """One line a profile: what its runs take of a GPU, by parts. Args: as `check_memory`."""
    lines = {}
    for spec in specs:
        memory, has = estimate(spec), gpu_memory_gb or spec.resources.gpu_memory_gb
        if memory is not None:
            of = f" of {has:g}" if has else ""
            lines[spec.profile.name] = (
                f"Memory: {spec.profile.name} takes about {memory.needed():.0f}{of} GB of each GPU ({parts(memory)})."
            )
    return list(lines.values())


def parts(memory: Memory) -> str:
    """The parts of an estimate in one phrase."""
    beside = f" beside a replica of {memory.replica:.1f}" if memory.replica else ""
    return (
        f"weights {memory.weights:.1f}, gradients {memory.gradients:.1f}, optimizer {memory.optimizer:.1f}, gathered "
        f"{memory.gathered:.1f}, activations {memory.activations:.1f}, logits {memory.logits:.1f}; sampling "
        f"{memory.engine:.1f}{beside}"
    )


def as_json(memory: Memory) -> dict[str, float]:
    """GB by part, for scripts."""
    return {name: round(value, 3) for name, value in vars(memory).items()} | {"needed": round(memory.needed(), 3)}


def sizes_of(model: ModelSpec) -> Sizes | None:
    """A model's sizes: of its config.json where that lies here (a folder, or the hub's cache), else as declared."""
    config = _config(model)
    if config is None or "num_hidden_layers" not in config:
        return model.sizes
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    sizes: dict[str, int] = {
        "layers": config["num_hidden_layers"],
        "hidden_size": hidden,
        "intermediate_size": config["intermediate_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "vocabulary": config["vocab_size"],
    }
    counted = parameters_of(**sizes, tied=bool(config.get("tie_word_embeddings")))
    return Sizes(parameters=model.sizes.parameters if model.sizes else counted, **sizes)


def parameters_of(
    *,
    layers: int,
    hidden_size: int,
    intermediate_size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocabulary: int,
    tied: bool,
) -> int:
    """Parameters of a decoder with gated feed-forwards, biases and the norms of queries and keys left out."""
    attention = 2 * hidden_size * head_dim * (heads + kv_heads)
    layer = attention + 3 * hidden_size * intermediate_size + 2 * hidden_size
    return layers * layer + (1 if tied else 2) * vocabulary * hidden_size + hidden_size


def _config(model: ModelSpec) -> dict[str, Any] | None:
    places = [model.folder]
    if not places[0].is_dir():
        root = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub"
        snapshots = Path(root).expanduser() / f"models--{model.path.replace('/', '--')}" / "snapshots"
        places = sorted(snapshots.glob(model.revision or "*"))
    for place in places:
        try:
            config = json.loads((place / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(config, dict):
            return config
    return None


def _micro_batch_tokens(spec: RunSpec) -> int:
    """Tokens of the largest forward pass: a whole mini-batch where no budget is set, at least one longest response."""
    longest = spec.rollout.max_prompt_tokens + spec.rollout.max_new_tokens
    rows = spec.trainer.mini_batch_prompts * spec.trainer.group_size
    return max(longest, min(spec.trainer.micro_batch_tokens or rows * longest, rows * longest))


def _layer_values(sizes: Sizes) -> int:
    """Values that one layer keeps for its gradient, a token.

    Inputs of two norms and of the projections behind them, queries, keys, values, attention's output, and the
    feed-forward's gate, its activation, the other half and the product.
    """
    attention = sizes.head_dim * (2 * sizes.heads + 2 * sizes.kv_heads)
    return 4 * sizes.hidden_size + attention + 4 * sizes.intermediate_size


def _activations(sizes: Sizes, tokens: int, per_value: int, checkpointing: bool) -> float:
    layer = _layer_values(sizes)
    saved = sizes.layers * sizes.hidden_size + layer if checkpointing else sizes.layers * layer
    return tokens * per_value * saved / GB


def _gathered(sizes: Sizes, per_value: int) -> float:
    """Whole weights of two layers (the next is fetched while one works) and of what is not in a layer, which stays."""
    rest = 2 * sizes.vocabulary * sizes.hidden_size
    layer = (sizes.parameters - rest) / sizes.layers
    return (2 * layer + rest) * per_value / GB


def _engine(spec: RunSpec, sizes: Sizes, per_value: int) -> float:
    """What sampling adds: the key/value cache, and vLLM's copy of the weights."""
    limit = max(spec.rollout.max_new_tokens, spec.suite.max_new_tokens)
    sequence = 2 * sizes.layers * sizes.kv_heads * sizes.head_dim * per_value * (spec.rollout.max_prompt_tokens + limit)
    is_vllm = spec.rollout.engine == "vllm"
    # vLLM queues what its cache does not hold; the transformers engine holds all that it decodes at once.
    at_once = 1 if is_vllm else spec.rollout.sequences_per_batch
    copy = sizes.parameters * per_value if is_vllm else 0
    return (copy + at_once * sequence) / GB


def _vllm_surplus(spec: RunSpec, memory: Memory, has: float) -> float:
    """GB by which vLLM's share of a GPU with `has` GB reaches beyond what it needs, where that decides."""
    if spec.rollout.engine != "vllm":
        return 0.0
    return max(0.0, memory.resting + max(spec.resources.sampler_memory_share * has, memory.engine) - memory.needed())


def _fix(spec: RunSpec, memory: Memory, has: float) -> str:
    """What to change, the thing that helps most first."""
    if memory.replica and memory.learning > has:
        return "set rollout.engine=vllm, whose copy of the weights makes room while the learners work"
    if memory.resting > has / 2:
        return f"share it by more learners (resources.learners={2 * spec.resources.learners}, with as many GPUs)"
    if not spec.model.gradient_checkpointing and memory.learning > has:
        return "set model.gradient_checkpointing=true, or lower trainer.micro_batch_tokens"
    if memory.learning > has:
        return "lower trainer.micro_batch_tokens, or raise resources.learners"
    return "lower rollout.sequences_per_batch or rollout.max_new_tokens, or raise resources.learners"
