"""From a sweep's axes to its points, and what a point is called."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tepo_lab.schema.sweep import Draw, Part

Point = dict[str, Any]


def points(part: Part) -> list[Point]:
    """The points of a part, in order: listed axes crossed, drawn axes drawn together, crossed with `points`.

    A part without axes has one point, which sets nothing.
    """
    listed = {key: axis for key, axis in part.axes.items() if not isinstance(axis, Draw)}
    drawn = {key: draw(axis, key) for key, axis in part.axes.items() if isinstance(axis, Draw)}
    grid = [dict(zip(listed, values, strict=True)) for values in itertools.product(*listed.values())]
    random_points = [dict(zip(drawn, values, strict=True)) for values in zip(*drawn.values(), strict=True)] or [{}]
    together = part.points or ({},)
    return [{**a, **b, **c} for a in together for b in grid for c in random_points]


def draw(axis: Draw, key: str) -> list[Any]:
    """The drawn values of one axis: a function of its seed and key alone. Numbers have six digits."""
    source = random.Random(f"{axis.seed}/{key}")
    return [_one(axis, source) for _ in range(axis.samples)]


def _one(axis: Draw, source: random.Random) -> Any:
    if axis.choice is not None:
        return axis.choice[int(source.random() * len(axis.choice))]
    low, high = axis.loguniform or axis.uniform or (0.0, 0.0)
    share = source.random()
    value = low * math.exp(share * math.log(high / low)) if axis.loguniform else low + share * (high - low)
    return float(f"{value:.6g}")


def point_label(point: Mapping[str, Any]) -> str:
    """A point in words, such as `coef=0.1, estimator=k1`: the shortest keys that tell its values apart."""
    return ", ".join(f"{_short(key, list(point))}={_shown(value)}" for key, value in point.items())


def _short(key: str, keys: Sequence[str]) -> str:
    parts = key.split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[-count:])
        if sum(other == name or other.endswith(f".{name}") for other in keys) == 1:
            return name
    return key


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return str(value.get("kind") or json.dumps(value))
    if isinstance(value, list | tuple):
        return "/".join(_shown(each) for each in value)
    return str(value)
