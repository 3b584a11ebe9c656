"""A key/value cache that is allocated once, for decoding many rows of which more and more are finished."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer


class PreallocatedLayer(DynamicLayer):  # type: ignore[misc]
    """A full-attention layer's cache with room for `capacity` tokens.

    A `DynamicLayer` copies all keys and values at every token; this one writes the new ones into place.
    `keys` and `values` are views of the filled part, (B, heads, length, head_dim).
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self._length = 0
        self._room: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append (B, heads, new, head_dim) keys and values; returns all so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._room = [self._allocate(states) for states in (key_states, value_states)]
        end = self._length + key_states.shape[-2]
        if end > self.capacity:
            raise ValueError(f"the cache has room for {self.capacity} tokens, not {end}")
        for room, states in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, self._length : end] = states
        self._length = end
        self._show()
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, beside itself."""
        for place, states in enumerate((self.keys, self.values)):
            self._room[place] = self._allocate(states, states.shape[0] * repeats)
            filled = self._room[place][:, :, : self._length]
            filled.unflatten(0, (-1, repeats)).copy_(states.unsqueeze(1).expand(-1, repeats, -1, -1, -1))
        self._show()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only the rows at `indices`, moved together in the room there is."""
        for place, states in enumerate((self.keys, self.values)):
            self._room[place] = self._room[place][: len(indices)]
            self._room[place][:, :, : self._length] = states[indices]
        self._show()

    def _allocate(self, states: Tensor, rows: int | None = None) -> Tensor:
        present, heads, _, head_dim = states.shape
        return states.new_empty(rows or present, heads, self.capacity, head_dim)

    def _show(self) -> None:
        self.keys, self.values = (room[:, :, : self._length] for room in self._room)


def preallocated_cache(config: PreTrainedConfig, capacity: int) -> DynamicCache:
    """A cache for `config`'s model whose full-attention layers have room for `capacity` tokens.

    Layers of another kind (sliding window, linear attention) stay as transformers makes them.
    """
    cache = DynamicCache(config=config)
    cache.layers = [PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
