"""`tepo-lab report` from a user's side, on a home of the paper's own profile and on incomplete homes."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tepo_lab.cli import app
from tepo_lab.errors import ConfigError
from tepo_lab.registry.locations import package_root
from tepo_lab.report.table.published import load_published
from tests.paper_home import paper_run

MODEL = "qwen2.5-7b"


def call(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments, "--home", str(home)])


def printed(home: Path, *arguments: str) -> str:
    done = call(home, *arguments)
    assert done.exit_code == 0, done.exception
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table 4's runs, and two of Table 1's on its other model, with the numbers that the paper prints."""
    home = tmp_path_factory.mktemp("home")
    tables = {name: load_published(package_root() / "reports" / "published", name) for name in ("table1", "table4")}

    def percents(table: str, model: str, row: str) -> dict[str, float]:
        published = tables[table]
        return {name: published.percent(None, model, row, name) or 0.0 for name in published.source.benchmarks}

    for seed in (1, 2):
        paper_run(home, "grpo_dapo", seed, (72, 132), percents("table4", MODEL, f"grpo_dapo@132:seed{seed}"))
        paper_run(home, "tepo", seed, (72,), percents("table4", MODEL, f"tepo@72:seed{seed}"))
    for arm in ("grpo_dapo", "tepo"):
        paper_run(home, arm, 2, (72,), percents("table1", "qwen3-14b", arm), "qwen3-14b")
    for profile in (MODEL, "qwen3-14b"):
        paper_run(home, "base", 0, (0,), percents("table1", profile, "base"), profile)
    return home


def test_table_4_is_one_object_with_rows_at_two_numbers_of_steps(home: Path) -> None:
    values = json.loads(printed(home, "table4", "--format", "json"))
    assert list(values) == ["table", "profile", "benchmarks", "base", "rows", "comparisons", "footer"]
    assert [(row["panel"], row["arm"], row["steps"], row["seeds"]) for row in values["rows"]][-3:] == [
        ("132-seed1", "grpo_dapo", 132, [1]),
        ("132-seed2", "grpo_dapo", 132, [2]),
        ("132-mean", "grpo_dapo", 132, [1, 2]),
    ]
    assert {row["steps"] for row in values["rows"]} == {72, 132}
    # TEPO's parent is not in the table; GRPO/DAPO is its nearest ancestor there, at the same 72 steps.
    assert [(one["panel"], one["arm"], one["parent"], one["steps"], one["seeds"]) for one in values["comparisons"]] == [
        ("72-seed1", "tepo", "grpo_dapo", 72, [1]),
        ("72-seed2", "tepo", "grpo_dapo", 72, [2]),
        ("72-mean", "tepo", "grpo_dapo", 72, [1, 2]),
    ]
    assert re.search(r"^TEPO \(Seed 2\) +GRPO/DAPO", printed(home, "table4"), re.MULTILINE)


def test_one_csv_has_one_header(home: Path) -> None:
    for name in ("table1", "table4"):
        rows = list(csv.reader(io.StringIO(printed(home, name, "--format", "csv"))))
        assert sum(row[0] == "table" for row in rows) == 1
        assert len({len(row) for row in rows}) == 1


def test_the_papers_rows_of_both_numbers_of_steps_stand_beside_ours(home: Path) -> None:
    values = json.loads(printed(home, "table4", "--against", "published", "--format", "json"))
    published = {row["panel"]: row["average"]["published"]["percent"] for row in values["rows"] if row["arm"] != "tepo"}
    assert published == {
        "72-seed1": 30.3,
        "72-seed2": 30.85,
        "72-mean": 30.58,
        "132-seed1": 31.73,
        "132-seed2": 31.69,
        "132-mean": 31.71,
    }
    last = values["rows"][-1]
    for name, cell in last["cells"].items():
        # Made from the paper's numbers: equal but for their truncation.
        assert abs(cell["published"]["difference"]) < 0.1, name
        assert cell["published"]["inside"]


def test_two_profiles_are_one_table_with_both_untrained_models(home: Path) -> None:
    values = json.loads(printed(home, "table1", "--against", "published", "--format", "json"))
    assert values["profile"] == "qwen2.5-7b, qwen3-14b"
    assert list(values["bases"]) == ["qwen2.5-7b", "qwen3-14b"]
    assert values["base"] == values["bases"]["qwen2.5-7b"]
    tepo = [row for row in values["rows"] if row["arm"] == "tepo"]
    assert [row["profile"] for row in tepo] == ["qwen2.5-7b", "qwen3-14b"]
    assert [row["average"]["published"]["percent"] for row in tepo] == [32.59, 44.02]
    missing = next(row for row in values["rows"] if row["arm"] == "gpg")
    assert missing["average"]["published"] == {"percent": 31.91, "difference": None, "inside": None}
    text = printed(home, "table1", "--against", "published")
    assert len(re.findall("^Profile qwen", text, re.MULTILINE)) == 2
    assert {(one["profile"], one["arm"]) for one in values["comparisons"]} >= {
        ("qwen2.5-7b", "tepo"),
        ("qwen3-14b", "tepo"),
    }


def test_other_settings_than_the_papers_are_not_set_beside_it(home: Path) -> None:
    done = call(home, "table4", "suite.benchmarks.omni_math.problems=2821", "--against", "published")
    assert "are not shown: omni_math has 2821 problems x 1 samples here and 2811 x 1 in the paper." in " ".join(
        done.stdout.split()
    )
    assert "Not one of the 8 runs" in done.stderr


def test_steps_to_a_target_of_the_training_reward(home: Path) -> None:
    values = json.loads(printed(home, "table4", "--target", "30", "--format", "json"))
    assert values["target"] == {"percent": 30.0, "metric": "reward/mean", "window": 5}
    # The reward is step / 200: the mean of five steps is at 30 % two steps after step 60.
    assert [(row["arm"], row["reached"], row["steps"]["mean"]) for row in values["rows"]] == [
        ("grpo_dapo", 2, 62.0),
        ("tepo", 2, 62.0),
    ]
    first = values["rows"][0]["seeds"][0]
    assert (first["step"], first["last_step"], first["tokens"], first["seconds"]) == (62, 132, 62000.0, 21700.0)
    assert [(one["arm"], one["step"]) for one in values["evaluated"]] == [
        ("grpo_dapo", 72),
        ("grpo_dapo", 132),
        ("tepo", 72),
    ]
    # TEPO was trained for 72 steps only.
    text = printed(home, "table4", "--target", "50")
    assert "1: not reached by 72, 2: not reached by 72" in text
    assert "1: 102, 2: 102" in text


def test_each_arm_is_read_once_at_an_equal_budget(home: Path) -> None:
    values = json.loads(printed(home, "table4", "--equal", "tokens", "--format", "json"))
    assert [row["panel"] for row in values["rows"]] == [
        panel for panel in ("72-seed1", "72-seed2", "72-mean") for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table4", "--pass-at", "64"), "pass@64 needs 64 samples of a problem; the most that a benchmark has is 32"),
        (("table4", "--pass-at", "0"), "give numbers of samples from 1 up"),
        (("table4", "--pass-at", "two"), "give numbers of samples from 1 up"),
        (("table4", "--window", "3"), "--window belongs to --target"),
        (("table4", "--target", "30", "--pass-at", "1"), "--pass-at and --target: give one"),
        (("table4", "--target", "0"), "--target 0: give a percentage above 0"),
        (("table4", "--target", "30", "--metric", "aime24"), "choosing a step by a benchmark is refused"),
        (("figure2", "--target", "30"), "figure2 is a figure"),
        (("figure2", "--equal", "tokens"), "figure2 is a figure"),
        (("figure2", "--page"), "figure2 is a figure"),
        (("figure2", "--format", "json"), "figure2 is a figure"),
        (("figure2", "--out", "f.jpg"), "figures are written as .png, .svg, .pdf"),
        (("figure9",), "'figure9'"),
        (("table3", "--out", "t.png"), "--out is for figures and pages"),
    ],
)
def test_options_that_do_not_go_together_are_refused(home: Path, arguments: tuple[str, ...], message: str) -> None:
    done = call(home, *arguments)
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
    assert done.stdout == ""


@pytest.mark.parametrize("arguments", [("table3",), ("figure2",), ("table4", "--target", "5")])
def test_a_home_without_runs_is_an_error_that_names_it(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    for place, why in ((tmp_path, "it holds no run at all"), (tmp_path / "tpyo", "there is no such folder")):
        done = call(place, *arguments)
        assert isinstance(done.exception, ConfigError)
        assert f"--home {place} has no run of {arguments[0]}: {why}. tepo-lab run " in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_home_with_other_runs_prints_the_table_and_a_note(home: Path) -> None:
    done = call(home, "table2")
    assert done.exit_code == 0
    assert "Not one of the 8 runs under" in done.stderr
    assert done.stdout.count("not run") > 20


def test_a_profile_that_was_not_asked_for_is_noted(tmp_path: Path) -> None:
    percents = dict.fromkeys(("sum6", "mix8", "times8", "sum3", "mix4", "mix6", "mix7"), 40.0)
    paper_run(tmp_path, "tepo", 1, (20,), percents, "nano")
    note = "No run of qwen2.5-7b is in the home: this is of nano; profile=NAME asks for another profile."
    assert note in printed(tmp_path, "table3", "--panel", "e")
    assert note in json.loads(printed(tmp_path, "table3", "--format", "json"))["footer"]["notes"]
    assert note not in printed(tmp_path, "table3", "profile=nano")


def test_choosing_the_best_step_on_the_test_set_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("{title: Mine, profile: nano, panels: {e: {sweep: panel-e, steps: best}}}")
    done = call(tmp_path, str(mine))
    assert isinstance(done.exception, ConfigError)
    assert "panels.e.steps" in str(done.exception)
