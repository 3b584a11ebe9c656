"""A home's records and reports as pandas frames."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

from tepo_lab import results
from tepo_lab.cli import app
from tepo_lab.errors import ConfigError, RecordError
from tepo_lab.records.files import RunFolder, append_line, write_json
from tepo_lab.records.generations import GENERATION_COLUMNS
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned
from tepo_lab.schema.run import RunSpec
from tepo_lab.schema.step_metrics import STEP_METRICS


def write_run(home: Path, arm: str, seed: int, *, share: float = 0.5, **end: object) -> RunFolder:
    """A nano run: with three steps, or to its `end` (an event), evaluated there with a share of right answers."""
    run = planned(compose_run(arm, "nano", seed=seed))
    folder = RunFolder(home / "runs" / run.folder)
    spec = run.spec.model_dump(mode="json")
    values = {"id": run.run_id, "family": run.family, "name": folder.name, "created": 1.7e9, "spec": spec}
    write_json(folder.run_file, values | {"provenance": {"commit": "abc", "dirty": True}})
    events: list[dict[str, object]] = [{"event": "started", "step": 0}]
    steps = int(str(end.get("step", 3)))
    if end:
        columns = generations(run.spec, share)
        folder.generations(steps).parent.mkdir()
        parquet.write_table(pa.table(columns), folder.generations(steps))
        graded = Counter(columns["benchmark"])
        tallies = {name: {"correct": math.ceil(share * size), "graded": size} for name, size in graded.items()}
        events += [{"event": "evaluated", "step": steps, "benchmarks": tallies}, end]
    for event in events:
        append_line(folder.events_file, {"time": 1.7e9, **event})
    for step in range(1, steps + 1):
        reward = {1: 0.25, 2: None, 3: 0.75}.get(step, 0.5)
        append_line(folder.metrics_file, {"step": step, "reward/mean": reward, "actor/entropy": 0.5 / step})
    return folder


def generations(spec: RunSpec, share: float) -> dict[str, list[object]]:
    """The suite's answers; the first `share` of each benchmark's are right."""
    columns: dict[str, list[object]] = {name: [] for name in GENERATION_COLUMNS}
    for name, benchmark in spec.suite.benchmarks.items():
        size = benchmark.problems * benchmark.samples
        columns["benchmark"] += [name] * size
        columns["problem"] += [
            f"{number:04d}" for number in np.repeat(np.arange(benchmark.problems), benchmark.samples)
        ]
        columns["sample"] += np.tile(np.arange(benchmark.samples), benchmark.problems).tolist()
        columns["correct"] += (np.arange(size) < share * size).astype(int).tolist()
        columns["tokens"] += [3] * size
        columns["truncated"] += [False] * size
        for column in ("prompt", "answer", "response", "extracted", "how", "grader"):
            columns[column] += ["2"] * size
    return columns


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TEPO complete with two seeds, TEPO without KL collapsed with one and begun with another."""
    home = tmp_path_factory.mktemp("home")
    write_run(home, "tepo", 1, event="complete", step=20)
    write_run(home, "tepo", 2, event="complete", step=20, share=0.6)
    write_run(home, "tepo_no_kl", 1, event="collapsed", step=9, rule="reward/mean < 0.02")
    write_run(home, "tepo_no_kl", 2)
    return home


def test_runs(home: Path) -> None:
    frame = results.runs(home)
    assert list(frame.columns) == list(results.RUN_COLUMNS)
    known = frame.set_index(["arm", "seed"])
    assert known["outcome"].to_dict() == {
        ("tepo", 1): "complete",
        ("tepo", 2): "complete",
        ("tepo_no_kl", 1): "collapsed",
        ("tepo_no_kl", 2): "interrupted",
    }
    assert known.loc[("tepo_no_kl", 1), "collapsed_at"] == 9
    assert known.loc[("tepo", 1), "evaluated_steps"] == (20,)
    assert known.loc[("tepo", 1), "created"] == pd.Timestamp("2023-11-14T22:13:20Z")
    assert set(frame["profile"]) == {"nano"}
    assert set(frame["steps"]) == {20}
    assert set(frame["commit"]) == {"abc+changes"}


def test_metrics(home: Path) -> None:
    frame = results.metrics(home)
    assert list(frame.columns) == ["run", "arm", "profile", "seed", "step", "reward/mean", "actor/entropy"]
    assert len(frame) == 20 + 20 + 9 + 3
    first = frame[(frame["arm"] == "tepo") & (frame["seed"] == 1)]
    assert first["step"].tolist() == list(range(1, 21))
    assert first["reward/mean"].tolist()[:4] == pytest.approx([0.25, np.nan, 0.75, 0.5], nan_ok=True)
    assert frame.attrs["units"]["actor/entropy"] == "nats per token"
    assert frame.attrs["units"]["reward/mean"] == "share of responses or groups, 0 to 1"


def test_generations(home: Path) -> None:
    frame = results.generations(home, columns=["benchmark", "correct", "tokens"])
    assert list(frame.columns) == ["run", "arm", "profile", "seed", "step", "benchmark", "correct", "tokens"]
    right = frame[frame["arm"] == "tepo"].groupby(["seed", "benchmark"])["correct"].agg(["sum", "size"])
    assert tuple(right.loc[(1, "sum6")]) == (480, 960)
    assert tuple(right.loc[(2, "mix4")]) == (120, 200)
    assert results.generations(home, steps=[5]).empty
    assert list(results.generations(home, steps=[20]).columns[5:]) == list(GENERATION_COLUMNS)


def test_report_has_the_numbers_of_the_command_line(home: Path) -> None:
    frame = results.report(home, "panel-e", ["profile=nano"])
    scores = frame[frame["arm"] == "tepo"].set_index("benchmark")
    assert (scores.loc["sum6", "correct"], scores.loc["sum6", "graded"]) == (480 + 576, 1920)
    assert scores.loc["avg", "percent"] == pytest.approx(55.0, abs=0.1)
    assert scores.loc["avg", "ci95_low"] < scores.loc["avg", "percent"] < scores.loc["avg", "ci95_high"]
    missing = frame[(frame["arm"] == "tepo_kl_both") & (frame["benchmark"] == "avg")]
    assert missing["percent"].isna().all()
    assert missing["reason"].tolist() == ["not run"]
    printed = CliRunner().invoke(app, ["report", "panel-e", "profile=nano", "--home", str(home), "--format", "json"])
    shown = {row["arm"]: row["average"]["generation_weighted"] for row in json.loads(printed.stdout)["rows"]}
    averages = frame[frame["benchmark"] == "avg"].set_index("arm")["percent"]
    assert {arm: value for arm, value in shown.items() if value is not None} == averages.dropna().to_dict()


def test_overridden_steps_are_where_rows_are_read(home: Path) -> None:
    frame = results.report(home, "table3", ["profile=nano", "trainer.steps=10"], panels=["e"])
    row = frame[(frame["arm"] == "tepo") & (frame["benchmark"] == "avg")].iloc[0]
    assert np.isnan(row["percent"])
    assert "step 10" in row["reason"]


def test_steps_to_a_target(home: Path) -> None:
    frame = results.steps_to_target(home, "panel-e", 70, ["profile=nano"], window=1)
    tepo = frame[frame["arm"] == "tepo"]
    # Its rewards are 25 %, not finite, 75 %.
    assert tepo["step"].tolist() == [3, 3]
    assert tepo["outcome"].tolist() == ["reached", "reached"]
    assert frame.attrs["units"]["target"] == "percent of the metric"
    higher = results.steps_to_target(home, "panel-e", 80, ["profile=nano"], window=1)
    assert higher["step"].isna().all()


def test_pass_at_k_stands_after_its_benchmark(home: Path) -> None:
    frame = results.report(home, "panel-e", ["profile=nano"], pass_at=(1, 32))
    tepo = frame[frame["arm"] == "tepo"].set_index("benchmark")["percent"]
    assert tepo["sum6 pass@1"] == pytest.approx(tepo["sum6"])
    assert tepo["sum6 pass@32"] >= tepo["sum6 pass@1"]
    assert "sum3 pass@1" not in tepo


def test_comparisons(home: Path) -> None:
    frame = results.comparisons(home, "panel-e", ["profile=nano"]).set_index("arm")
    tepo = frame.loc["tepo"]
    assert (tepo["parent"], tepo["seeds"], tepo["steps"], tepo["label"]) == ("tepo_no_kl", "1", 20, "TEPO")
    assert tepo["difference_low"] <= tepo["difference"] <= tepo["difference_high"]
    assert "3 seeds" in tepo["verdict"]


def test_a_home_without_runs_gives_the_same_columns(tmp_path: Path) -> None:
    for frame, columns in (
        (results.runs(tmp_path), list(results.RUN_COLUMNS)),
        (results.metrics(tmp_path), [*results.IDENTITY, "step"]),
        (results.generations(tmp_path), [*results.IDENTITY, "step", *GENERATION_COLUMNS]),
    ):
        assert frame.empty
        assert list(frame.columns) == columns
    with pytest.raises(ConfigError, match="no run of panel-e"):
        results.report(tmp_path, "panel-e")
    write_run(tmp_path, "tepo_no_kl", 1)
    # A home with other runs: the error of a figure names its arms and the profiles that were tried.
    done = CliRunner().invoke(app, ["report", "figure2", "--home", str(tmp_path)])
    assert isinstance(done.exception, RecordError)
    assert all(name in str(done.exception) for name in ("grpo_dapo", "tepo", "qwen2.5-7b", "nano"))


@pytest.mark.parametrize(
    "frame_of",
    [
        results.runs,
        results.metrics,
        results.generations,
        lambda home: results.report(home, "panel-e"),
        lambda home: results.report(home, "dynamics"),
        lambda home: results.comparisons(home, "panel-e"),
        lambda home: results.steps_to_target(home, "panel-e", 60),
    ],
)
def test_a_missing_home(tmp_path: Path, frame_of: Callable[[Path], pd.DataFrame]) -> None:
    with pytest.raises(ConfigError, match=r"--home .*outptus"):
        frame_of(tmp_path / "outptus")


def test_a_figure_gives_the_values_that_it_draws(home: Path) -> None:
    frame = results.report(home, "figure3", ["profile=nano"])
    assert list(frame.columns) == list(results.FIGURE_COLUMNS)
    reward = frame[(frame["series"] == "reward/mean") & (frame["seed"] == 1)]
    # The second step's reward was not finite.
    assert reward["step"].tolist() == [1, *range(3, 21)]
    assert reward["value"].tolist()[:3] == [0.25, 0.75, 0.5]
    assert set(reward["unit"]) == {"share of responses or groups, 0 to 1"}
    assert set(frame["arm"]) == {"tepo"}
    # Nats, tokens or percent: every line has its own unit.
    for column in ("value", "ci95_low", "ci95_high"):
        assert frame.attrs["units"][column] == "as the column unit says"
    scores = results.report(home, "bars", ["profile=nano"]).set_index(["arm", "series"])
    table = results.report(home, "panel-e", ["profile=nano"]).set_index(["arm", "benchmark"])
    for column, name in (("value", "percent"), ("ci95_low", "ci95_low"), ("ci95_high", "ci95_high")):
        assert scores.loc[("tepo", "avg"), column] == pytest.approx(table.loc[("tepo", "avg"), name])
    assert scores.loc[("tepo", "avg"), "unit"] == "percent"
    assert results.report(home, "cells", ["profile=nano"]).empty
    with pytest.raises(ConfigError, match="figure3"):
        results.report(home, "figure3", pass_at=(1,))


def test_the_papers_numbers_beside_ours(home: Path) -> None:
    frame = results.report(home, "table3", ["profile=nano"], panels=["e"], against="published")
    # They are of another model, so none is shown.
    assert frame["published"].isna().all()
    with pytest.raises(ConfigError, match="panel-e"):
        results.report(home, "panel-e", ["profile=nano"], against="published")
    with pytest.raises(ConfigError, match="--metric reward"):
        results.steps_to_target(home, "panel-e", 60, ["profile=nano"], metric="reward")


def test_audit() -> None:
    frame = results.audit()
    assert list(frame.columns) == list(results.FINDING_COLUMNS)
    deltas = frame[frame["kind"] == "delta"]
    assert deltas["printed"].tolist() == [5.68, 5.21]
    assert deltas["recomputed"].tolist() == [0.68, 2.29]


def test_every_metric_of_a_run_has_a_unit() -> None:
    assert [name for name in (*STEP_METRICS, "time", "step") if results.units(name) is None] == []
    assert results.units("arm") is None


def test_wrong_names_and_damaged_generations(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'benchmarks'.*'benchmark'"):
        results.generations(home, columns=["benchmarks"])
    with pytest.raises(ConfigError, match="'panel-z'"):
        results.report(home, "panel-z")
    folder = write_run(tmp_path, "tepo", 1, event="complete", step=20)
    folder.generations(20).write_bytes(b"PAR1 damaged PAR1")
    with pytest.raises(RecordError, match=r"step-000020\.parquet"):
        results.generations(tmp_path)


def test_damaged_runs_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path, "tepo", 1)
    write_run(tmp_path, "tepo_no_kl", 1)
    append_line(folder.metrics_file, {"step": 7})
    assert set(results.metrics(tmp_path)["arm"]) == {"tepo_no_kl"}
    assert set(results.runs(tmp_path)["arm"]) == {"tepo", "tepo_no_kl"}
    folder.run_file.write_text('{"id": ')
    assert set(results.runs(tmp_path)["arm"]) == {"tepo_no_kl"}
    assert capsys.readouterr().err.count(folder.name) >= 2
