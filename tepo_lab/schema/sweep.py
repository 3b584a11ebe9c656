"""A sweep: which arms, seeds, axes and steps to run, and which tables it feeds."""

from __future__ import annotations

import itertools
import math
import random
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from tepo_lab.schema.base import DISTINCT, NUMBER, PositiveInt, ProfileNames, Strict
from tepo_lab.schema.profile import Benchmark, Seed, Steps, not_too_long

CONDITION = re.compile(
    r"\s*(?P<metric>[A-Za-z_][\w/.-]*)\s*(?P<comparison><=|>=|<|>)\s*(?P<limit>[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?)\s*"
)

#: Step metrics that leave a run's weights without meaning when they are not finite: its first such step is its last.
MUST_BE_FINITE = ("actor/pg_loss", "actor/grad_norm")

#: What a search's metrics begin with; a suite's benchmarks are never among them.
VALIDATION = "validation/"

#: Points of one part of a sweep, at most.
MAX_POINTS = 10_000


class StopRule(Strict):
    """Ends a run when a step metric stays beyond a limit for some steps running."""

    when: str = Field(description="'METRIC < NUMBER' (or <=, >, >=), or 'METRIC is not finite'; METRIC as a step's")
    steps: PositiveInt = Field(default=1, alias="for", description="steps running that the condition must hold")
    outcome: Literal["collapsed"] = "collapsed"

    @field_validator("when")
    @classmethod
    def _readable(cls, when: str) -> str:
        if not (CONDITION.fullmatch(when) or re.fullmatch(r"\s*[\w/.-]+ is not finite\s*", when)):
            raise ValueError("write 'METRIC < NUMBER' (or <=, >, >=) or 'METRIC is not finite'")
        match = CONDITION.fullmatch(when)
        if match and not math.isfinite(float(match["limit"])):
            raise ValueError(f"{match['limit']} is no finite number; to watch for those write 'METRIC is not finite'")
        return when

    @model_validator(mode="after")
    def _can_hold(self) -> StopRule:
        if self.steps > 1 and self.metric in MUST_BE_FINITE and not CONDITION.fullmatch(self.when):
            raise ValueError(
                f"'{self.when.strip()}' can never hold for {self.steps} steps, since the first such step ends the run; "
                "leave out `for`"
            )
        return self

    @property
    def metric(self) -> str:
        """The name of the step metric that is watched."""
        match = CONDITION.fullmatch(self.when)
        return match["metric"] if match else self.when.strip().removesuffix("is not finite").strip()


class Draw(Strict):
    """Values of an axis drawn at random, the same on every machine."""

    loguniform: tuple[float, float] | None = Field(
        default=None, description="from low to high, evenly in the logarithm"
    )
    uniform: tuple[float, float] | None = Field(default=None, description="from low to high")
    choice: tuple[Any, ...] | None = Field(default=None, description="one of these, equally likely")
    samples: Annotated[int, Field(gt=0, le=MAX_POINTS), NUMBER]
    seed: Seed = 0

    @model_validator(mode="after")
    def _one_distribution(self) -> Draw:
        given = [values for values in (self.loguniform, self.uniform, self.choice) if values is not None]
        if len(given) != 1 or not given[0]:
            raise ValueError("give one of loguniform: [low, high], uniform: [low, high] and choice: [...]")
        bounds = self.loguniform or self.uniform
        if bounds and not bounds[0] < bounds[1]:
            raise ValueError(f"low ({bounds[0]}) must be below high ({bounds[1]})")
        if self.loguniform and self.loguniform[0] <= 0:
            raise ValueError(f"loguniform: low ({self.loguniform[0]}) must be above 0")
        return self

    def values(self, key: str) -> list[Any]:
        """The drawn values of the axis `key`: a function of its seed and key alone. Numbers have six digits."""
        source = random.Random(f"{self.seed}/{key}")
        shares = [source.random() for _ in range(self.samples)]
        if self.choice is not None:
            return [self.choice[int(share * len(self.choice))] for share in shares]
        low, high = self.loguniform or self.uniform or (0.0, 0.0)
        if self.loguniform:
            drawn = [low * math.exp(share * math.log(high / low)) for share in shares]
        else:
            drawn = [low + share * (high - low) for share in shares]
        return [float(f"{value:.6g}") for value in drawn]


def _kind_of_axis(value: Any) -> str:
    return "tag:draw" if isinstance(value, dict | Draw) else "tag:list"


Listed = Annotated[tuple[Any, ...], Field(min_length=1), DISTINCT]
Axis = Annotated[Annotated[Listed, Tag("tag:list")] | Annotated[Draw, Tag("tag:draw")], Discriminator(_kind_of_axis)]


class SweepPart(Strict):
    """Arms with the values, seeds and steps they are run with.

    Points: every combination of the listed values of `axes` and of `points`; axes that are drawn are drawn together,
    so that they too make one list of points.
    """

    arms: Annotated[tuple[str, ...], DISTINCT] = ()
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1), DISTINCT] | None = Field(
        default=None, description="those of the sweep if left out"
    )
    steps: Steps | None = Field(default=None, description="training steps; the profile's if left out")
    overrides: dict[str, Any] = Field(default={}, description="dotted config key -> value")
    axes: dict[str, Axis] = Field(default={}, description="dotted config key -> values, or a distribution")
    points: tuple[dict[str, Any], ...] = Field(default=(), description="values set together: dotted key -> value")
    labels: dict[str, str] = Field(default={}, description="arm -> what its runs are called here, when not its label")

    @model_validator(mode="after")
    def _check_axes(self) -> SweepPart:
        listed = [len(axis) for axis in self.axes.values() if not isinstance(axis, Draw)]
        count = math.prod(listed) * max(1, len(self.points))
        if count > MAX_POINTS:
            raise ValueError(
                f"axes: {count:,} points, more than {MAX_POINTS:,}; leave values out, or draw some of them"
            )
        samples = {axis.samples for axis in self.axes.values() if isinstance(axis, Draw)}
        if len(samples) > 1:
            raise ValueError(f"axes: drawn axes are drawn together; give them the same samples, not {sorted(samples)}")
        return self

    def all_points(self) -> list[dict[str, Any]]:
        """The part's points in order, each a mapping of dotted keys to values.

        Listed axes are crossed with each other, with the draws (drawn axes are drawn together) and with `points`. A
        part without axes has one point, which sets nothing.
        """
        listed = {key: axis for key, axis in self.axes.items() if not isinstance(axis, Draw)}
        drawn = {key: axis.values(key) for key, axis in self.axes.items() if isinstance(axis, Draw)}
        grid = [dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values())]
        draws = [dict(zip(drawn, values, strict=True)) for values in zip(*drawn.values(), strict=True)] or [{}]
        return [{**a, **b, **c} for a in self.points or ({},) for b in grid for c in draws]


class Search(Strict):
    """How an exploratory sweep chooses among its points: by validation problems alone."""

    validation: dict[str, Benchmark] = Field(min_length=1, description="problems that no table reports")
    metric: str = Field(default="validation/average", description="validation/average, or validation/NAME of one set")
    mode: Literal["max", "min"] = "max"
    every: PositiveInt = Field(default=5, description="training steps between validations")
    scheduler: Literal["asha", "none"] = "asha"
    algorithm: Literal["random", "grid"] = "random"
    grace_steps: PositiveInt = Field(default=5, description="training steps that every point gets")
    reduction_factor: Annotated[int, Field(gt=1), NUMBER] = 3

    @model_validator(mode="after")
    def _selects_on_validation(self) -> Search:
        known = [f"{VALIDATION}{name}" for name in ("average", *self.validation)]
        if self.metric not in known:
            raise ValueError(f"metric {self.metric!r}: a search selects on validation alone: {', '.join(known)}")
        for name, benchmark in self.validation.items():
            if benchmark.data.split == "test":
                raise ValueError(f"validation.{name}: its problems are a test split; a search never sees those")
        return self


class Sweep(SweepPart):
    """What to run. One seed of every arm before the second of any."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$"), AfterValidator(not_too_long)]
    title: str = Field(min_length=1)
    profiles: ProfileNames = Field(default=("nano",), alias="profile")
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1), DISTINCT] = (1,)
    parts: tuple[SweepPart, ...] = Field(default=(), description="further arms with seeds, steps or axes of their own")
    base: bool = Field(default=True, description="also evaluate the untrained model")
    stop: tuple[StopRule, ...] = ()
    search: Search | None = None
    feeds: tuple[str, ...] = Field(default=(), description="tables that show this sweep")

    @model_validator(mode="after")
    def _complete(self) -> Sweep:
        if not any(part.arms for part in self.blocks):
            raise ValueError("name at least one arm, in arms or in parts")
        for number, part in enumerate(self.parts, 1):
            if not part.arms:
                raise ValueError(f"parts: part {number} names no arm")
        if not self.arms and (self.axes or self.points):
            raise ValueError("axes and points are those of arms; there are none beside them")
        if self.search is not None:
            axes = [axis for part in self.blocks for axis in part.axes.values()]
            is_drawn = any(isinstance(axis, Draw) for axis in axes)
            if not axes or is_drawn != (self.search.algorithm == "random"):
                wanted = "a drawn axis" if self.search.algorithm == "random" else "axes with listed values only"
                raise ValueError(f"search: algorithm {self.search.algorithm} takes {wanted}")
        return self

    @property
    def profile(self) -> str:
        """The profile, or all of them in one phrase."""
        return ", ".join(self.profiles)

    @property
    def blocks(self) -> tuple[SweepPart, ...]:
        """The sweep's own arms and its parts, each with its seeds, steps and overrides filled in."""
        own = SweepPart(arms=self.arms, axes=self.axes, points=self.points, labels=self.labels)
        return tuple(
            part.model_copy(
                update={
                    "seeds": part.seeds or self.seeds,
                    "steps": self.steps if part.steps is None else part.steps,
                    "overrides": self.overrides | part.overrides,
                }
            )
            for part in ((own, *self.parts) if self.arms else self.parts)
        )

    @property
    def all_arms(self) -> tuple[str, ...]:
        """Every arm once, in order."""
        return tuple(dict.fromkeys(arm for part in self.blocks for arm in part.arms))
