"""Values without a source are told, and refused in the package."""

from __future__ import annotations

import pytest

from tepo_lab.errors import ConfigError
from tepo_lab.registry.compose import unsourced_notes
from tepo_lab.registry.expand import expand, load_sweep
from tepo_lab.registry.locations import names

WIDE = "{label: Wide, parent: tepo_no_kl, varies: [objective.clip_high], objective: {clip_high: 0.4}%s}"


def test_every_value_in_the_package_has_a_source():
    assert unsourced_notes(names("experiments", "arm")) == []


def test_a_users_arm_without_sources_is_run_and_noted(user_registry, sweep_file):
    folder = user_registry(**{"experiments/arm/wide": WIDE % ""})
    expansion = expand(*load_sweep(sweep_file("{title: T, arms: [wide, tepo]}")))
    assert len(expansion.runs) == 3
    assert expansion.notes == [
        f"{folder / 'experiments/arm/wide.yaml'}: no source for objective.clip_high; add it under sources: "
        "{objective.clip_high: {chosen: why}}, or paper, where and says."
    ]


def test_a_child_of_such_an_arm_is_noted_under_its_parent(user_registry):
    child = "{label: Child, parent: wide, varies: [objective.clip_low], objective: {clip_low: 0.1}, sources: %s}"
    source = "{objective.clip_low: {chosen: half}}"
    folder = user_registry(**{"experiments/arm/wide": WIDE % "", "experiments/arm/child": child % source})
    (note,) = unsourced_notes(["child"])
    assert note.startswith(f"{folder / 'experiments/arm/wide.yaml'}: no source for objective.clip_high;")


def test_a_source_of_a_key_above_is_enough(user_registry):
    user_registry(**{"experiments/arm/wide": WIDE % ", sources: {objective: {chosen: tried}}"})
    assert unsourced_notes(["wide"]) == []


@pytest.mark.parametrize("source", ["{}", "{paper: '2604.12736'}", "{paper: a, where: b}"])
def test_a_source_that_says_nothing_is_none(source, user_registry):
    user_registry(**{"experiments/arm/wide": WIDE % f", sources: {{objective.clip_high: {source}}}"})
    with pytest.raises(ConfigError, match="give paper, where and says; or chosen"):
        unsourced_notes(["wide"])


def test_the_package_refuses_such_an_arm(user_registry, monkeypatch):
    folder = user_registry(**{"experiments/arm/wide": WIDE % ""})
    monkeypatch.setattr("tepo_lab.registry.compose.package_root", lambda: folder)
    with pytest.raises(ConfigError, match=r"wide.yaml: no source for objective.clip_high"):
        unsourced_notes(["wide"])
