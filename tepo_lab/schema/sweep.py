"""A sweep: which arms, seeds, axes and steps to run, and which tables it feeds."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from tepo_lab.schema.base import Strict
from tepo_lab.schema.profile import Count, OrNone

CONDITION = re.compile(r"\s*(?P<metric>[A-Za-z_][\w/.-]*)\s*(?P<comparison><=|>=|<|>)\s*(?P<limit>[-+0-9.eE]+)\s*")


class StopRule(Strict):
    """Ends a run when a step metric stays beyond a limit for some steps running."""

    when: str = Field(description="'METRIC < NUMBER' (or <=, >, >=), or 'METRIC is not finite'")
    steps: Count = Field(default=1, alias="for", description="steps running that the condition must hold")
    outcome: Literal["collapsed"] = "collapsed"

    @field_validator("when")
    @classmethod
    def _readable(cls, when: str) -> str:
        if not (CONDITION.fullmatch(when) or re.fullmatch(r"\s*[\w/.-]+ is not finite\s*", when)):
            raise ValueError("write 'METRIC < NUMBER' (or <=, >, >=) or 'METRIC is not finite'")
        return when


class Sweep(Strict):
    """What to run. One seed of every arm before the second of any."""

    name: str
    title: str
    arms: tuple[str, ...] = Field(min_length=1)
    profile: str = "nano"
    seeds: tuple[OrNone, ...] = Field(default=(1,), min_length=1)
    steps: Annotated[int, Field(ge=0)] | None = None
    overrides: dict[str, Any] = Field(default={}, description="dotted config key -> value, for every run")
    base: bool = Field(default=True, description="also evaluate the untrained model")
    stop: tuple[StopRule, ...] = ()
    feeds: tuple[str, ...] = ()

    @field_validator("arms", "seeds")
    @classmethod
    def _distinct(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        repeated = sorted({str(value) for value in values if values.count(value) > 1})
        if repeated:
            raise ValueError(f"{', '.join(repeated)} stands more than once")
        return values
