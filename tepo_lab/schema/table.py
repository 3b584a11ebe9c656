"""What to print: a report names panels, each a sweep, and the rows come from the sweep's arms."""

from __future__ import annotations

from pydantic import Field

from tepo_lab.schema.base import Strict


class Panel(Strict):
    """A block of rows: the arms of a sweep in its order, or a list of arms of its own."""

    title: str
    sweep: str = Field(description="the sweep whose arms and seeds fill the rows")
    arms: tuple[str, ...] | None = Field(default=None, description="rows in this order, when not the sweep's")
    labels: dict[str, str] = Field(default={}, description="arm -> row label, when not the arm's own")


class Report(Strict):
    """A table: panels over the columns of one profile's benchmarks."""

    name: str
    title: str
    profile: str = Field(description="the profile whose runs the table is about, unless another is asked for")
    panels: dict[str, Panel] = Field(min_length=1)
    published: str | None = Field(default=None, description="name of the paper's table in reports/published")
