"""What every configuration model shares: unknown keys are refused and values do not change after validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tepo_lab.errors import ConfigError, nearest

M = TypeVar("M", bound="Strict")


class Strict(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


def validate(model: type[M], values: Any, *, where: str) -> M:
    """Build `model` from plain values.

    Args: `where` names the file or command-line argument the values came from.
    Raises `ConfigError` with the first fault: its key, what is wrong, and the nearest right name.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_first_fault(model, error, values)}") from None


def _first_fault(model: type[BaseModel], error: ValidationError, values: Any) -> str:
    faults = error.errors()
    # An unknown key explains most other faults (a required key misspelt), so it is told first.
    fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
    location = _without_tags(fault["loc"], values)
    key = ".".join(location)
    if fault["type"] == "extra_forbidden":
        known = _fields_at(model, list(fault["loc"][:-1]))
        return f"unknown key {key!r}.{nearest(location[-1], known)}"
    if fault["type"] == "missing":
        return f"key {key!r} is missing."
    message = fault["msg"].removeprefix("Value error, ")
    place = f"{key!r}: " if key else ""
    given = fault.get("input")
    shown = "" if isinstance(given, dict | list) or fault["type"] == "value_error" else f" (got {given!r})"
    return f"{place}{message}{shown}."


def _without_tags(location: Sequence[str | int], values: Any) -> list[str]:
    """The location as the file's keys: pydantic puts the tag of a discriminated union in between."""
    kept = []
    for place, part in enumerate(location):
        is_last = place == len(location) - 1
        if isinstance(values, dict) and part not in values and not is_last:
            continue
        kept.append(str(part))
        values = None if is_last or not isinstance(values, dict | list) else _member(values, part)
    return kept


def _member(values: Any, part: str | int) -> Any:
    return values[part]


def _fields_at(model: Any, location: list[Any]) -> set[str]:
    """Names of the fields a location's model knows (all fields of a union's members)."""
    models = _models_in(model)
    for part in location:
        following: list[type[BaseModel]] = []
        for each in models:
            field = each.model_fields.get(str(part))
            if field is not None:
                following += _models_in(field.annotation)
        # A mapping's key or a union's tag is part of the location without being a field.
        models = following or models
    return {name for each in models for name in each.model_fields}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for argument in getattr(annotation, "__args__", ()):
        found += _models_in(argument)
    return found
