"""A statement of the paper and how often it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Check:
    """One statement among some cases: `holds` of `cases`. `values` are further numbers (nats, unless named otherwise).

    `note` says why a check has no cases.
    """

    source: str
    statement: str
    among: str
    cases: int
    holds: int
    values: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def share(self) -> float | None:
        return self.holds / self.cases if self.cases else None

    def to_dict(self) -> dict[str, Any]:
        """The check as plain values."""
        return {
            "source": self.source,
            "statement": self.statement,
            "among": self.among,
            "cases": self.cases,
            "holds": self.holds,
            "share": None if self.share is None else round(self.share, 6),
            "values": dict(self.values),
            "note": self.note,
        }


def count(source: str, statement: str, among: str, holds: Flags, **values: float) -> Check:
    """A check from whether the statement holds in each case."""
    return Check(source, statement, among, int(holds.size), int(holds.sum()), values)
