"""Every figure of the registry: it loads, its arms are those of its sweeps, and runs record its metrics."""

from __future__ import annotations

import jsonschema
import pytest

from tepo_lab.execute.showing.listing import registry_listing
from tepo_lab.registry.json_schema import json_schema
from tepo_lab.registry.locations import find, names, read_yaml
from tepo_lab.registry.reports import FIGURES, load_report, resolve_report
from tepo_lab.schema.figure import FigureReport

NAMES = names("reports", FIGURES)

#: Metrics that every trained arm records at every step (`tepo_lab.train`, `LossOutput.metrics`).
RECORDED = {
    *("reward/mean", "rollout/response_tokens_mean", "seconds/step", "ratio/max", "entropy/change_mean"),
    *("actor/pg_clipfrac", "actor/grad_norm", "actor/entropy", "actor/ppo_kl"),
}


def figure(name: str) -> FigureReport:
    loaded = load_report(name)
    assert isinstance(loaded, FigureReport)
    return loaded


def test_the_figures_are_those_of_the_paper_and_ours():
    assert NAMES == ["bars", "cells", "dynamics", "figure2", "figure3", "forest", "importance"]
    assert [row["name"] for row in registry_listing(["figures"])["figures"]] == NAMES
    assert not set(NAMES) & set(names("reports"))


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_resolves_on_its_own_profiles_and_on_nano(name):
    loaded = figure(name)
    for profile in (*loaded.profiles, "nano"):
        resolved = resolve_report(loaded, profile)
        assert isinstance(resolved.report, FigureReport)
        arms = [row.run.spec.arm.name for row in resolved.rows]
        assert len(set(arms)) == len(arms) >= 2
    assert {plot.metric for plot in loaded.plots} <= RECORDED
    schema = jsonschema.Draft202012Validator(json_schema("figure"))
    assert [error.message for error in schema.iter_errors(read_yaml(find("reports", name, FIGURES)))] == []


def test_figures_2_and_3_show_what_the_papers_do():
    for name, metrics in (
        ("figure2", ["actor/pg_clipfrac", "seconds/step"]),
        ("figure3", ["reward/mean", "actor/grad_norm"]),
    ):
        assert [plot.metric for plot in figure(name).plots] == metrics
        assert figure(name).panels["arms"].arms == ("grpo_dapo", "tepo")


def test_a_file_that_says_what_to_draw_is_a_figure(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("{title: Mine, profile: nano, draw: cells, panels: {e: {sweep: panel-e}}}")
    assert figure(str(path)).draw == "cells"
