"""A home in which one run's records are damaged: every command names it in a line and goes on with the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tepo_lab import results
from tepo_lab.execute.planning.actions import entry
from tepo_lab.execute.running.prepare import prepare_folder
from tepo_lab.records.files import RunFolder, append_line, write_json
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned
from tests.integration.command import call
from tests.paper_home import paper_run

STEPS = 6

#: What may stand in a run.json instead of a run.
RUN_FILES = {
    "nothing": b"",
    "half of it": b'{"id": "0123456789ab", "fam',
    "an empty mapping": b"{}",
    "a list": b"[]",
    "null": b"null",
    "bytes": bytes(range(256)),
    "an id alone": b'{"id": "x"}',
    "an empty spec": b'{"id": "x", "family": "f", "spec": {}}',
    "a spec of text": b'{"id": "x", "family": "f", "spec": "text"}',
    "another project's": b'{"name": "x", "runs": [1, 2], "spec": {"containers": []}}',
}

PLAN = ("plan", "panel-e", "arms=[tepo_no_kl,tepo]", "seeds=[1,2,3]")
TABLE = ("report", "panel-e", "profile=nano")
TARGET = (*TABLE, "--target", "1", "--window", "1")
BUDGET = (*TABLE, "--equal", "tokens")
PAGE = (*TABLE, "--page", "--out", "page.html")
FIGURE = ("report", "dynamics", "profile=nano", "--out", "figure.svg")

#: Commands that answer at once, and those that make something.
QUICK = [("status", "panel-e"), ("why", "panel-e"), PLAN, ("clean",), TABLE]
MAKING = [
    ("clean", "panel-e", "--unknown", "--yes"),
    TARGET,
    BUDGET,
    PAGE,
    FIGURE,
    ("bundle", "panel-e", "profile=nano", "--out", "panel-e.tar.gz"),
    ("mirror",),
    ("mirror", "--rebuild"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two complete runs of two arms, and a third that is to be damaged."""
    home = tmp_path_factory.mktemp("home")
    benchmarks = compose_run("tepo", "nano", seed=1).suite.benchmarks
    for arm, seed in (("tepo_no_kl", 1), ("tepo", 1), ("tepo", 2)):
        paper_run(home, arm, seed, [STEPS], dict.fromkeys(benchmarks, 50.0), "nano")
    folders = sorted(path.name for path in home.glob("runs/*"))
    write_json(home / "sweeps" / "panel-e" / "sweep.json", {"name": "panel-e", "title": "E", "runs": folders})
    return home


@pytest.fixture
def home(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(whole, tmp_path / "outputs")


def damaged(home: Path) -> RunFolder:
    (path,) = home.glob("runs/tepo-nano-s2-*")
    return RunFolder(path)


@pytest.fixture
def goes_on(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Calls a command, which must not stop at the damaged run. Returns what it said."""

    def check(*arguments: str) -> str:
        done = call(capsys, monkeypatch, *arguments)
        # What MLflow cannot be shown is no success.
        assert done.code == (1 if arguments[0] == "mirror" else 0), done.stderr
        assert "Traceback" not in done.stderr
        said = ("tepo-lab: note: ", "Missing or cut short: ")
        assert all(line.startswith(said) for line in done.stderr.splitlines() if "damaged" in line)
        return done.stdout + done.stderr

    return check


@pytest.mark.parametrize("content", RUN_FILES.values(), ids=RUN_FILES)
def test_a_run_file_that_is_no_runs(content: bytes, home: Path, goes_on: Callable[..., str]) -> None:
    folder = damaged(home)
    folder.run_file.write_bytes(content)
    said = goes_on("status")
    assert f"{folder.name}  damaged" in said
    assert said.count("complete") == 3
    assert "1 run, damaged: " in goes_on("why")


@pytest.mark.parametrize("name", ["half of it", "an empty spec"])
def test_commands_that_answer_at_once(name: str, home: Path, goes_on: Callable[..., str]) -> None:
    folder = damaged(home)
    folder.run_file.write_bytes(RUN_FILES[name])
    said = {arguments: goes_on(*arguments) for arguments in QUICK}
    assert f"{folder.name}  damaged" in said["status", "panel-e"]
    assert "mend: the command that ran it writes it anew." in said["why", "panel-e"]
    assert "its run.json is damaged and will be written anew" in said[PLAN]
    assert f"note: run {folder.name} is passed over: " in said["clean",]
    assert f"note: run {folder.name} is passed over: " in said[TABLE]
    assert "partly: 1 of 2 seeds" in said[TABLE]


@pytest.mark.parametrize("arguments", MAKING, ids=" ".join)
def test_commands_that_make_something(arguments: tuple[str, ...], home: Path, goes_on: Callable[..., str]) -> None:
    folder = damaged(home)
    folder.run_file.write_bytes(b"{}")
    said = goes_on(*arguments)
    assert "run.json is damaged (it has no id)" in said
    assert folder.run_file.read_bytes() == b"{}"


def test_notebooks_get_the_other_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = damaged(home)
    folder.run_file.write_bytes(b"{}")
    for read in (results.runs, results.metrics, results.generations):
        frame = read(home)
        assert sorted(frame.groupby(["arm", "seed"]).groups) == [("tepo", 1), ("tepo_no_kl", 1)]
        assert f"run {folder.name} is passed over: " in capsys.readouterr().err


@pytest.mark.parametrize("content", RUN_FILES.values(), ids=RUN_FILES)
def test_running_it_writes_the_run_file_anew(content: bytes, home: Path) -> None:
    folder = damaged(home)
    folder.run_file.write_bytes(content)
    found = entry(home, planned(compose_run("tepo", "nano", seed=2)))
    assert (found.folder, found.action) == (folder, "resume")
    prepare_folder(found)
    run = folder.run()
    assert (run["id"], run["family"]) == (found.planned.run_id, found.planned.family)
    assert run["earlier_provenance"] == [{"commit": None, "lost": "run.json was damaged and written anew"}]
    assert run["created"] == folder.events()[0]["time"]


@pytest.mark.parametrize("end", ['{"step": 7, "rew', '{"step": 7, "rew\n', "\x00" * 100], ids=["cut", "line", "zeros"])
def test_a_line_that_a_death_cut_off_changes_nothing(
    end: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [*QUICK, TARGET, BUDGET, FIGURE] if end == "\x00" * 100 else QUICK
    whole = [call(capsys, monkeypatch, *arguments) for arguments in asked]
    for log in ("events", "metrics"):
        with (damaged(home).path / f"{log}.jsonl").open("a") as stream:
            stream.write(end)
    assert [call(capsys, monkeypatch, *arguments) for arguments in asked] == whole


@pytest.mark.parametrize("log", ["events", "metrics"])
@pytest.mark.parametrize("line", ["garbage", '{"time": 1.0}', "[]"])
def test_a_damaged_line_in_the_middle_is_named(log: str, line: str, home: Path, goes_on: Callable[..., str]) -> None:
    path = damaged(home).path / f"{log}.jsonl"
    path.write_text(f"{line}\n" + path.read_text())
    reading = [TARGET, BUDGET, TABLE, *([FIGURE, PAGE, ("mirror",)] if line == "garbage" else [])]
    for arguments in reading:
        assert f"{log}.jsonl:1 cannot be read" in goes_on(*arguments)
    for arguments in QUICK[:-1]:
        goes_on(*arguments)
    assert "Missing or cut short: TEPO: records of seed 2 damaged\n" in goes_on(*FIGURE)
    # A table counts generations, which are whole.
    assert ("records damaged" in goes_on(*TABLE)) == (log == "events")
    assert "2: records damaged" in goes_on(*TARGET)


def test_a_target_on_validation_scores(home: Path, goes_on: Callable[..., str]) -> None:
    """Scores of a search stand in the events."""
    folder = damaged(home)
    for path in sorted(home.glob("runs/*")):
        for step, value in ((3, 20.0), (6, 60.0)):
            append_line(path / "events.jsonl", {"time": 1.0, "event": "validated", "step": step, "value": value})
        append_line(path / "events.jsonl", {"time": 1.0, "event": "complete", "step": 6})
    asked = ("report", "panel-e", "profile=nano", "--target", "50", "--metric", "validation", "--format", "json")
    text = folder.events_file.read_text()
    folder.events_file.write_text(text + '{"time": 1.0, "ev\n')
    rows = {row["arm"]: row for row in json.loads(goes_on(*asked))["rows"]}
    assert [(each["seed"], each["step"]) for each in rows["tepo"]["seeds"]] == [(1, 6), (2, 6)]
    folder.events_file.write_text(text.replace('"event":"started"', '"event:"started"'))
    said = goes_on(*asked)
    rows = {row["arm"]: row for row in json.loads(said[: said.rindex("}") + 1])["rows"]}
    assert [(each["seed"], each["outcome"]) for each in rows["tepo"]["seeds"]] == [
        (1, "reached"),
        (2, "records damaged"),
    ]
