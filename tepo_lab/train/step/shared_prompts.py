"""Forward passes without padding, in which each prompt is run once for all of its responses.

All tokens of a micro-batch stand in one row: a prompt, its responses, the next prompt, and so on. Everything in a
transformer but the attention treats tokens one by one, so embeddings, projections, norms and the head see no padding
and no prompt twice. The attention itself is given ordinary rows, prompt and response padded on the right: queries, keys
and values are gathered into them, and its outputs back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tepo_lab.rollout.attention import Attention

#: A bucket of rows ends where a row is shorter than this share of its longest, unless it would be a small one.
BUCKET_SHARE = 0.85
BUCKET_ROWS = 8


@dataclass(frozen=True)
class AttentionLayout:
    """Where the N tokens of a packed row stand in the rows that the attention sees.

    Rows are in buckets of like length; a slot is a place in all of them, S in number. `source` (S,): the token in each
    slot (any token where there is padding); `slots` (N,): the slot whose output is a token's, in the first row that
    holds it; `shared` (M,): the tokens that stand in more rows; `copies` (M, C): their other slots, S where there are
    fewer; `buckets`: the rows and the length of each bucket.
    """

    source: Tensor
    slots: Tensor
    shared: Tensor
    copies: Tensor
    buckets: tuple[tuple[int, int], ...]

    def to(self, device: torch.device) -> AttentionLayout:
        """The layout with its tensors on `device`."""
        tensors = {name: getattr(self, name).to(device) for name in ("source", "slots", "shared", "copies")}
        return replace(self, **tensors)

    def attend(
        self, plain: Attention, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, **settings: Any
    ) -> Tensor:
        """Outputs (1, N, heads, head_dim) of `plain` attention over the rows, from states (1, heads, N, head_dim)."""
        spread = [self._rows(states) for states in (query, key, value)]
        outputs = [plain(module, *bucket, None, **settings)[0].flatten(0, 1) for bucket in zip(*spread, strict=True)]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        collected: Tensor = _Moved.apply(joined.flatten(1), self.slots, self._to_slots)  # type: ignore[no-untyped-call]
        return collected.view(1, len(self.slots), *joined.shape[1:])

    def _rows(self, states: Tensor) -> list[Tensor]:
        """States (1, heads, N, head_dim) as (rows, heads, length, head_dim) of each bucket."""
        _, heads, count, head_dim = states.shape
        values = states.transpose(1, 2).reshape(count, heads * head_dim)
        spread = _Moved.apply(values, self.source, self._from_slots)  # type: ignore[no-untyped-call]
        parts = spread.split([rows * length for rows, length in self.buckets])
        return [
            part.view(rows, length, heads, head_dim).transpose(1, 2)
            for part, (rows, length) in zip(parts, self.buckets, strict=True)
        ]

    def _from_slots(self, grad: Tensor) -> Tensor:
        """Gradients (S, F) of slots, those of each token added up: (N, F). Nothing reads what falls on padding."""
        own = grad.index_select(0, self.slots)
        if len(self.shared):
            # The sum over copies in a fixed order: adding at indices is slow on a CPU and not repeatable on a GPU.
            padded = torch.cat([grad, grad.new_zeros(1, grad.shape[1])])
            copied = padded.index_select(0, self.copies.flatten()).view(*self.copies.shape, -1).sum(1)
            own.index_copy_(0, self.shared, own.index_select(0, self.shared) + copied)
        return own

    def _to_slots(self, grad: Tensor) -> Tensor:
        """Gradients (N, F) of tokens at the slots that their outputs are taken from, others zero: (S, F)."""
        return grad.new_zeros(len(self.source), grad.shape[1]).index_copy_(0, self.slots, grad)


@dataclass(frozen=True)
class Packed:
    """Prompts and responses in one row of N tokens: `ids` and `positions`, of N each.

    `predicting`: the tokens whose hidden states predict the response tokens, row by row. A response's last token is
    predicted and never run, so it is not among the N.
    """

    ids: list[int]
    positions: list[int]
    predicting: list[int]
    layout: AttentionLayout


def pack_sharing(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Packed:
    """Prompts (B lists of token ids) and a response to each; neighbours with the same prompt share it."""
    ids: list[int] = []
    positions: list[int] = []
    predicting: list[int] = []
    runs: list[tuple[int, int, int, int, bool]] = []
    begin = 0
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        is_first = index == 0 or prompt != prompts[index - 1]
        width, length = len(prompt), len(response) - 1
        if is_first:
            begin = len(ids)
            ids.extend(prompt)
            positions.extend(range(width))
        own = len(ids)
        ids.extend(response[:-1])
        positions.extend(range(width, width + length))
        predicting.append(begin + width - 1)
        predicting.extend(range(own, own + length))
        runs.append((begin, width, own, length, is_first))
    return Packed(ids, positions, predicting, _layout(torch.tensor(runs), len(ids)))


def _layout(runs: Tensor, count: int) -> AttentionLayout:
    """The layout of B rows of `count` tokens; runs (B, 5): where its prompt begins and its length, where its response
    begins and its length, and whether it is the first with its prompt."""
    order = (runs[:, 1] + runs[:, 3]).argsort(descending=True, stable=True)
    buckets = _buckets((runs[:, 1] + runs[:, 3])[order].tolist())
    parts = runs[order].split([rows for rows, _ in buckets])
    pieces = [_slots(part, length) for part, (_, length) in zip(parts, buckets, strict=True)]
    source, is_own, is_copy = (torch.cat(column) for column in zip(*pieces, strict=True))
    places = torch.arange(len(source))
    slots = torch.empty(count, dtype=torch.long)
    slots[source[is_own]] = places[is_own]
    by_token = source[is_copy].argsort(stable=True)
    shared, counts = source[is_copy][by_token].unique_consecutive(return_counts=True)
    most = int(counts.max()) if len(counts) else 0
    copies = torch.full((len(shared), most), len(source))
    copies[torch.arange(most) < counts.unsqueeze(-1)] = places[is_copy][by_token]
    return AttentionLayout(source, slots, shared, copies, tuple(buckets))


def _slots(runs: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each slot of a bucket (flat): its token, whether its output is that token's, whether it holds a copy."""
    begin, width, own, rest, is_first = runs.unsqueeze(-1).unbind(1)
    column = torch.arange(length)
    in_prompt, in_row = column < width, column < width + rest
    token = torch.where(in_prompt, begin + column, torch.where(in_row, own + column - width, begin))
    is_own = in_row & (~in_prompt | is_first.bool())
    return token.flatten(), is_own.flatten(), (in_row & ~is_own).flatten()


def _buckets(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(rows, length) of each bucket, of lengths that fall."""
    buckets: list[list[int]] = []
    for place, length in enumerate(lengths):
        ends = buckets and length < BUCKET_SHARE * buckets[-1][1] and buckets[-1][0] >= BUCKET_ROWS
        if not buckets or (ends and len(lengths) - place >= BUCKET_ROWS):
            buckets.append([0, length])
        buckets[-1][0] += 1
    return [(rows, length) for rows, length in buckets]


class _Moved(torch.autograd.Function):
    """The rows of `values` at `index`; their gradient is what `back` makes of the gradient of these."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return values.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(*grads), None, None
