"""What the trainer and the evaluation ask of a sampler: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Sampling:
    """How to decode. Temperature 0 is greedy; `seed` and a prompt's index fix every draw for that prompt.

    Prompt i draws as prompt `first_prompt` + i: a process that samples a share of a list names where its share begins,
    and gets what one process would have sampled for the whole list (to rounding of the logits).
    """

    temperature: float
    max_new_tokens: int
    top_p: float = 1.0
    seed: int = 0
    first_prompt: int = 0


@dataclass(frozen=True)
class Response:
    """One sampled continuation.

    `token_ids` ends with an end-of-sequence token unless `truncated`, which means that the limit came first.
    `log_probs` are the sampler's own, in nats, where the sampler is not the trainer's model.
    """

    token_ids: tuple[int, ...]
    truncated: bool
    log_probs: tuple[float, ...] | None = None


#: Token ids of each prompt.
Prompts = Sequence[Sequence[int]]

#: A callback for a finished response: (index of its prompt, index among that prompt's samples, response).
Finished = Callable[[int, int, Response], None]


def ignore_response(prompt: int, sample: int, response: Response) -> None:
    """The `Finished` of a caller that waits for all responses."""


class Engine(Protocol):
    """A sampler of continuations."""

    def generate(
        self, prompts: Prompts, *, samples: int, sampling: Sampling, finished: Finished = ignore_response
    ) -> list[list[Response]]:
        """`samples` responses to each prompt of token ids, in the prompts' order.

        `finished` is called with every response that this process samples, once, in any order, while others are still
        sampled.
        """
        ...

    def rest(self) -> None:
        """Leave to the trainer the memory that only sampling takes; the next `generate` takes it back."""
        ...

    def sync_weights(self) -> None:
        """Make the next `generate` use the trainer's current weights."""
        ...

    def close(self) -> None:
        """Give back processes and memory."""
        ...


class DelegatingEngine:
    """The part of an engine that it delegates to another one: all but `generate`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def rest(self) -> None:
        self.engine.rest()

    def sync_weights(self) -> None:
        self.engine.sync_weights()

    def close(self) -> None:
        self.engine.close()
