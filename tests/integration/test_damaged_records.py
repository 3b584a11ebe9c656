"""A home in which one run's records are damaged: every command goes on with the other runs, and changes no record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tepo_lab import results
from tepo_lab.records.files import RunFolder, append_line, write_json
from tepo_lab.registry.compose import compose_run
from tests.integration.command import Done, call
from tests.paper_home import paper_run

STEPS = 6


def write(file: str, content: bytes) -> Callable[[RunFolder], object]:
    return lambda run: (run.path / file).write_bytes(content)


def put_first(file: str, line: str) -> Callable[[RunFolder], object]:
    return lambda run: (run.path / file).write_text(f"{line}\n{(run.path / file).read_text()}")


def make_folder(run: RunFolder) -> None:
    run.run_file.unlink()
    run.run_file.mkdir()


#: What may have happened to a run's records, each the state `damaged`.
DAMAGE: dict[str, Callable[[RunFolder], object]] = {
    "run.json empty": write("run.json", b""),
    "run.json cut off": write("run.json", b'{"id": "0123456789ab", "fam'),
    "run.json without keys": write("run.json", b"{}"),
    "run.json a list": write("run.json", b"[]"),
    "run.json bytes": write("run.json", bytes(range(256))),
    "run.json of another project": write("run.json", b'{"name": "x", "runs": [1, 2], "spec": {"containers": []}}'),
    "run.json a folder": make_folder,
    "events begin with garbage": put_first("events.jsonl", "garbage"),
    "events begin with no event": put_first("events.jsonl", '{"time": 1.0}'),
}

PLAN = ("plan", "panel-e", "arms=[tepo_no_kl,tepo]", "seeds=[1,2]", "base=false", "trainer.steps=6", "--format", "json")
TABLE = ("report", "panel-e", "profile=nano", "--format", "json")
TARGET = ("report", "panel-e", "profile=nano", "--target", "1", "--window", "1")
FIGURE = ("report", "dynamics", "profile=nano", "--out", "figure.svg")
MAKING = [
    ("clean", "panel-e", "--unknown", "--yes"),
    TARGET,
    ("report", "panel-e", "profile=nano", "--equal", "tokens"),
    ("report", "panel-e", "profile=nano", "--page", "--out", "page.html"),
    FIGURE,
    ("bundle", "panel-e", "profile=nano", "--out", "panel-e.tar.gz"),
    ("mirror",),
    ("mirror", "--rebuild"),
]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with three complete runs of two arms."""
    home = tmp_path_factory.mktemp("home")
    benchmarks = compose_run("tepo", "nano", seed=1).suite.benchmarks
    for arm, seed in (("tepo_no_kl", 1), ("tepo", 1), ("tepo", 2)):
        paper_run(home, arm, seed, [STEPS], dict.fromkeys(benchmarks, 50.0), "nano")
    folders = sorted(path.name for path in home.glob("runs/*"))
    write_json(home / "sweeps" / "panel-e" / "sweep.json", {"name": "panel-e", "title": "E", "runs": folders})
    return home


@pytest.fixture
def home(intact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(intact, tmp_path / "outputs")


@pytest.fixture
def damaged(home: Path) -> RunFolder:
    (path,) = home.glob("runs/tepo-nano-s2-*")
    return RunFolder(path)


@pytest.fixture
def lab(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Calls a command, which must not stop at the damaged run."""

    def run(*arguments: str) -> Done:
        done = call(capsys, monkeypatch, *arguments)
        # What MLflow cannot be shown is no success.
        assert done.code == (1 if arguments[0] == "mirror" else 0), done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_run_is_one_state_and_the_others_count(
    damage: Callable[[RunFolder], object], damaged: RunFolder, lab: Callable[..., Done]
) -> None:
    damage(damaged)
    listed = json.loads(lab("status", "panel-e", "--format", "json").stdout)
    assert listed["states"] == {"complete": 2, "damaged": 1}
    (cause,) = json.loads(lab("why", "panel-e", "--format", "json").stdout)
    assert (cause["kind"], cause["runs"]) == ("damaged", [damaged.name])
    assert f"{damaged.name}/" in cause["error"]
    actions = {run["name"]: run["action"] for run in json.loads(lab(*PLAN).stdout)["runs"]}
    assert (actions[damaged.name], sorted(actions.values())) == ("blocked", ["blocked", "run", "skip", "skip"])
    rows = {row["arm"]: row for row in json.loads(lab(*TABLE).stdout)["rows"]}
    assert (len(rows["tepo"]["seeds"]), len(rows["tepo_no_kl"]["seeds"])) == (1, 1)
    assert "damaged" in rows["tepo"]["outcome"]
    assert json.loads(lab("clean", "--format", "json").stdout)["leftovers"] == []


@pytest.mark.parametrize("arguments", MAKING, ids=" ".join)
def test_commands_that_make_something(arguments: tuple[str, ...], damaged: RunFolder, lab: Callable[..., Done]) -> None:
    damaged.run_file.write_bytes(b"{}")
    lab(*arguments)
    assert damaged.run_file.read_bytes() == b"{}"


def test_notebooks_get_the_other_runs(home: Path, damaged: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    damaged.run_file.write_bytes(b"{}")
    for read in (results.runs, results.metrics, results.generations):
        frame = read(home)
        assert sorted(frame.groupby(["arm", "seed"]).groups) == [("tepo", 1), ("tepo_no_kl", 1)]
        assert damaged.name in capsys.readouterr().err


@pytest.mark.parametrize("end", ['{"step": 7, "rew', '{"step": 7, "rew\n', "\x00" * 100], ids=["cut", "line", "zeros"])
def test_a_last_line_that_a_kill_cut_off_changes_nothing(
    end: str, damaged: RunFolder, lab: Callable[..., Done]
) -> None:
    commands = [("status", "panel-e"), ("why", "panel-e"), PLAN, ("clean",), TABLE, TARGET]
    before = [lab(*arguments) for arguments in commands]
    for log in (damaged.events_file, damaged.metrics_file):
        with log.open("a") as stream:
            stream.write(end)
    assert [lab(*arguments) for arguments in commands] == before


@pytest.mark.parametrize("line", ["garbage", '{"time": 1.0}', "[]"])
def test_damaged_metrics_are_named_where_they_are_read(line: str, damaged: RunFolder, lab: Callable[..., Done]) -> None:
    put_first("metrics.jsonl", line)(damaged)
    assert f"{damaged.name}/metrics.jsonl" in lab(*TARGET).stderr
    assert damaged.name in lab(*FIGURE).stderr
    # A table counts generations, which are intact.
    seeds = {row["arm"]: row["seeds"] for row in json.loads(lab(*TABLE).stdout)["rows"]}
    assert len(seeds["tepo"]) == 2


def test_a_target_on_validation_scores(home: Path, damaged: RunFolder, lab: Callable[..., Done]) -> None:
    """Scores of a search are in the events."""
    for path in sorted(home.glob("runs/*")):
        for step, value in ((3, 20.0), (6, 60.0)):
            append_line(path / "events.jsonl", {"time": 1.0, "event": "validated", "step": step, "value": value})
    asked = (*TABLE[:3], "--target", "50", "--metric", "validation", "--format", "json")
    text = damaged.events_file.read_text()
    damaged.events_file.write_text(text + '{"time": 1.0, "ev\n')
    rows = {row["arm"]: row for row in json.loads(lab(*asked).stdout)["rows"]}
    assert [(seed["seed"], seed["step"]) for seed in rows["tepo"]["seeds"]] == [(1, 6), (2, 6)]
    damaged.events_file.write_text(text.replace('"event":"started"', '"event:"started"'))
    rows = {row["arm"]: row for row in json.loads(lab(*asked).stdout)["rows"]}
    outcomes = {seed["seed"]: seed["outcome"] for seed in rows["tepo"]["seeds"]}
    assert outcomes[1] == "reached"
    assert outcomes.get(2) != "reached"
