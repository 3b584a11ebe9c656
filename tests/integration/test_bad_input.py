"""A table of wrong inputs: each gets one clear line on standard error, exit code 2, and changes nothing on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tepo_lab.registry.compose import clear_caches
from tepo_lab.schema.record import append_line, write_json
from tests.integration.command import call

#: Faults on the command line: arguments, and what the line says.
ARGUMENTS = [
    (("run", "panel-f"), "unknown sweep 'panel-f'. Did you mean 'panel-e'?"),
    (("run", "../panel-e"), "no such file"),
    (("run", "panel-e\x00"), "panel-e"),
    (("run", "nowhere/sweep.yaml"), "no such file"),
    (("run", "/"), "/"),
    (("run", "."), "unknown sweep '.'"),
    (("run", ""), "unknown sweep ''"),
    (("run", "panel-e", "arms=[tepoo]"), "unknown arm 'tepoo'. Did you mean 'tepo'?"),
    (("run", "panel-e", "arms=[]"), "arm"),
    (("run", "panel-e", "arms=tepo"), "arms"),
    (("run", "panel-e", "arms=[tepo,tepo]"), "more than once"),
    (("run", "panel-e", "arms=[tepo"), "cannot be read"),
    (("run", "panel-e", "arms=[../../etc]"), "unknown arm '../../etc'"),
    (("run", "panel-e", "seeds=[1,1]"), "more than once"),
    (("run", "panel-e", "seeds=[-1]"), "seeds"),
    (("run", "panel-e", "seeds=[one]"), "seeds"),
    (("run", "panel-e", "seeds=[]"), "seeds"),
    (("run", "panel-e", "steps=-3"), "steps"),
    (("run", "panel-e", "profile=nana"), "unknown profile 'nana'. Did you mean 'nano'?"),
    (("run", "panel-e", "profile=../nano"), "unknown profile '../nano'"),
    (("run", "panel-e", "trainer.stps=3"), "unknown key 'trainer.stps'. Did you mean 'steps'?"),
    (("run", "panel-e", "trianer.steps=3"), "'trianer'"),
    (("run", "panel-e", "trainer.steps=many"), "'trainer.steps': Input should be a valid integer"),
    (("run", "panel-e", "trainer.steps=-1"), "trainer.steps"),
    (("run", "panel-e", "trainer.steps=1.5"), "trainer.steps"),
    (("run", "panel-e", "trainer.steps=1,2"), "trainer.steps=1,2"),
    (("run", "panel-e", "trainer.steps"), "is not an override: write key=value"),
    (("run", "panel-e", "=3"), "is not an override"),
    (("run", "panel-e", "trainer=5"), "trainer"),
    (("run", "panel-e", "trainer.learning_rate=0"), "trainer.learning_rate"),
    (("run", "panel-e", "trainer.learning_rate=nan"), "trainer.learning_rate"),
    (("run", "panel-e", "trainer.learning_rate=-1e-6"), "trainer.learning_rate"),
    (("run", "panel-e", "trainer.group_size=1"), "trainer.group_size"),
    (("run", "panel-e", "trainer.mini_batch_prompts=7"), "must be a multiple of mini_batch_prompts"),
    (("run", "panel-e", "objective.ratio=tokn"), "'objective.ratio'"),
    (("run", "panel-e", "rollout.temperature=0"), "rollout.temperature"),
    (("run", "panel-e", "rollout.top_p=1.5"), "rollout.top_p"),
    (("run", "panel-e", "suite=nona"), "unknown suite 'nona'. Known: "),
    (("run", "panel-e", "model=nona"), "unknown model 'nona'. Known: "),
    (("run", "panel-e", "suite.benchmarks.sum9.problems=3"), "sum9"),
    (("run", "panel-e", "suite.benchmarks.sum3.samples=4"), "samples must be 1 at temperature 0"),
    (("run", "panel-e", "suite.benchmarks.sum3.problems=0"), "problems"),
    (("run", "panel-e", "data.kind=gsm8k"), "data"),
    (("run", "panel-e", "resources.cpus=0"), "resources.cpus"),
    (("run", "panel-e", "resources.gpus=-1"), "resources.gpus"),
    (("run", "panel-e", "resources.device=tpu"), "resources.device"),
    (("run", "panel-e", "resources.max_retries=-1"), "resources.max_retries"),
    (("run", "panel-e", "--hme", "x"), "No such option"),
    (("run",), "Missing argument"),
    (("run", "panel-e", "--format", "pdf"), "'pdf' is not one of"),
    (("run", "panel-e", "--mlflow", "nonsense://host"), "nonsense"),
    (("plan",), "Missing argument"),
    (("plan", "seeds=[1]"), "name at least one sweep"),
    (("plan", "panel-e", "--cpus", "-1"), "--cpus"),
    (("plan", "panel-e", "--cpus", "many"), "--cpus"),
    (("report", "table9"), "unknown report 'table9'"),
    (("report", "table3", "--panel", "z"), "has no panel 'z'"),
    (("report", "table3", "trainer.stps=3"), "unknown key 'trainer.stps'"),
    (("report", "table3", "--out", "x.png"), "--out is for figures"),
    (("show", "tepoo"), "unknown arm 'tepoo'. Did you mean 'tepo'?"),
    (("show", "../arm/tepo"), "unknown arm '../arm/tepo'"),
    (("diff", "tepo"), "Missing argument"),
    (("diff", "tepo", "gspoo"), "unknown arm 'gspoo'"),
    (("ls", "arm"), "'arm' is not one of"),
    (("schema", "runs"), "'runs' is not one of"),
    (("mirror",), "say what to do"),
    (("ui", "--port", "99999"), "--port"),
    (("status", "panel-f"), "Did you mean 'panel-e'?"),
    (("status", "seeds=[1]"), "name the sweep too"),
    (("status", "--watch", "--format", "json"), "--watch is for people"),
    (("status", "nowhere/sweep.yaml"), "no such file"),
    (("why", "../../etc/passwd"), "no such file"),
    (("why", "tepooo"), "no sweep and no run"),
    (("clean", "--keep", "-1"), "--keep"),
    (("clean", "--yes", "--dry-run"), "give one of them"),
    (("clean", "panel-f", "--yes"), "Did you mean 'panel-e'?"),
    (("bundle", "table9"), "unknown report 'table9'"),
    (("bundle", "table3"), "has no run of table3"),
    (("bundle", "table3", "--out", "table3.zip"), "name a .tar.gz file"),
    (("bundle", "table3", "--out", "nowhere/table3.tar.gz"), "its folder must exist"),
    (("frobnicate",), "No such command 'frobnicate'"),
]

#: Faulty sweep files: their text, and what the line says.
SWEEPS = [
    ("title: x\narms: [tepo\n", "not YAML"),
    ("title: x\n\tarms: [tepo]\n", "not YAML"),
    ("", "must hold a mapping"),
    ("- tepo\n", "must hold a mapping"),
    ("just text\n", "must hold a mapping"),
    ("title: x\narms: [tepo]\ntitle: y\n", "stands twice"),
    ("title: x\narms: [tepo]\nseed: [1]\n", "unknown key 'seed'. Did you mean 'seeds'?"),
    ("arms: [tepo]\n", "key 'title' is missing"),
    ("title: x\n", "name at least one arm"),
    ("name: y\ntitle: x\narms: [tepo]\n", "remove the key 'name'"),
    ("title: x\narms: {tepo: 1}\n", "arms"),
    ("title: x\narms: [tepo]\nstop: [{when: 'reward_mean << 2', for: 3}]\n", "stop"),
    ("title: x\narms: [tepo]\nstop: [{when: 'reward/mean < 0.02', for: 0}]\n", "stop"),
    ("title: x\narms: [tepo]\naxes: {trainer.lr: [1]}\n", "trainer.lr"),
    ("title: x\narms: [tepo]\noverrides: {trainer.stps: 2}\n", "trainer.stps"),
    ("title: !!python/object/apply:os.system ['touch hacked']\narms: [tepo]\n", "not YAML"),
    ("title: x\narms: &a [*a]\n", "arms"),
    ("title: x\narms: [tepo]\nfeeds: " + "[" * 3000 + "]" * 3000 + "\n", "feeds"),
    ("# " + "x" * 1_100_000 + "\ntitle: x\narms: [tepo]\n", "larger than"),
]

#: Faulty arms of a registry of one's own: their files, and what running one of them says.
ARMS = [
    ({"a": "label: A\nparent: b\n", "b": "label: B\nparent: a\n"}, "round in a circle"),
    ({"a": "label: A\nparent: a\n"}, "round in a circle"),
    ({"a": "label: A\nparent: tepoo\n"}, "unknown parent 'tepoo'. Did you mean 'tepo'?"),
    ({"a": "parent: tepo\n"}, "'label' is missing"),
    ({"a": "label: A\nparent: tepo\nvaries: [objective.ratio]\nobjectiv: {ratio: token}\n"}, "unknown key 'objectiv'"),
    ({"a": "label: A\nparent: tepo\nobjective: {ratio: token}\n"}, "objective.ratio"),
    ({"a": "label: A\nparent: tepo\nvaries: [objective.ratio]\nobjective: {ratio: both}\n"}, "objective.ratio"),
    ({"a": "label: A\nparent: tepo\nobjective: 3\n"}, "objective"),
    ({"a": "label: A\nparent: tepo\nvaries: [trainer.steps]\ntrainer: {steps: '${nowhere}'}\n"}, "nowhere"),
]


def answer(done, said):
    """What every wrong input is answered with."""
    assert done.code == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tepo-lab: ")
    assert said in lines[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def files(place: Path) -> dict[str, int]:
    return {str(path.relative_to(place)): path.lstat().st_mtime_ns for path in place.rglob("*")}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to work in; afterwards it must be as it was."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"), ARGUMENTS, ids=[" ".join(each).replace("\x00", "NUL") for each, _ in ARGUMENTS]
)
def test_wrong_arguments(arguments, said, place, capsys, monkeypatch):
    answer(call(capsys, monkeypatch, *arguments), said)
    assert files(place) == {}


@pytest.mark.parametrize(("text", "said"), SWEEPS)
def test_wrong_sweep_files(text, said, place, capsys, monkeypatch):
    (place / "mine.yaml").write_text(text)
    before = files(place)
    for command in ("run", "plan"):
        answer(call(capsys, monkeypatch, command, "./mine.yaml"), said)
    assert files(place) == before


def test_sweep_files_that_are_no_text(place, capsys, monkeypatch):
    (place / "binary.yaml").write_bytes(bytes(range(256)))
    (place / "folder.yaml").mkdir()
    (place / "two words; rm -rf x.yaml").write_text("title: x\narms: [tepo]\n")
    (place / "gone.yaml").symlink_to("nowhere.yaml")
    before = files(place)
    answer(call(capsys, monkeypatch, "run", "./binary.yaml"), "cannot be read")
    answer(call(capsys, monkeypatch, "run", "./folder.yaml"), "cannot be read")
    answer(call(capsys, monkeypatch, "run", "./two words; rm -rf x.yaml"), "name")
    answer(call(capsys, monkeypatch, "run", "./gone.yaml"), "no such file")
    assert files(place) == before


@pytest.mark.parametrize(("arms", "said"), ARMS)
def test_wrong_arms(arms, said, place, capsys, monkeypatch):
    for name, text in arms.items():
        path = place / "registry" / "experiments" / "arm" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    before = files(place)
    monkeypatch.setenv("TEPO_LAB_REGISTRY", str(place / "registry"))
    clear_caches()
    answer(call(capsys, monkeypatch, "run", "panel-e", "arms=[a]"), said)
    clear_caches()
    assert files(place) == before


def test_a_registry_that_is_no_folder(place, capsys, monkeypatch):
    monkeypatch.setenv("TEPO_LAB_REGISTRY", str(place / "nowhere"))
    clear_caches()
    answer(call(capsys, monkeypatch, "run", "panel-e"), "is not a folder")
    clear_caches()
    assert files(place) == {}


@pytest.mark.parametrize("command", [("run", "panel-e"), ("status",), ("why",), ("clean",), ("report", "table3")])
def test_a_home_that_is_a_file(command, place, capsys, monkeypatch):
    (place / "home").write_text("not a folder")
    before = files(place)
    answer(call(capsys, monkeypatch, *command, "--home", "home"), "is not a folder that can be read and written")
    assert files(place) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written(place, capsys, monkeypatch):
    (place / "home").mkdir(mode=0o500)
    before = files(place)
    answer(
        call(capsys, monkeypatch, "run", "panel-e", "--home", "home"), "is not a folder that can be read and written"
    )
    assert files(place) == before


def test_damaged_records_are_named_with_the_mend(place, capsys, monkeypatch):
    folder = place / "home" / "runs" / "tepo-nano-s1-01234567"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"id": ')
    (place / "home" / "sweeps" / "mine").mkdir(parents=True)
    (place / "home" / "sweeps" / "mine" / "sweep.json").write_text('{"runs": ["../../x"]}')
    before = files(place)
    home = ("--home", str(place / "home"))
    answer(call(capsys, monkeypatch, "report", "table3", *home), "run.json is damaged")
    answer(call(capsys, monkeypatch, "bundle", "table3", *home), "run.json is damaged")
    answer(call(capsys, monkeypatch, "status", "mine", *home), "sweep.json is damaged")
    assert files(place) == before
    write_json(folder / "run.json", {"family": "x"})
    (folder / "events.jsonl").write_text('{"event": "sta\n')
    append_line(folder / "events.jsonl", {"time": 1.0, "event": "started", "step": 0})
    assert call(capsys, monkeypatch, "status", *home).code == 0


def test_a_foreign_database_is_left_alone(place, capsys, monkeypatch):
    import sqlite3

    (place / "home").mkdir()
    with sqlite3.connect(place / "home" / "mlflow.db") as database:
        database.execute("CREATE TABLE poems (line TEXT)")
    before = (place / "home" / "mlflow.db").read_bytes()
    assert "Traceback" not in call(capsys, monkeypatch, "mirror", "--rebuild", "--home", "home").stderr
    assert (place / "home" / "mlflow.db").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "panel-e", "arms=[tepoo]"), "Did you mean 'tepo'?"),
        (("status", "panel-f"), "Did you mean 'panel-e'?"),
        (("bundle", "table3", "--out", "x.zip"), "name a .tar.gz file"),
    ],
)
def test_as_a_process_of_its_own(arguments, said, place):
    code = "from tepo_lab.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert (done.stderr.startswith("tepo-lab: "), done.stderr.count("\n")) == (True, 1)
    assert said in done.stderr
    assert files(place) == {}


def test_the_table_has_at_least_sixty_inputs():
    assert len(ARGUMENTS) + len(SWEEPS) + len(ARMS) >= 60
