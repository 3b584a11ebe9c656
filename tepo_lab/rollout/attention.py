"""A model's attention, opened for a caller that lays rows out in its own way.

transformers lets attention functions be registered under a name (`AttentionInterface`), and hands them the keyword
arguments that a model is called with. The one registered here is a model's own attention, unless a call brings
`attend`, a function that is given that attention and the states, and knows their layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

#: An attention function of transformers: (module, query, key, value, mask, **settings) to (outputs, weights).
Attention = Callable[..., tuple[Tensor, Tensor | None]]

PREFIX = "attend_"


def opened(plain: Attention) -> Attention:
    """An attention function that works like `plain`, or by `attend` where a call brings one."""

    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attend: Callable[..., Tensor] | None = None,
        **settings: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if attend is None:
            return plain(module, query, key, value, attention_mask, **settings)
        # Positions are in queries and keys already; an attention function would take them for those of its rows.
        settings.pop("position_ids", None)
        return attend(plain, module, query, key, value, **settings), None

    return attention


def open_attention(model: Any) -> bool:
    """Let calls of `model` bring `attend`; False, and nothing is changed, where that cannot be.

    It cannot where a layer attends otherwise than to all tokens before it (sliding window, linear attention), and
    where attention is not taken from transformers' interface. A model may still not hand `attend` on: who opens one
    must compare what it gives then with what it gave before.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    plain = str(model.config._attn_implementation)
    attentions, masks = AttentionInterface(), AttentionMaskInterface()
    if plain not in attentions or plain not in masks or not attends_to_all(model):
        return False
    if not plain.startswith(PREFIX):
        AttentionInterface.register(PREFIX + plain, opened(attentions[plain]))
        AttentionMaskInterface.register(PREFIX + plain, masks[plain])
        model.set_attn_implementation(PREFIX + plain)
    return True


def attends_to_all(model: Any) -> bool:
    """Whether every layer attends to all tokens before it, as the cache that transformers makes for it shows."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)
