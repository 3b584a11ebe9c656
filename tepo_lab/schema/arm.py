"""An arm: a training method, its parent, what it may change, and where each value comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator, model_validator

from tepo_lab.schema.base import Strict
from tepo_lab.schema.profile import not_too_long

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")


class ValueSource(Strict):
    """Where a value comes from: a paper with its place, or a reason of our own."""

    paper: str | None = None
    where: str | None = None
    says: str | None = None
    chosen: str | None = Field(default=None, description="why, when the paper does not give the value")

    @model_validator(mode="after")
    def _is_complete(self) -> ValueSource:
        if not self.chosen and not (self.paper and self.where and self.says):
            raise ValueError("give paper, where and says; or chosen, with the reason")
        return self


def source_of(sources: Mapping[str, ValueSource], key: str) -> ValueSource | None:
    """The source of a dotted key: its own, else that of the nearest key above it."""
    while key:
        if key in sources:
            return sources[key]
        key = key.rpartition(".")[0]
    return None


class ArmInfo(Strict):
    """An arm without its objective (which is beside it in the resolved run)."""

    name: str
    label: str
    parent: str | None = None
    varies: tuple[str, ...] = Field(default=(), description="dotted keys in which the arm may differ from its parent")
    sources: dict[str, ValueSource] = Field(default={})
    trained: bool = True
    note: str | None = None
    point: dict[str, Any] = Field(default={}, description="values that a sweep's axes set, by dotted key")

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("a name has lower-case letters, digits, '_', '-' and '.' only")
        return not_too_long(name)
