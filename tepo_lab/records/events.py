"""The events of a run: typed lines of events.jsonl, appended by whoever owns the run's lock.

`started` and `resumed` open an attempt at the step it trains on from; `complete`, `collapsed`, `stopped` (by a search)
and `failed` end the run. What happened after the step of a `resumed` is void: those steps are made again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

#: Unix seconds.
Time = Annotated[float, Field(ge=0, lt=1e12)]
Step = Annotated[NonNegativeInt, Field(lt=10**12, strict=True)]
Seconds = Annotated[float, Field(ge=0, lt=1e12)]


class Event(BaseModel):
    """One line. Keys that this release does not know are preserved."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    event: str
    time: Time = Field(default_factory=time.time)
    step: Step = 0

    def line(self) -> dict[str, Any]:
        """The event as plain values: time, event and step first, and of the rest what was given."""
        return {"time": self.time, "event": self.event, "step": self.step} | self.model_dump(
            mode="json", exclude_unset=True
        )


class Started(Event):
    """An attempt begins: `hardware` of the node that it runs on."""

    event: Literal["started", "resumed"] = "started"
    hardware: Mapping[str, Any] | None = None


class CheckpointSaved(Event):
    event: Literal["checkpoint"] = "checkpoint"


class Validated(Event):
    """A search's validation score in percent. Seconds are wall time, and CPU time of all the run's processes."""

    event: Literal["validated"] = "validated"
    step: Step
    value: float
    seconds: Seconds | None = None
    cpu_seconds: Seconds | None = None


class Tally(BaseModel):
    """`correct` of `graded` generations."""

    model_config = ConfigDict(frozen=True)

    correct: Step
    graded: Step


class Evaluated(Event):
    """The suite was sampled and graded: counts by benchmark. `sampler_mismatch` is in nats; null where not finite."""

    event: Literal["evaluated"] = "evaluated"
    step: Step
    benchmarks: Mapping[str, Tally] = Field(default_factory=dict)
    seconds: Seconds | None = None
    cpu_seconds: Seconds | None = None
    sampler_mismatch: float | None = None
    grader: str | None = None
    grades_changed: int | None = None


class Suspect(Event):
    """Sampler and trainer disagree, and by how much."""

    event: Literal["suspect"] = "suspect"
    why: str = ""


class Complete(Event):
    """The run reached the steps it was asked for."""

    event: Literal["complete"] = "complete"


class Collapsed(Event):
    """A stop rule ended the run: a result, not an error."""

    event: Literal["collapsed"] = "collapsed"
    step: Step
    rule: str


class Stopped(Event):
    """A search ended the run before its last step."""

    event: Literal["stopped"] = "stopped"
    step: Step
    by: str


class Failed(Event):
    """The run failed. `kind` says whose fault it was; errors of one cause share a `fingerprint`."""

    event: Literal["failed"] = "failed"
    kind: Literal["user", "machine"]
    error: str
    error_type: str = ""
    fingerprint: str = ""


Outcome = Complete | Collapsed | Stopped | Failed

_KINDS: dict[str, type[Event]] = {
    "started": Started,
    "resumed": Started,
    "checkpoint": CheckpointSaved,
    "validated": Validated,
    "evaluated": Evaluated,
    "suspect": Suspect,
    "complete": Complete,
    "collapsed": Collapsed,
    "stopped": Stopped,
    "failed": Failed,
}


def parse_event(values: Mapping[str, Any]) -> Event:
    """The event of a line's values. Raises `ValueError`, in a phrase, for values that are no event's."""
    try:
        return _KINDS.get(str(values.get("event")), Event).model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, fault['loc'])) or 'event'}: {fault['msg']}") from None
