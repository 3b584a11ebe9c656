"""JSON Schemas of the YAML files, so that an editor completes and checks them."""

from __future__ import annotations

from typing import Any, Literal

from tepo_lab.registry.compose import GROUPS, ArmFile
from tepo_lab.schema.base import Strict
from tepo_lab.schema.figure import FigureReport
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.sweep import Sweep
from tepo_lab.schema.table import Report

FileKind = Literal["sweep", "arm", "profile", "report", "figure"]

_REFERENCE = {"type": "string", "pattern": r"\$\{.+\}", "description": "the value of another key: ${dotted.key}"}


def json_schema(kind: FileKind) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a kind of file in experiments/, sweeps/ or reports/."""
    models: dict[str, type[Strict]] = {"sweep": Sweep, "report": Report, "figure": FigureReport}
    made = _named_by_file(models[kind]) if kind in models else _arm() if kind == "arm" else _profile()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"tepo-lab {kind}", **made}


def _schema(model: type[Strict]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True)


def _named_by_file(model: type[Strict]) -> dict[str, Any]:
    """The schema without `name`, which is the file's, and with `profile` as a name or a list of names."""
    made = _schema(model)
    del made["properties"]["name"]
    made["required"] = [key for key in made["required"] if key != "name"]
    many = made["properties"]["profile"]
    made["properties"]["profile"] = {"anyOf": [{"type": "string"}, many], "description": many.pop("description", "")}
    return made


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
    # What the file sets of these it sets as a whole, unlike the groups' sections.
    definitions = _schema(RunSpec)["$defs"]
    own_definitions = {name: definitions[name] for name in ("ProfileInfo", "Estimates", "Resources")}
    return {
        "type": "object",
        "properties": own | made["properties"],
        "required": ["profile"],
        "additionalProperties": False,
        "$defs": made["$defs"] | own_definitions,
    }


def _sections(names: set[str]) -> dict[str, Any]:
    """Sections of a run as a file lays them over others: any part of them, and references for values."""
    run = _schema(RunSpec)
    properties = {name: value for name, value in run["properties"].items() if name in names}
    return {
        "properties": _partial(properties),
        "$defs": {name: _partial(definition) for name, definition in run["$defs"].items()},
    }


def _partial(node: Any) -> Any:
    """A schema in which nothing is required and any plain value may be a reference."""
    if isinstance(node, list):
        return [_partial(member) for member in node]
    if not isinstance(node, dict):
        return node
    made = {key: _partial(value) for key, value in node.items() if key not in {"required", "discriminator", "default"}}
    if "oneOf" in made:
        # Parts of several alternatives may fit at once.
        made["anyOf"] = made.pop("oneOf")
    return {"anyOf": [made, _REFERENCE]} if made.get("type") in ("number", "integer", "boolean") else made
