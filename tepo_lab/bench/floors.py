"""Lower bounds of a training step: the arithmetic and the memory traffic that no implementation can avoid."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tepo_lab.train.step.collect import Group

#: Forward passes that a gradient step equals in arithmetic: one forward, two for the backward.
PASSES_OF_UPDATE = 3

#: Bytes AdamW moves for each parameter: weight, gradient and two moments read, weight and two moments written, float32.
ADAMW_BYTES = 7 * 4


class Work:
    """The useful arithmetic of some steps: every prompt once, every response token once, no padding.

    `flops` has operations (two for a multiply-add) of the three phases; `decode_steps` and `cache_tokens` are what
    decoding reads: the weights once a step of the longest response, and the keys and values before every token.
    """

    def __init__(self, model: Any, updates: int) -> None:
        config = model.config.get_text_config()
        head = model.get_output_embeddings()
        embeddings = model.get_input_embeddings().weight
        matrices = [each for each in model.parameters() if each.dim() > 1 and each is not embeddings]
        self.head_weights = int(head.weight.numel())
        self.body_weights = sum(each.numel() for each in matrices if each is not head.weight)
        self.layers = int(config.num_hidden_layers)
        heads = int(config.num_attention_heads)
        head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
        self.attention_width = heads * head_dim
        kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        element = next(model.parameters()).element_size()
        self.cache_bytes = 2 * self.layers * kv_heads * head_dim * element
        self.weight_bytes = sum(each.numel() for each in model.parameters()) * element
        self.parameters = sum(each.numel() for each in model.parameters())
        self.updates = updates
        self.flops = {"rollout": 0.0, "old_log_probs": 0.0, "update": 0.0}
        self.decode_steps = self.cache_tokens = 0

    def add(self, groups: Sequence[Group]) -> None:
        """Count one step's groups."""
        forward = 0.0
        for group in groups:
            lengths = [len(response.token_ids) for response in group.responses]
            prompt = len(group.prompt_ids)
            # A response's last token is predicted and never an input.
            inputs = prompt + sum(length - 1 for length in lengths)
            attended = prompt * (prompt + 1) / 2 + sum(
                (length - 1) * prompt + (length - 1) * length / 2 for length in lengths
            )
            forward += 2 * self.body_weights * inputs + 2 * self.head_weights * sum(lengths)
            forward += 4 * self.layers * self.attention_width * attended
            self.cache_tokens += int(attended)
        self.decode_steps += max(len(response.token_ids) for group in groups for response in group.responses)
        self.flops["rollout"] += forward
        self.flops["old_log_probs"] += forward
        self.flops["update"] += PASSES_OF_UPDATE * forward


def flop_floor(flops: dict[str, float], peak: float) -> dict[str, float]:
    """Seconds of each phase at `peak` operations a second."""
    return {phase: value / peak for phase, value in flops.items()}


def byte_floor(work: Work, steps: int, bandwidth: float) -> float:
    """Seconds a step at `bandwidth` bytes a second: weights and keys and values while decoding; weights in the scoring,
    weights and gradients in each update, and AdamW's traffic. Activations are not counted: they can stay in caches."""
    decoding = work.decode_steps * work.weight_bytes + work.cache_tokens * work.cache_bytes
    learning = steps * (work.weight_bytes * (1 + 3 * work.updates) + work.updates * work.parameters * ADAMW_BYTES)
    return float((decoding + learning) / steps / bandwidth)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product on this device, the best of several."""
    size = 8192 if device.type == "cuda" else 1024
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / _fastest(lambda: left @ right, device)


def peak_bandwidth(device: torch.device) -> float:
    """Bytes a second of a large copy on this device (read and written), the best of several."""
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _fastest(lambda: target.copy_(source), device)


def _fastest(work: Callable[[], Any], device: torch.device, repeats: int = 20) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
        # Spread out, since other work on the machine comes and goes.
        time.sleep(0.01)
    return min(seconds)
