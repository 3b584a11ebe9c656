"""What to print: a report names panels, each a sweep, and the rows come from the sweep's arms."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from tepo_lab.schema.base import Strict
from tepo_lab.schema.profile import Count, OrNone

Share = Annotated[float, Field(ge=0, le=1)]


class Panel(Strict):
    """A block of rows: the arms of a sweep in its order, or a list of arms of its own."""

    title: str = ""
    sweep: str = Field(description="the sweep whose arms fill the rows")
    arms: tuple[str, ...] | None = Field(default=None, description="rows in this order, when not the sweep's")
    extra: tuple[str, ...] = Field(
        default=(), description="arms of the sweep shown below, where the home has their runs"
    )
    labels: dict[str, str] = Field(default={}, description="arm -> row label, when not the arm's own")
    seeds: tuple[OrNone, ...] = Field(default=(), description="rows of these seeds; of all that are found if left out")
    steps: Count | None = Field(
        default=None, description="training steps the rows are read at; the sweep's if left out"
    )
    published: str = Field(default="", description="what the published table adds to an arm's name, as in @72:seed1")

    @model_validator(mode="after")
    def _arms_are_named_once(self) -> Panel:
        named = [*(self.arms or ()), *self.extra]
        twice = [arm for arm, count in Counter(named).items() if count > 1]
        if twice:
            raise ValueError(f"{', '.join(twice)} is named more than once among arms and extra")
        return self

    @field_validator("steps", mode="before")
    @classmethod
    def _no_choice_on_the_test_set(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.isdigit():
            raise ValueError(
                "name a number: choosing a step by what the benchmarks say of it is refused, since they are the test "
                "set; a sweep's search chooses on validation problems"
            )
        return value


class SuspectLimits(Strict):
    """Above these shares of an evaluation's generations a row is marked suspect.

    A quarter by default: beyond it a score says as much of the length limit, or of how answers are written down, as of
    how many are right.
    """

    truncated: Share = Field(default=0.25, description="generations that the length limit ended")
    unextracted: Share = Field(
        default=0.25, description="generations in which no answer was found, or none that could be compared in time"
    )


class Report(Strict):
    """A table: panels over the columns of each profile's benchmarks, one block a profile."""

    name: str
    title: str
    profiles: tuple[str, ...] = Field(
        alias="profile", min_length=1, description="the profiles whose runs the table is about (a name or a list)"
    )
    head: Panel | None = Field(default=None, description="rows above the panels, in none of them")
    panels: dict[str, Panel] = Field(min_length=1)
    published: str | None = Field(default=None, description="name of the paper's table in reports/published")
    suspect_above: SuspectLimits = SuspectLimits()

    @field_validator("profiles", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def profile(self) -> str:
        """The profile, or all of them in one phrase."""
        return ", ".join(self.profiles)
