"""The paper's numbers as data, and where they may stand beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_home import SyntheticHome, random_columns

from tepo_lab.errors import ConfigError, DataError
from tepo_lab.report.render.formats import render
from tepo_lab.report.table.published import PublishedTable, against_published, load_published, why_not_comparable
from tepo_lab.schema.profile import Suite
from tests.golden_files import assert_golden

FOLDER = Path(__file__).resolve().parents[4] / "reports" / "published"


@pytest.fixture(scope="module")
def published() -> PublishedTable:
    return load_published(FOLDER, "table3")


@pytest.fixture(scope="module")
def paper_suite(published: PublishedTable) -> Suite:
    """The paper's suite, as a profile would declare it."""
    benchmarks = {
        name: {
            "label": benchmark.label,
            "problems": benchmark.problems,
            "samples": benchmark.samples,
            "temperature": 0.6 if benchmark.samples > 1 else 0.0,
            "data": {"kind": "dataset", "path": "problems.jsonl"},
        }
        for name, benchmark in published.source.benchmarks.items()
    }
    return Suite.model_validate({"name": "paper", "max_new_tokens": 8192, "benchmarks": benchmarks})


@pytest.fixture
def paper_home(tmp_path: Path, paper_suite: Suite) -> SyntheticHome:
    home = SyntheticHome(tmp_path, paper_suite)
    home.want("tepo", (1,))
    home.run("tepo", 1, columns=random_columns(paper_suite, 0.33, 1), steps=72)
    return home


def test_all_of_the_paper_is_there() -> None:
    tables = {name: load_published(FOLDER, name) for name in ("table1", "table2", "table3", "table4")}
    assert {name: len(table.percents) for name, table in tables.items()} == {
        "table1": 144,
        "table2": 72,
        "table3": 176,
        "table4": 72,
    }
    assert tables["table3"].percent("e", "qwen2.5-7b", "tepo", "avg") == 32.59
    assert tables["table1"].percent(None, "qwen3-14b", "tepo", "avg") == 44.02


def test_the_papers_average_is_over_its_8834_generations(published: PublishedTable) -> None:
    benchmarks = published.source.benchmarks
    generations = {name: benchmarks[name].problems * benchmarks[name].samples for name in benchmarks}
    assert sum(generations.values()) == 8834
    for row in ("tepo", "tepo_no_kl", "tepo_kl_both"):
        printed = {name: published.percent("e", "qwen2.5-7b", row, name) for name in [*generations, "avg"]}
        weighted = sum((printed[name] or 0) * count for name, count in generations.items()) / 8834
        assert weighted == pytest.approx(printed["avg"], abs=0.05)


def test_rows_outside_all_panels_are_found_in_every_panel(published: PublishedTable) -> None:
    assert published.percent("a", "qwen2.5-7b", "tepo_no_kl", "avg") == 32.21
    assert published.percent("a", "qwen2.5-7b", "tepo", "avg") is None


def test_beside_the_papers_profile_and_suite(paper_home: SyntheticHome, published: PublishedTable) -> None:
    table = against_published(paper_home.table(profile="qwen2.5-7b", steps=72), published)
    row = table.rows[0]
    cell, average = row.published["olympiadbench"], row.published["avg"]
    assert (cell.percent, cell.inside) == (40.44, False)
    assert cell.difference == pytest.approx(row.scores["olympiadbench"].percent - 40.44, abs=1e-4)
    assert (average.percent, average.inside) == (32.59, True)
    assert "p 32.59" in render(table, "text")
    assert table.to_dict()["rows"][0]["cells"]["olympiadbench"]["published"]["percent"] == 40.44


def test_golden(paper_home: SyntheticHome, published: PublishedTable) -> None:
    paper_home.want("tepo_no_kl", (1,))
    table = against_published(paper_home.table(profile="qwen2.5-7b", steps=72), published)
    assert_golden("report/published", "json", render(table, "json"))


def test_where_they_do_not_belong_the_table_has_a_note_instead(
    full_home: SyntheticHome, published: PublishedTable
) -> None:
    table = full_home.table("base")
    reason = why_not_comparable(table, published)
    assert reason == "profile nano is not the paper's (qwen2.5-7b)"
    shown = against_published(table, published)
    assert (shown.rows, shown.published) == (table.rows, None)
    assert reason in shown.notes[-1]
    reason = why_not_comparable(full_home.table("base", profile="qwen2.5-7b"), published)
    assert reason == "the paper has no benchmark greedy"


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (8, "aime24 has 30 problems x 8 samples here and 30 x 32 in the paper"),
        (None, "the paper's aime24 is missing from the suite"),
    ],
)
def test_never_beside_another_suite(
    tmp_path: Path, paper_suite: Suite, published: PublishedTable, samples: int | None, reason: str
) -> None:
    values = paper_suite.model_dump()
    if samples is None:
        del values["benchmarks"]["aime24"]
    else:
        values["benchmarks"]["aime24"]["samples"] = samples
    home = SyntheticHome(tmp_path, Suite.model_validate(values))
    home.want("tepo", (1,))
    assert why_not_comparable(home.table(profile="qwen2.5-7b"), published) == reason


def test_other_steps_are_noted(tmp_path: Path, paper_suite: Suite, published: PublishedTable) -> None:
    home = SyntheticHome(tmp_path, paper_suite)
    home.want("tepo", (1,))
    home.run("tepo", 1, columns=random_columns(paper_suite, 0.3, 2), steps=40)
    table = against_published(home.table(profile="qwen2.5-7b", steps=40), published)
    assert table.notes[-1] == "Rows are read at step 40, the paper's stand at step 72."


@pytest.mark.parametrize(
    ("file", "content", "kind"),
    [
        ("table3.csv", None, DataError),
        ("table3.csv", b"panel,model\na,b\n", DataError),
        ("table3.csv", b"panel,model,row,benchmark,percent\na,b,c,d\n,,,,x\n", DataError),
        ("table3.csv", b"\xff", DataError),
        ("source.yaml", None, DataError),
        ("source.yaml", b"paper: [", DataError),
        ("source.yaml", b"\xff", DataError),
        ("source.yaml", b"", ConfigError),
        ("source.yaml", b"paper: x", ConfigError),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, file: str, content: bytes | None, kind: type[Exception]) -> None:
    for name in ("table3.csv", "source.yaml"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(kind, match=file):
        load_published(tmp_path, "table3")
