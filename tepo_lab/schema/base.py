"""What every configuration model shares: unknown keys are refused and values do not change after validation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from tepo_lab.errors import ConfigError, nearest

M = TypeVar("M", bound="Strict")

#: What a value must be, by pydantic's name of the fault; braces hold the fault's own figures.
_WANTED = {
    "int": "must be a whole number",
    "float": "must be a number",
    "finite_number": "must be a finite number",
    "bool": "must be true or false",
    "string": "must be text",
    "tuple": "must be a list, such as {example}",
    "list": "must be a list, such as {example}",
    "dict": "must be a mapping (key: value)",
    "model": "must be a mapping (key: value)",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must not be empty",
    "too_long": "must have no more than {max_length} entries",
    "string_too_short": "must have {min_length} characters or more",
    "string_pattern_mismatch": "must be a plain name: letters, digits, '_', '-' and '.', the first no sign",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "{discriminator} must be {expected_tags}, not '{tag}'",
    "union_tag_not_found": "must say its {discriminator}",
    "value_error": "{error}",
}

#: Longest part of a wrong value that is repeated to whoever wrote it.
_SHOWN = 60


class Strict(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


#: For numbers: pydantic alone would read true as 1.
NUMBER = BeforeValidator(_no_truth_value)


def validate(model: type[M], values: Any, *, where: str, arguments: Mapping[str, str] | None = None) -> M:
    """Build `model` from plain values.

    Args: `where` names the file or the arm that the values came from; `arguments` are the top-level keys that came from
    the command line instead, each with the argument that set it.
    Raises `ConfigError` with the first fault: its key, what is wrong, and the nearest right name.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        fault = _first_fault(error)
        argument = (arguments or {}).get(str(fault["loc"][0]) if fault["loc"] else "")
        raise ConfigError(f"{argument or where}: {_told(model, fault, values, is_argument=bool(argument))}") from None


def _first_fault(error: ValidationError) -> Any:
    faults = error.errors()
    # An unknown key explains most other faults (a required key misspelt), so it is told first.
    return next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])


def _told(model: type[BaseModel], fault: Any, values: Any, *, is_argument: bool) -> str:
    location = _without_tags(fault["loc"], values)
    key = ".".join(location)
    if fault["type"] == "extra_forbidden":
        known = _fields_at(model, list(fault["loc"][:-1]))
        return f"unknown key {key!r}.{nearest(location[-1], known)}"
    if fault["type"] == "missing":
        if isinstance(fault["loc"][-1], int):
            return f"{'.'.join(location[:-1])!r}: must have at least {fault['loc'][-1] + 1} entries."
        return f"key {key!r} is missing."
    is_whole = is_argument and len(location) == 1
    place = f"{key!r}: " if key and not is_whole else ""
    message = _message(fault, f"{key}=" if is_whole else "", _members_key(model, fault["loc"]))
    return f"{place}{message}" + ("" if message.endswith("?") else ".")


def _message(fault: Any, assigned: str, members_key: str | None) -> str:
    """What is wrong with a value.

    Args: `assigned` stands before an example of a right one, `members_key` in one where mappings are wanted.
    """
    given, kind = fault.get("input"), fault["type"]
    wanted = _WANTED.get(kind) or _WANTED.get(kind.partition("_")[0])
    if wanted is None or kind == "value_error":
        message = fault["msg"].removeprefix("Value error, ")
    else:
        member = f'{{{members_key}: "{given}"}}' if members_key and isinstance(given, str) else given
        example = f"{assigned}[{member}]" if isinstance(given, str | int) and given != "" else f"{assigned}[...]"
        figures = {key: f"{each:g}" if isinstance(each, float) else each for key, each in fault.get("ctx", {}).items()}
        message = wanted.format_map({"example": example} | figures)
        if member != given and kind.startswith("model"):
            message = f"must be a mapping, such as {member}"
    if kind in ("value_error", "union_tag_invalid", "too_short", "string_too_short") or isinstance(given, dict | list):
        return str(message)
    shown = repr(given) if len(repr(given)) <= _SHOWN else f"{repr(given)[:_SHOWN]}..."
    choices = re.findall(r"'([^']*)'", message) if kind == "literal_error" else []
    meant = nearest(str(given), choices) if choices else ""
    return f"{message} (got {shown})" + (f".{meant}" if "Did you mean" in meant else "")


def _without_tags(location: Sequence[str | int], values: Any) -> list[str]:
    """The location as the file's keys: pydantic puts the tag of a discriminated union in between."""
    kept = []
    for place, part in enumerate(location):
        is_last = place == len(location) - 1
        if str(part).startswith("tag:") or (isinstance(values, dict) and part not in values and not is_last):
            continue
        kept.append(str(part))
        values = None if is_last or not isinstance(values, dict | list) else _member(values, part)
    return kept


def _member(values: Any, part: str | int) -> Any:
    return values[part]


def _members_key(model: type[BaseModel], location: Sequence[str | int]) -> str | None:
    """The one key that each mapping at a location must have; None where there are none, or they must have several."""
    place = list(location)
    while place and isinstance(place[-1], int):
        place.pop()
    if not place:
        return None
    fields = [each.model_fields.get(str(place[-1])) for each in _models_at(model, place[:-1])]
    found = [each for field in fields if field is not None for each in _models_in(field.annotation)]
    needed = {field.alias or key for each in found for key, field in each.model_fields.items() if field.is_required()}
    return needed.pop() if len(needed) == 1 else None


def _fields_at(model: Any, location: list[Any]) -> set[str]:
    """Keys that a location's model knows (of a union, those of the member that is meant)."""
    return {field.alias or name for each in _models_at(model, location) for name, field in each.model_fields.items()}


def _models_at(model: Any, location: list[Any]) -> list[type[BaseModel]]:
    models = _models_in(model)
    for part in location:
        following: list[type[BaseModel]] = []
        for each in models:
            field = each.model_fields.get(str(part))
            if field is not None:
                following += _models_in(field.annotation)
        # A mapping's key or a union's tag is part of the location without being a field.
        models = following or [each for each in models if _has_tag(each, part)] or models
    return models


def _has_tag(model: type[BaseModel], tag: Any) -> bool:
    annotations = [field.annotation for field in model.model_fields.values()]
    return any(get_origin(each) is Literal and tag in get_args(each) for each in annotations)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for argument in getattr(annotation, "__args__", ()):
        found += _models_in(argument)
    return found
