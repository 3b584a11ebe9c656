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
from tepo_lab.theory.nano_run import Tokens
from tepo_lab.theory.plots import draw
from tepo_lab.theory.report import Theory, check_theory, reading
from tepo_lab.theory.reward_fit import check_fits, fit_line, fit_runs
from tests.golden_files import assert_golden

STATEMENTS = ["Eq. 1", "Lemma 3.1", "Lemma 3.2", "Theorem 3.1", "Eq. 18, 19", "R = -a exp(H) + b"]


def write_run(home: Path, name: str, a: float, b: float, steps: int = 8) -> None:
    folder = RunFolder(home / "runs" / name)
    spec = {"arm": {"name": name}, "trainer": {"steps": steps}, "seed": 1}
    write_json(folder.run_file, {"id": name, "family": name, "spec": spec})
    for step in range(1, steps + 1):
        entropy = 1 / step
        values = {"reward/mean": b - a * np.exp(entropy), "actor/entropy": entropy}
        append_line(folder.metrics_file, {"step": step, **values})
    append_line(folder.metrics_file, {"step": steps + 1, "reward/mean": 0.5, "actor/entropy": None})


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Theory:
    """Every check on few cases, the run's tokens made up."""
    home = tmp_path_factory.mktemp("home")
    random = np.random.default_rng(0)
    step = np.repeat([1, 2], 20)
    columns = (random.standard_normal(40), -random.random(40), random.random(40), random.random(40))
    write_run(home, "one", 0.2, 0.9)
    write_run(home, "two", -0.1, 0.5)
    write_run(home, "short", 0.2, 0.9, steps=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "run_nano", lambda seed: Tokens(step, step, *columns))
        patch.setattr(report, "compute_gradients", lambda stream: softmax.compute_gradients(stream, 5))
        patch.setattr(report, "compute_optima", lambda stream: softmax.compute_optima(stream, 2))
        patch.setattr(report, "compute_updates", lambda stream: softmax.compute_updates(stream, 200))
        return check_theory(home)


def test_the_fit_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path, "one", 0.2, 0.9)
    (fit,) = fit_runs(tmp_path)
    assert (fit.a, fit.b, fit.r_squared) == pytest.approx((0.2, 0.9, 1.0))
    assert fit.to_dict()["steps"] == 8


def test_an_entropy_that_does_not_vary_has_no_fit() -> None:
    assert fit_line("flat", np.array([0.1, 0.2]), np.array([1.0, 1.0])) is None


def test_a_home_without_runs(tmp_path: Path) -> None:
    check = check_fits(fit_runs(tmp_path), tmp_path)
    assert (check.cases, check.share) == (0, None)
    assert str(tmp_path) in check.note


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
    sentences = reading(checked.checks)
    assert [sentence.partition(" (")[0] for sentence in sentences] == STATEMENTS
    eq1, lemma = (next(each for each in checked.checks if each.source == name) for name in ("Eq. 1", "Lemma 3.2"))
    assert f"{eq1.holds} of {eq1.cases}" in sentences[0]
    assert f"{lemma.holds} of {lemma.cases}" in sentences[2]
    assert "1 of 2 runs" in sentences[5]


def test_the_json_has_counts(checked: Theory) -> None:
    values = json.loads(json.dumps(checked.to_dict(), allow_nan=False))
    assert list(dict.fromkeys(check["source"] for check in values["checks"])) == STATEMENTS
    for check in values["checks"]:
        assert 0 <= check["holds"] <= check["cases"]
        assert check["share"] == pytest.approx(check["holds"] / check["cases"], abs=1e-6)
    assert values["checks"][-1]["values"]["median_a"] == pytest.approx(0.05)
    assert [run["run"] for run in values["runs"]] == ["one", "two"]


def test_the_figure_has_six_panels_and_can_be_saved(checked: Theory, tmp_path: Path) -> None:
    figure = draw(checked).figure
    assert len(figure.axes) == 6
    save(figure, tmp_path / "theory.svg")
    assert (tmp_path / "theory.svg").read_text().startswith("<?xml")
