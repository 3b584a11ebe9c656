"""Which rows are compared with their parents, and what the comparisons are called."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from synthetic_home import REPORT, RIGHT, SyntheticHome

from tepo_lab.report.figures.data import figure_lines
from tepo_lab.report.figures.draw import bars, forest
from tepo_lab.report.render.formats import render
from tepo_lab.report.table.build import build_table
from tepo_lab.report.table.columns import comparison_name
from tepo_lab.report.table.frame import Table
from tepo_lab.schema.figure import FigureReport

PANELS = {
    "one": {"title": "First", "sweep": "panel-e"},
    "seed1": {"title": "Seed 1", "sweep": "panel-e"},
    "early": {"title": "Early", "sweep": "panel-e"},
}


@pytest.fixture
def panels(home: SyntheticHome) -> SyntheticHome:
    """An arm and its parent in three panels: three seeds with a label of its own, seed 1 alone, and at another step."""
    for panel, seeds, steps, label in (
        ("one", (1, 2, 3), None, "Mine"),
        ("seed1", (1,), None, "MASKED"),
        ("early", (1, 2, 3), 5, "MASKED"),
    ):
        for arm in ("plain", "masked"):
            row = home.want(arm, seeds, panel)
            named = replace(row, steps=steps, label=label if arm == "masked" else row.label)
            home.rows[f"{arm}-{panel}"] = replace(named, ancestors=("plain",) if arm == "masked" else ())
    for arm in ("plain", "masked"):
        del home.rows[arm]
        for seed in (1, 2, 3):
            home.run(arm, seed, right=RIGHT | {"sampled": [4, seed, 0]}, parent="plain" if arm == "masked" else None)
    return home


def table_of(home: SyntheticHome) -> Table:
    report = REPORT.model_validate(REPORT.model_dump(by_alias=True) | {"panels": PANELS})
    return build_table(report, [home.wanted()], home=home.path, draws=100)


def test_each_panels_pair_is_compared_by_its_own_rows(panels: SyntheticHome) -> None:
    compared = table_of(panels).comparisons
    assert [(one.panel, one.seeds, one.steps, one.label) for one in compared] == [
        ("one", (1, 2, 3), 20, "Mine"),
        ("seed1", (1,), 20, "MASKED"),
        ("early", (), 5, "MASKED"),
    ]
    assert compared[2].reason == "MASKED: not evaluated at step 5"


def test_the_same_evaluations_are_compared_once(panels: SyntheticHome) -> None:
    for arm in ("plain", "masked"):
        panels.rows[f"{arm}-early"] = replace(panels.rows[f"{arm}-early"], steps=20)
    assert [one.panel for one in table_of(panels).comparisons] == ["one", "seed1"]


def test_comparisons_of_one_name_are_distinguished_in_every_format(panels: SyntheticHome) -> None:
    table = table_of(panels)
    assert [comparison_name(one, table) for one in table.comparisons] == [
        "Mine (First, 20 steps)",
        "MASKED (Seed 1, 20 steps)",
        "MASKED (Early, 5 steps)",
    ]
    for form in ("text", "md", "latex", "html"):
        assert "MASKED (Early, 5 steps)" in render(table, form)
    lines = json.loads(render(table, "json"))["comparisons"]
    assert [(line["panel"], line["steps"], line["seeds"]) for line in lines] == [
        ("one", 20, [1, 2, 3]),
        ("seed1", 20, [1]),
        ("early", 5, []),
    ]
    (axes,) = forest(table, name="f", title="Differences").figure.axes
    assert axes.get_yticklabels()[1].get_text() == "MASKED (Seed 1, 20 steps)\nagainst PLAIN"


def test_a_pair_shown_once_names_no_panel(panels: SyntheticHome) -> None:
    panels.rows = {name: row for name, row in panels.rows.items() if row.panel == "seed1"}
    table = table_of(panels)
    assert [comparison_name(one, table) for one in table.comparisons] == ["MASKED"]


def test_bars_show_a_repeated_row_once(home: SyntheticHome) -> None:
    home.want("plain", (1,), panel=None)
    home.rows["again"] = replace(home.rows["plain"], panel="e")
    home.rows["renamed"] = replace(home.rows["plain"], panel="e", label="Other")
    home.run("plain", 1, right=RIGHT)
    table = home.table()
    axes = bars(table, name="f", title="Scores").figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["PLAIN (seed 1)", "Other (seed 1)"]
    asked = FigureReport.model_validate(
        {"name": "f", "title": "Scores", "profile": "nano", "draw": "bars", "panels": PANELS}
    )
    lines = list(figure_lines(asked, [], lambda: table, profile="nano", home=home.path))
    assert [line["label"] for line in lines if line["series"] == "avg"] == ["PLAIN", "Other"]
