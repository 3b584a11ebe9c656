"""The JSON Schemas accept the registry's own files, and refuse what the models refuse."""

from __future__ import annotations

import jsonschema
import pytest

from tepo_lab.registry.json_schema import json_schema
from tepo_lab.registry.locations import find, names, parse_yaml, read_yaml

FILES = [
    *(("sweep", find("sweeps", name)) for name in names("sweeps")),
    *(("report", find("reports", name)) for name in names("reports")),
    *(("arm", find("experiments", name, "arm")) for name in names("experiments", "arm")),
    *(("profile", find("experiments", name, "profile")) for name in names("experiments", "profile")),
]


@pytest.fixture(scope="module")
def validators():
    kinds = ("sweep", "report", "arm", "profile")
    for kind in kinds:
        jsonschema.Draft202012Validator.check_schema(json_schema(kind))
    return {kind: jsonschema.Draft202012Validator(json_schema(kind)) for kind in kinds}


def test_every_file_of_the_registry_is_valid(validators):
    errors = {path: [error.message for error in validators[kind].iter_errors(read_yaml(path))] for kind, path in FILES}
    assert len(errors) == len(FILES) > 50
    assert {path: messages for path, messages in errors.items() if messages} == {}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("sweep", "{title: T, arms: [tepo], armz: [tepo]}"),
        ("sweep", "{title: T, arms: tepo}"),
        ("sweep", "{arms: [tepo]}"),
        ("sweep", "{title: T, arms: [tepo], axes: {a: {loguniform: [1, 2]}}}"),
        ("arm", "{label: a, objective: {ratio: tokn}}"),
        ("arm", "{label: a, objective: {clip_low: high}}"),
        ("arm", "{parent: tepo}"),
        ("report", "{title: T, profile: nano, panels: {}}"),
        ("profile", "{trainer: {steps: many}}"),
    ],
)
def test_a_wrong_file_is_not(validators, kind, text):
    assert not validators[kind].is_valid(parse_yaml(text))
