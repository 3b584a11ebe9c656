"""The processes that carry out one run together. Each does the same things in the same order, on its own share."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Peers:
    """A process that carries out a run alone: every share is whole, and there is nobody to wait for."""

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes the run's records."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """What each process gave, by rank, on all of them. Every process must call it."""
        return [value]

    def first(self, work: Callable[[], T]) -> T:
        """The result of `work` on the first process, on all of them; what it raises there is raised everywhere."""
        return work()

    def bounds(self, count: int) -> tuple[int, int]:
        """First and last (exclusive) of this process's share of `count` things; shares differ by one at most."""
        return self.rank * count // self.size, (self.rank + 1) * count // self.size

    def divided(self, work: Callable[[int, int], Sequence[T]], count: int) -> list[T]:
        """The results of `work(first, last)` on each process's share of `count` things, in order, on all of them."""
        return [result for results in self.gather(work(*self.bounds(count))) for result in results]

    def total(self, *values: float) -> list[float]:
        """The sums over all processes of numbers that each has its own of."""
        return [sum(column) for column in zip(*self.gather(values), strict=True)]


#: The peers of a run in one process.
ALONE = Peers()


class GroupPeers(Peers):
    """The processes of torch's process group, which must be there. Python objects travel through gloo."""

    def __init__(self) -> None:
        # Not at the top: what schedules runs knows peers, and does not load torch.
        import torch.distributed as dist

        self._dist = dist
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.objects = dist.new_group(backend="gloo")

    def gather(self, value: T) -> list[T]:
        gathered: list[Any] = [None] * self.size
        self._dist.all_gather_object(gathered, value, group=self.objects)
        return gathered

    def first(self, work: Callable[[], T]) -> T:
        outcome: list[Any] = [None, None]
        own: Exception | None = None
        if self.is_first:
            try:
                outcome = [work(), None]
            except Exception as error:  # noqa: BLE001 - raised again, here and by all that wait for the result
                own, outcome = error, [None, sendable(error)]
        self._dist.broadcast_object_list(outcome, src=0, group=self.objects)
        if outcome[1] is not None:
            raise own or outcome[1]
        result: T = outcome[0]
        return result


def sendable(error: Exception) -> Exception:
    """The error itself, or for one that does not survive pickling a RuntimeError of the same type's name and message.

    Without it the process that has the error would end, and the others wait for it.
    """
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - what was pickled in the same line
    except Exception:  # noqa: BLE001 - an error's own code is run, and whatever it raises means the same
        return _stand_in(type(error).__name__, str(error))
    return error


def _stand_in(name: str, message: str) -> RuntimeError:
    kind: type[RuntimeError] = type(name, (RuntimeError,), {"__reduce__": lambda self: (_stand_in, (name, message))})
    return kind(message)
