"""What to draw: a figure names its arms as a report names its rows, and how they are drawn."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tepo_lab.schema.base import Strict
from tepo_lab.schema.table import Report

Drawing = Literal["curves", "cells", "bars", "forest"]


class Plot(Strict):
    """A step metric, drawn as a line for each arm over training steps."""

    metric: str = Field(description="its name in metrics.jsonl, such as actor/entropy")
    label: str = Field(description="of the axis, with the unit")
    percent: bool = Field(default=False, description="the metric is a share, drawn in percent")
    average: bool = Field(default=False, description="also print each arm's mean over all steps")


class FigureReport(Report):
    """A figure over the arms of its panels.

    `curves` draws `plots`; `cells` the tokens' shares in the four cells of advantage and entropy change over steps;
    `bars` the benchmarks' scores; `forest` the differences from the parents with their intervals.
    """

    draw: Drawing
    plots: tuple[Plot, ...] = ()

    @model_validator(mode="after")
    def _plots_are_of_curves(self) -> FigureReport:
        if (self.draw == "curves") != bool(self.plots):
            raise ValueError("draw: curves takes plots, and nothing else does")
        return self
