"""From a report to the rows it asks for."""

from __future__ import annotations

import pytest

from tepo_lab.errors import ConfigError
from tepo_lab.registry.expand import load_sweep
from tepo_lab.registry.reports import (
    load_report,
    profiles_asked,
    resolve_report,
    shown_by,
)


def test_table_3_has_its_header_row_and_five_panels_with_the_papers_rows():
    table = resolve_report(load_report("table3"), "qwen2.5-7b")
    shown = [(row.panel, row.run.spec.arm.name) for row in table.rows if not row.extra]
    assert shown[0] == (None, "tepo_no_kl")
    assert [sum(panel == name for panel, _ in shown) for name in "abcde"] == [5, 6, 4, 2, 4]
    assert {row.run.spec.arm.name for row in table.rows if row.extra} == {
        f"tepo_kl_{beta}_k1" for beta in ("1", "0.1", "0.01", "0.001", "0.0001")
    }
    assert (table.steps, table.profile, table.base.spec.arm.name) == (72, "qwen2.5-7b", "base")


def test_rows_of_tables_are_the_runs_of_their_sweeps():
    from tepo_lab.registry.expand import expand

    for name in ("table1", "table2", "table3", "table4"):
        sweep, rest = load_sweep(name)
        families = {run.family for run in expand(sweep, rest).runs}
        for profile in sweep.profiles:
            table = resolve_report(load_report(name), profile)
            assert {row.run.family for row in table.rows if not row.extra} <= families
            assert table.base.family in families


def test_table_4_is_one_table_of_rows_at_two_numbers_of_steps():
    table = resolve_report(load_report("table4"), "qwen2.5-7b")
    shown = [(row.panel, row.run.spec.arm.name, row.seeds, row.steps, row.published) for row in table.rows]
    assert shown[:2] == [
        ("72-seed1", "grpo_dapo", (1,), 72, "grpo_dapo@72:seed1"),
        ("72-seed1", "tepo", (1,), 72, "tepo@72:seed1"),
    ]
    assert shown[6:] == [
        ("132-seed1", "grpo_dapo", (1,), 132, "grpo_dapo@132:seed1"),
        ("132-seed2", "grpo_dapo", (2,), 132, "grpo_dapo@132:seed2"),
        ("132-mean", "grpo_dapo", (1, 2), 132, "grpo_dapo@132:mean"),
    ]
    assert all(row.exact for row in table.rows)


def test_rows_that_an_override_makes_one_stand_once():
    table = resolve_report(load_report("table4"), "nano", ["trainer.steps=3"])
    assert [(row.panel, row.run.spec.arm.name, row.steps) for row in table.rows] == [
        (panel, arm, 3) for panel in ("72-seed1", "72-seed2", "72-mean") for arm in ("grpo_dapo", "tepo")
    ]


def test_a_row_is_called_the_same_in_every_report():
    labels = [
        {row.run.spec.arm.name: row.label for row in resolve_report(load_report(name), "nano").rows}
        for name in ("table3", "panel-c", "importance")
    ]
    assert [each["grpo_dapo"] for each in labels] == ["w. GRPO/DAPO (token-level)"] * 3
    assert [each["gpg"] for each in labels] == ["w. GPG (remove IS)"] * 3


def test_seeds_are_those_found_unless_asked_for_or_just_run():
    report = load_report("table3")
    assert {row.seeds for row in resolve_report(report, "nano", panels=["e"]).rows} == {()}
    assert {row.seeds for row in resolve_report(report, "nano", ["seeds=[7]"], panels=["e"]).rows} == {(7,)}
    assert {row.seeds for row in resolve_report(report, "nano", panels=["e"], expect_seeds=True).rows} == {(1, 2, 3)}


def test_a_panel_alone_has_the_rows_above_it_where_they_were_run():
    report = load_report("table3")
    rows = resolve_report(report, "nano", panels=["a"]).rows
    assert (rows[0].panel, rows[0].run.spec.arm.name, rows[0].extra) == (None, "tepo_no_kl", True)
    assert [row.extra for row in rows[1:6]] == [False] * 5
    # Panel E has that row itself.
    assert {row.panel for row in resolve_report(report, "nano", panels=["e"]).rows} == {"e"}


def test_a_sweep_with_axes_has_a_row_for_each_point():
    table = resolve_report(load_report("clip"), "nano")
    assert len(table.rows) == 10
    assert table.rows[0].label == "TEPO w/o KL [clip_low=0.0003, clip_high=0.0004]"
    assert len({row.run.family for row in table.rows}) == 10


def test_rows_of_an_exploratory_sweep_say_that_they_were_selected(sweep_file):
    path = sweep_file(
        "{title: T, arms: [tepo], axes: {objective.penalty.coef: {uniform: [0, 1], samples: 2}}, search: {validation:"
        " {held: {label: Held, problems: 5, data: {kind: chain, split: validation, terms: [6]}}}}}"
    )
    labels = [row.label for row in resolve_report(load_report(path)).rows]
    assert all(label.endswith("(exploratory, selected on validation/average)") for label in labels)
    assert len(labels) == 2


def test_which_report_shows_a_sweep(sweep_file):
    assert shown_by("panel-b", load_sweep("panel-b")[0]) == ("table3", ["b"])
    assert shown_by("table3", load_sweep("table3")[0]) == ("table3", [])
    assert shown_by("seeds", load_sweep("seeds")[0]) == ("seeds", [])
    path = sweep_file("{title: T, arms: [tepo], feeds: [table3]}", "panel-b")
    assert shown_by(path, load_sweep(path)[0]) == (path, [])


def test_an_override_that_takes_out_the_arm_of_a_row_is_named():
    with pytest.raises(
        ConfigError, match=r"^arms=\[tepo\]: arm 'tepo_no_kl', a row of head, the rows above all panels"
    ):
        resolve_report(load_report("table3"), None, ["arms=[tepo]"])
    with pytest.raises(ConfigError, match=r"^arms=\[tepo\]: arm 'tepo_kl_1', a row of panel 'a', is left out"):
        resolve_report(load_report("table3"), None, ["arms=[tepo]"], panels=["a"])


@pytest.mark.parametrize(
    ("profile", "panels", "name"),
    [("nano", ["f"], "'f'"), ("nan", [], "'nan'")],
)
def test_unknown_panels_and_profiles_are_named(profile, panels, name):
    with pytest.raises(ConfigError, match=name):
        resolve_report(load_report("table3"), profile, panels=panels)


def test_labels_of_arms_that_an_override_takes_out_are_no_mistake():
    report = load_report("table3")
    panel = report.panels["e"].model_copy(update={"arms": None})
    short = report.model_copy(update={"panels": {"e": panel}, "head": None})
    assert [row.label for row in resolve_report(short, "nano", ["arms=[tepo]"]).rows] == ["TEPO"]


def test_profiles_are_taken_from_the_overrides():
    assert profiles_asked(["a=1", "profile=nano"]) == (("nano",), ["a=1"])
    assert profiles_asked(["profile=[nano, qwen2.5-7b]"]) == (("nano", "qwen2.5-7b"), [])
    assert profiles_asked(["a=1"]) == ((), ["a=1"])
