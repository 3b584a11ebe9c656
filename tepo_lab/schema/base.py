"""The base class of configuration models, their number types, and validation with messages for users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tepo_lab.errors import ConfigError, nearest

M = TypeVar("M", bound="Strict")

#: What a value must be, by pydantic's error type or its first word, where pydantic's own message is for programmers.
_EXPECTED = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string_type": "must be text",
    "string_pattern_mismatch": "must have letters, digits, '_', '-' and '.' only, and no sign first",
    "tuple": "must be a list [...]",
    "list": "must be a list [...]",
    "dict": "must be a mapping (key: value)",
    "model": "must be a mapping (key: value)",
    "too_short": "must not be empty",
    "union_tag_not_found": "must have the key {discriminator}",
    "union_tag_invalid": "{discriminator} must be {expected_tags}, not '{tag}'",
}

#: Words of pydantic's messages and the ones in ours, in the order in which they are replaced.
_PLAIN_WORDS = {
    "Input should": "must",
    "String should": "must",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}

#: Longest part of a wrong value that a message repeats.
_LONGEST_VALUE = 60


class Strict(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


#: For numbers: pydantic alone would read true as 1.
NUMBER = BeforeValidator(_no_boolean)

PositiveInt = Annotated[int, Field(gt=0, le=10**12), NUMBER]
NonNegativeInt = Annotated[int, Field(ge=0, le=10**12), NUMBER]
PositiveFloat = Annotated[float, Field(gt=0), NUMBER]
NonNegativeFloat = Annotated[float, Field(ge=0), NUMBER]


def distinct(values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """The values as they are. Raises `ValueError` for one that occurs twice."""
    repeated = [value for value, count in Counter(map(str, values or ())).items() if count > 1]
    if repeated:
        more = f" and {len(repeated) - 5} more" if len(repeated) > 5 else ""
        raise ValueError(f"{', '.join(repeated[:5])}{more} stands more than once")
    return values


#: For tuples of distinct values.
DISTINCT = AfterValidator(distinct)

#: Names of profiles, written as one name or as a list.
ProfileNames = Annotated[
    tuple[str, ...],
    Field(min_length=1, description="a name or a list"),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    DISTINCT,
]


def validate(model: type[M], values: Any, *, where: str, arguments: Mapping[str, str] | None = None) -> M:
    """Build `model` from plain values.

    Args: `where` names the file or the arm that the values came from; `arguments` are the top-level keys that came from
    the command line instead, each with the argument that set it.
    Raises `ConfigError` with the first error: its key, what is wrong, and the nearest right name.
    """
    try:
        return model.model_validate(values)
    except ValidationError as invalid:
        errors = invalid.errors()
        # An unknown key explains most other errors (a required key misspelt), so it is reported first.
        error = next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])
        location = error["loc"]
        place = (arguments or {}).get(str(location[0]) if location else "", where)
        keys = _keys(location, values)
        key = ".".join(keys)
        if error["type"] == "extra_forbidden":
            message = f"unknown key {key!r}.{nearest(keys[-1], _known_keys(model, location[:-1]))}"
        elif error["type"] == "missing":
            message = f"key {key!r} is missing."
        else:
            message = (f"{key!r}: " if key else "") + _message(error)
        raise ConfigError(f"{place}: {message}") from None


def _message(error: Any) -> str:
    """What is wrong with a value, what was given, and the nearest of the values that are allowed."""
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    expected = _EXPECTED.get(kind) or _EXPECTED.get(kind.partition("_")[0])
    message = expected.format_map(context) if expected else error["msg"].removeprefix("Value error, ")
    for theirs, ours in _PLAIN_WORDS.items():
        message = message.replace(theirs, ours)
    if kind in ("value_error", "union_tag_invalid", "too_short") or isinstance(given, dict | list):
        return f"{message}."
    shown = repr(given) if len(repr(given)) <= _LONGEST_VALUE else f"{repr(given)[:_LONGEST_VALUE]}..."
    allowed = [word.strip("'") for word in context.get("expected", "").replace(" or ", ", ").split(", ")]
    hint = nearest(str(given), allowed) if kind == "literal_error" else ""
    return f"{message} (got {shown})." + (hint if "Did you mean" in hint else "")


def _keys(location: Sequence[str | int], values: Any) -> list[str]:
    """An error's location as keys of the file: without the tags of unions, which pydantic puts between them."""
    keys = []
    for part in location[:-1]:
        inside = values if isinstance(values, dict) else range(len(values)) if isinstance(values, list | tuple) else ()
        if part in inside:
            keys.append(str(part))
            values = values[part]
    return keys + [str(part) for part in location[-1:] if not str(part).startswith("tag:")]


def _known_keys(model: type[BaseModel], location: Sequence[str | int]) -> set[str]:
    """The keys of the model at a location; of a union, those of the member whose tag the location names."""
    models = _models_in(model)
    for part in location:
        fields = [member.model_fields[str(part)] for member in models if str(part) in member.model_fields]
        tagged = [
            member for member in models if any(part in _literals(field) for field in member.model_fields.values())
        ]
        # A mapping's key and a list's number are parts of a location without being fields.
        models = [inner for field in fields for inner in _models_in(field.annotation)] or tagged or models
    return {field.alias or name for member in models for name, field in member.model_fields.items()}


def _literals(field: Any) -> tuple[Any, ...]:
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else ()


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models_in(argument)]
