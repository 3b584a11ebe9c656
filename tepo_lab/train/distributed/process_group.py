"""The processes (ranks) that train one run together. All make the same calls in the same order, each on its share."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class ProcessGroup:
    """The group of a run in one process: its share is everything, and nothing is communicated."""

    rank = 0
    world_size = 1

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes the run's records."""
        return self.rank == 0

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank, on every rank."""
        return [value]

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        """The result of `work` on rank 0, on every rank; an exception of `work` is raised on every rank."""
        return work()

    def share(self, count: int) -> tuple[int, int]:
        """First and last (exclusive) index of this rank's share of `count` items; shares differ by one at most."""
        return self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size

    def map_shares(self, work: Callable[[int, int], Sequence[T]], count: int) -> list[T]:
        """The results of `work(first, last)` on each rank's share of `count` items, in order, on every rank."""
        return [result for results in self.all_gather(work(*self.share(count))) for result in results]

    def sum(self, *values: float) -> list[float]:
        """The sum over all ranks of each value."""
        return [sum(column) for column in zip(*self.all_gather(values), strict=True)]


#: The process group of a run in one process.
SINGLE_PROCESS = ProcessGroup()


class TorchProcessGroup(ProcessGroup):
    """torch's default process group, which must be initialised. Python objects are sent through gloo."""

    def __init__(self) -> None:
        # Not at the top: the modules that schedule runs import this one and do not load torch.
        import torch.distributed as dist

        self._dist = dist
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._gloo = dist.new_group(backend="gloo")

    def all_gather(self, value: T) -> list[T]:
        gathered: list[Any] = [None] * self.world_size
        self._dist.all_gather_object(gathered, value, group=self._gloo)
        return gathered

    def on_rank_zero(self, work: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]
        own_error: Exception | None = None
        if self.is_rank_zero:
            try:
                outcome = [work(), None]
            except Exception as error:  # noqa: BLE001 - raised again below, on every rank
                own_error, outcome = error, [None, picklable(error)]
        self._dist.broadcast_object_list(outcome, src=0, group=self._gloo)
        if outcome[1] is not None:
            raise own_error or outcome[1]
        result: T = outcome[0]
        return result


def picklable(error: Exception) -> Exception:
    """The error itself, or for one that cannot be pickled a RuntimeError with the same type name and message.

    Without this, rank 0 would end with a pickling error while the other ranks wait for its broadcast.
    """
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled in the same line
    except Exception:  # noqa: BLE001 - unpickling runs the error's own code, which may raise anything
        return _named_error(type(error).__name__, str(error))
    return error


def _named_error(name: str, message: str) -> RuntimeError:
    kind: type[RuntimeError] = type(name, (RuntimeError,), {"__reduce__": lambda self: (_named_error, (name, message))})
    return kind(message)
