"""JSON Schemas of the YAML files, so that an editor completes and checks them."""

from __future__ import annotations

from typing import Any, Literal

from tepo_lab.registry.compose import GROUPS, ArmFile
from tepo_lab.schema.base import Strict
from tepo_lab.schema.figure import FigureReport
from tepo_lab.schema.profile import ProfileInfo, Resources
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.sweep import Sweep
from tepo_lab.schema.table import Report

FileKind = Literal["sweep", "arm", "profile", "report", "figure"]

_REFERENCE = {"type": "string", "pattern": r"\$\{.+\}", "description": "the value of another key: ${dotted.key}"}


def json_schema(kind: FileKind) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a kind of file in experiments/, sweeps/ or reports/."""
    makers = {"sweep": _sweep, "arm": _arm, "profile": _profile, "report": _report, "figure": _figure}
    made = makers[kind]()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"tepo-lab {kind}", **made}


def _sweep() -> dict[str, Any]:
    return _one_or_many(_without_name(_schema(Sweep)))


def _report() -> dict[str, Any]:
    return _one_or_many(_without_name(_schema(Report)))


def _figure() -> dict[str, Any]:
    return _one_or_many(_without_name(_schema(FigureReport)))


def _arm() -> dict[str, Any]:
    described = _schema(ArmFile)
    laid_over = _sections({"objective", *GROUPS})
    described["properties"] |= laid_over["properties"]
    described["$defs"] = described.get("$defs", {}) | laid_over["$defs"]
    return described


def _profile() -> dict[str, Any]:
    """Groups come by the defaults list; what the file sets itself is laid over them."""
    made = _sections(set(GROUPS))
    entry = {"type": ["string", "object"], "description": "`/group: choice`, or _self_"}
    own = {
        "defaults": {"type": "array", "items": entry, "description": "choices of the groups, in Hydra's form"},
        "profile": {"$ref": "#/$defs/ProfileInfo"},
        "resources": {"$ref": "#/$defs/Resources"},
    }
    definitions: dict[str, Any] = {}
    for model in (ProfileInfo, Resources):
        whole = _schema(model)
        definitions |= whole.pop("$defs", {}) | {model.__name__: whole}
    return {
        "type": "object",
        "properties": own | made["properties"],
        "required": ["profile"],
        "additionalProperties": False,
        "$defs": made["$defs"] | definitions,
    }


def _schema(model: type[Strict]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True)


def _without_name(schema: dict[str, Any]) -> dict[str, Any]:
    """The file's name is the name."""
    del schema["properties"]["name"]
    schema["required"] = [key for key in schema["required"] if key != "name"]
    return schema


def _one_or_many(schema: dict[str, Any]) -> dict[str, Any]:
    """`profile` is written as a name or as a list of names."""
    many = schema["properties"]["profile"]
    schema["properties"]["profile"] = {"anyOf": [{"type": "string"}, many], "description": many.pop("description", "")}
    return schema


def _sections(names: set[str]) -> dict[str, Any]:
    """Sections of a run as a file lays them over others: any part of them, and references for values."""
    whole = _schema(RunSpec)
    kept = {name: value for name, value in whole["properties"].items() if name in names}
    return {"properties": _partial(kept), "$defs": {name: _partial(each) for name, each in whole["$defs"].items()}}


def _partial(node: Any) -> Any:
    """A schema in which nothing is required and any plain value may be a reference."""
    if isinstance(node, list):
        return [_partial(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: _partial(value) for key, value in node.items() if key not in {"required", "discriminator", "default"}}
    if "oneOf" in made:
        # Parts of several alternatives may fit at once.
        made["anyOf"] = made.pop("oneOf")
    return {"anyOf": [made, _REFERENCE]} if made.get("type") in ("number", "integer", "boolean") else made
