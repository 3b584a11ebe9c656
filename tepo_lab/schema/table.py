"""What to print: a report names panels, each a sweep, and the rows come from the sweep's arms."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from tepo_lab.schema.base import NonNegativeInt, PositiveInt, ProfileNames, Strict, distinct

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
    seeds: tuple[NonNegativeInt, ...] = Field(default=(), description="rows of these seeds; of all seeds if left out")
    steps: PositiveInt | None = Field(
        default=None, description="training steps the rows are read at; the sweep's if left out"
    )
    published: str = Field(default="", description="what the published table adds to an arm's name, as in @72:seed1")

    @model_validator(mode="after")
    def _arms_are_distinct(self) -> Panel:
        distinct((*(self.arms or ()), *self.extra))
        return self

    @field_validator("steps", mode="before")
    @classmethod
    def _no_choice_on_the_test_set(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.isdigit():
            raise ValueError(
                "name a number: choosing a step by benchmark scores is refused, since benchmarks are the test set; a "
                "sweep's search chooses on validation problems"
            )
        return value


class SuspectLimits(Strict):
    """Above these shares of an evaluation's generations a row is marked suspect.

    A quarter by default: beyond it a score measures the length limit, or how answers are written, as much as how many
    are right.
    """

    truncated: Share = Field(default=0.25, description="generations that the length limit ended")
    unextracted: Share = Field(
        default=0.25, description="generations in which no answer was found, or none that could be compared in time"
    )


class Report(Strict):
    """A table: panels over the columns of each profile's benchmarks, one block a profile."""

    name: str
    title: str
    profiles: ProfileNames = Field(alias="profile")
    head: Panel | None = Field(default=None, description="rows above the panels, in none of them")
    panels: dict[str, Panel] = Field(min_length=1)
    published: str | None = Field(default=None, description="name of the paper's table in reports/published")
    suspect_above: SuspectLimits = SuspectLimits()

    @property
    def profile(self) -> str:
        """The profile, or all of them in one phrase."""
        return ", ".join(self.profiles)

    @property
    def all_panels(self) -> dict[str | None, Panel]:
        """The panels by name; the rows above them come first, under None."""
        head: dict[str | None, Panel] = {} if self.head is None else {None: self.head}
        return head | dict(self.panels)
