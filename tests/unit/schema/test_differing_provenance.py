"""What two provenances of a run tell of each other."""

from __future__ import annotations

import pytest

from tepo_lab.records.provenance import differences

RESOURCES = {"device": "cpu", "gpus": 0, "learners": 1, "threads": 1, "micro_batch_tokens": None}
TOLD = {
    "commit": "a",
    "versions": {"torch": "2.1"},
    "hardware": {"cpus": 2},
    "seeds": {"run": 1},
    "resources": RESOURCES,
}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, set()),
        ({"seeds": {"run": 2}}, set()),
        ({"commit": "b", "versions": {"torch": "2.2"}}, {"commit", "versions"}),
        ({"versions": {"torch": "2.1", "ray": "2.4"}}, set()),
        ({"resources": {**RESOURCES, "threads": 4}}, {"resources"}),
        ({"resources": {**RESOURCES, "micro_batch_tokens": 512}}, {"resources"}),
        ({"resources": {**RESOURCES, "device": "cuda"}}, {"device"}),
        ({"resources": {**RESOURCES, "device": "cuda", "gpus": 2, "learners": 2}}, {"device", "resources"}),
        ({"resources": {}}, set()),
        ({"resources": None}, set()),
    ],
)
def test_what_differs_is_named(changed, found):
    assert differences(TOLD, TOLD | changed) == found
    assert differences(TOLD | changed, TOLD) == found


def test_a_record_of_before_resources_were_told_does_not_differ_in_them():
    old = {key: value for key, value in TOLD.items() if key != "resources"}
    assert differences(old, TOLD) == set()
