"""The fit of reward to entropy, and all checks as text, JSON and a figure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tepo_lab.records.files import RunFolder, append_line, write_json
from tepo_lab.report.figures.style import save
from tepo_lab.theory import report, softmax
from tepo_lab.theory.figure import draw
from tepo_lab.theory.nano_run import Tokens
from tepo_lab.theory.reading import reading
from tepo_lab.theory.report import Theory, check_theory
from tepo_lab.theory.reward_fit import check_fits, fit, fit_runs
from tests.golden_files import assert_golden

STATEMENTS = ["Eq. 1", "Lemma 3.1", "Lemma 3.2", "Theorem 3.1", "Eq. 18, 19", "R = -a exp(H) + b"]


def write_run(home: Path, name: str, a: float, b: float, steps: int = 8) -> None:
    folder = RunFolder(home / "runs" / name)
    write_json(folder.run_file, {"id": name})
    for step in range(1, steps + 1):
        entropy = 1 / step
        values = {"reward/mean": b - a * np.exp(entropy), "actor/entropy": entropy}
        append_line(folder.metrics_file, {"step": step, **values})
    append_line(folder.metrics_file, {"step": steps + 1, "reward/mean": 0.5, "actor/entropy": None})


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Theory:
    """Every check on few cases, the run's tokens made up."""
    random = np.random.default_rng(0)
    step = np.repeat([1, 2], 20)
    columns = (random.standard_normal(40), -random.random(40), random.random(40), random.random(40))
    monkeypatch.setattr(report, "run_nano", lambda seed: Tokens(step, step, *columns))
    monkeypatch.setattr(report, "gradients", lambda stream: softmax.gradients(stream, 5))
    monkeypatch.setattr(report, "optima", lambda stream: softmax.optima(stream, 2))
    monkeypatch.setattr(report, "updates", lambda stream: softmax.updates(stream, 200))
    write_run(tmp_path, "one", 0.2, 0.9)
    write_run(tmp_path, "two", -0.1, 0.5)
    write_run(tmp_path, "short", 0.2, 0.9, steps=3)
    return check_theory(tmp_path)


def test_the_fit_finds_the_line(tmp_path: Path) -> None:
    write_run(tmp_path, "one", 0.2, 0.9)
    (found,) = fit_runs(tmp_path)
    assert (found.a, found.b, found.r_squared) == pytest.approx((0.2, 0.9, 1.0))
    assert found.to_dict()["steps"] == 8


def test_an_entropy_that_does_not_vary_fits_no_line() -> None:
    assert fit("flat", np.array([0.1, 0.2]), np.array([1.0, 1.0])) is None


def test_a_home_without_runs_says_why_the_fit_is_missing(tmp_path: Path) -> None:
    check = check_fits(fit_runs(tmp_path), tmp_path)
    assert (check.cases, check.share) == (0, None)
    assert "holds no run with 5 steps or more" in check.note


def test_the_table_has_a_line_for_each_check(checked: Theory) -> None:
    text = checked.text()
    lines = text.partition("What the numbers say")[0].splitlines()
    assert lines[2].split()[:3] == ["Source", "Statement", "Among"]
    assert len([line for line in lines if line.startswith("Theorem 3.1")]) == 13
    (law,) = [line for line in lines if line.startswith("R = -a exp(H) + b")]
    assert "runs of the home" in law
    assert "50.0 %" in law
    assert "median a 0.05" in law


@pytest.mark.parametrize("form", ["text", "json"])
def test_golden(checked: Theory, tmp_path: Path, form: str) -> None:
    """The rendering of made-up counts: what a machine measures differs in its last digits."""
    numbers = iter(range(1, 1000))
    checks = [
        replace(check, cases=100 * number, holds=37 * number, values=dict.fromkeys(check.values, 1 / number))
        for check, number in zip(checked.checks, numbers, strict=False)
    ]
    made_up = replace(checked, checks=(*checks[:-1], check_fits([], Path("home"))))
    rendered = made_up.text() if form == "text" else json.dumps(made_up.to_dict(), indent=1, ensure_ascii=False)
    assert_golden("theory/theory", form, rendered)


def test_the_reading_has_a_sentence_for_each_statement(checked: Theory) -> None:
    said = reading(checked.checks)
    assert [words.partition(" (")[0] for words in said] == STATEMENTS
    eq1, lemma = (next(each for each in checked.checks if each.source == name) for name in ("Eq. 1", "Lemma 3.2"))
    assert f"as printed it has autograd's sign in {eq1.holds} of {eq1.cases}" in said[0]
    assert f"{lemma.holds} of {lemma.cases}" in said[2]
    assert "so no law" in said[3]
    assert "a > 0 in 1 of 2 runs" in said[5]


def test_the_json_holds_counts(checked: Theory) -> None:
    values = json.loads(json.dumps(checked.to_dict(), allow_nan=False))
    assert {each["source"] for each in values["checks"]} == set(STATEMENTS)
    for each in values["checks"]:
        assert 0 <= each["holds"] <= each["cases"]
        assert each["share"] == pytest.approx(each["holds"] / each["cases"], abs=1e-6)
    assert [each["run"] for each in values["runs"]] == ["one", "two"]


def test_the_figure_has_six_panels_and_can_be_saved(checked: Theory, tmp_path: Path) -> None:
    figure = draw(checked).figure
    assert [axes.get_title() for axes in figure.axes] == [
        "Eq. 1: gradient of the entropy",
        "Lemma 3.1: the optimum's probabilities",
        "Theorem 3.1: share with ΔH < 0 where A > 0",
        "... by both",
        "Eq. 18, 19 on a nano run",
        "R = -a exp(H) + b",
    ]
    save(figure, tmp_path / "theory.svg")
    assert (tmp_path / "theory.svg").read_text().startswith("<?xml")
