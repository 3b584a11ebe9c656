"""A table of wrong inputs: each gets one clear line on standard error, exit code 2, and changes nothing on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tepo_lab.registry.compose import clear_caches
from tepo_lab.registry.locations import package_root
from tepo_lab.schema.record import append_line, write_json
from tests.integration.command import call
from tests.integration.wrong_inputs import ARGUMENTS, ARMS, DATA, PROFILES, REPORTS, RESPONSES, SWEEPS


def answer(done, said):
    """What every wrong input is answered with."""
    assert done.code == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tepo-lab: ")
    assert len(lines[0]) < 2100
    assert said in lines[0]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def files(*places: Path) -> dict[str, tuple[int, int, int]]:
    """Every file with its size, mode and time of change."""
    stats = {str(path): path.lstat() for place in places for path in place.rglob("*")}
    return {path: (stat.st_size, stat.st_mode, stat.st_mtime_ns) for path, stat in stats.items()}


REGISTRY = [package_root() / name for name in ("experiments", "sweeps", "reports")]


def started(*arguments: object, **named: object) -> None:
    raise AssertionError("a wrong input was run")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a home that holds one run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tepo_lab.execute.session.Executor", started)
    folder = tmp_path / "outputs" / "runs" / "gspo-other-s1-01234567"
    write_json(folder / "run.json", {"id": "0123456789ab", "family": "f", "name": folder.name})
    append_line(folder / "events.jsonl", {"time": 1.0, "event": "complete", "step": 1})
    clear_caches()
    yield tmp_path
    clear_caches()


@pytest.fixture
def refuse(place, capsys, monkeypatch) -> Callable[..., None]:
    """Calls the command line, which must refuse and leave home, registry and working folder as they are."""

    def check(*arguments: str, said: str) -> None:
        before = files(place, *REGISTRY)
        answer(call(capsys, monkeypatch, *arguments), said)
        assert files(place, *REGISTRY) == before

    return check


def short(text: str) -> str:
    return text.encode("unicode_escape").decode()[:60]


@pytest.mark.parametrize(("arguments", "said"), ARGUMENTS, ids=[short(" ".join(each)) for each, _ in ARGUMENTS])
def test_wrong_arguments(arguments, said, refuse):
    refuse(*arguments, said=said)


@pytest.mark.parametrize(("text", "said"), SWEEPS, ids=[short(text) for text, _ in SWEEPS])
def test_wrong_sweep_files(text, said, place, refuse):
    (place / "mine.yaml").write_text(text)
    for command in ("run", "plan"):
        refuse(command, "./mine.yaml", said=said)


@pytest.mark.parametrize(("text", "said"), REPORTS, ids=[short(text) for text, _ in REPORTS])
def test_wrong_report_files(text, said, place, refuse):
    (place / "mine.yaml").write_text(text)
    for command in ("report", "bundle"):
        refuse(command, "./mine.yaml", said=said)


def test_sweep_files_that_are_no_text(place, refuse):
    (place / "binary.yaml").write_bytes(bytes(range(256)))
    (place / "utf16.yaml").write_bytes("title: x\narms: [tepo]\n".encode("utf-16"))
    (place / "folder.yaml").mkdir()
    (place / "two words; rm -rf x.yaml").write_text("title: x\narms: [tepo]\n")
    (place / "gone.yaml").symlink_to("nowhere.yaml")
    (place / "round.yaml").symlink_to("round.yaml")
    os.mkfifo(place / "pipe.yaml")
    refuse("run", "./binary.yaml", said="not UTF-8 text")
    refuse("run", "./utf16.yaml", said="save it as UTF-8")
    refuse("run", "./folder.yaml", said="cannot be read (not a file)")
    refuse("run", "./two words; rm -rf x.yaml", said="must be a plain name")
    refuse("run", "./gone.yaml", said="no such file")
    refuse("run", "./round.yaml", said="round.yaml: ")
    refuse("run", "./pipe.yaml", said="cannot be read (not a file)")


def test_a_byte_order_mark_and_windows_lines_are_read(place, capsys, monkeypatch):
    (place / "mine.yaml").write_bytes(b"\xef\xbb\xbftitle: x\r\narms: [tepo]\r\n")
    assert call(capsys, monkeypatch, "plan", "./mine.yaml").code == 0


@pytest.mark.parametrize(("arms", "said"), ARMS)
def test_wrong_arms(arms, said, place, refuse, monkeypatch):
    registry(place, monkeypatch, {f"experiments/arm/{name}": text for name, text in arms.items()})
    refuse("run", "panel-e", "arms=[a]", said=said)


@pytest.mark.parametrize(("text", "said"), PROFILES, ids=[short(text) for text, _ in PROFILES])
def test_wrong_profiles(text, said, place, refuse, monkeypatch):
    registry(place, monkeypatch, {"experiments/profile/p": text})
    refuse("plan", "panel-e", "profile=p", said=said)
    refuse("ls", "profiles", said=said)


def registry(place: Path, monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = place / "registry" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("TEPO_LAB_REGISTRY", str(place / "registry"))
    clear_caches()


def test_a_registry_that_is_no_folder(place, refuse, monkeypatch):
    monkeypatch.setenv("TEPO_LAB_REGISTRY", str(place / "nowhere"))
    clear_caches()
    refuse("run", "panel-e", said="is not a folder")
    refuse("ls", said="is not a folder")


@pytest.mark.parametrize(("content", "said"), RESPONSES)
def test_wrong_responses(content, said, place, refuse):
    (place / "f.jsonl").write_bytes(content)
    refuse("grade", "f.jsonl", said=said)


@pytest.mark.parametrize(("name", "content", "said"), DATA)
def test_wrong_data(name, content, said, place, refuse):
    path = place / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    given = name.partition("/")[0]
    refuse("run", "panel-e", "data=gsm8k", f"data.path={given}", said=said)


def test_data_of_another_size_than_the_benchmark_states(place, refuse):
    (place / "f.jsonl").write_text('{"problem": "1 + 1", "answer": "#### 2"}\n')
    refuse(
        "run",
        "panel-e",
        "suite=gsm8k",
        "suite.benchmarks.gsm8k.data.path=f.jsonl",
        "suite.max_new_tokens=9",
        said="has 1 problems",
    )


COMMANDS = [
    ("run", "panel-e"),
    ("plan", "panel-e"),
    ("status",),
    ("why",),
    ("clean",),
    ("regrade",),
    ("report", "table3"),
    ("bundle", "table3"),
    ("mirror", "--rebuild"),
    ("theory",),
    ("ui",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(each) for each in COMMANDS])
def test_a_home_that_is_no_folder(command, place, refuse):
    (place / "home").write_text("not a folder")
    (place / "round").symlink_to("round")
    refuse(*command, "--home", "home", said="--home home: home is not a folder that can be read")
    refuse(*command, "--home", "home/below", said="is not a folder that can be read")
    refuse(*command, "--home", "round", said="is not a folder that can be read")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written(place, refuse):
    (place / "home").mkdir(mode=0o500)
    refuse("run", "panel-e", "--home", "home", said="is not a folder that can be read and written")


def test_damaged_records_are_named_with_the_mend(place, capsys, monkeypatch):
    folder = place / "home" / "runs" / "tepo-nano-s1-01234567"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"id": ')
    (place / "home" / "sweeps" / "mine").mkdir(parents=True)
    (place / "home" / "sweeps" / "mine" / "sweep.json").write_text('{"runs": ["../../x"]}')
    before = files(place)
    home = ("--home", str(place / "home"))
    for command, code in (("report", 0), ("bundle", 2)):
        done = call(capsys, monkeypatch, command, "table3", *home)
        assert (done.code, done.stderr.count("run.json is damaged")) == (code, 1)
        assert "tepo-lab: note: run tepo-nano-s1-01234567 is passed over: " in done.stderr
    assert "has no run of table3" in done.stderr
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
        (("run", "panel-e", "rollout.engine=vllm"), "in a checkout: pip install -e '.[vllm]'"),
    ],
)
def test_as_a_process_of_its_own(arguments, said, place):
    code = "from tepo_lab.cli import main; main()"
    before = files(place)
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert (done.stderr.startswith("tepo-lab: "), done.stderr.count("\n")) == (True, 1)
    assert said in done.stderr
    assert files(place) == before


def test_the_table_has_at_least_sixty_different_inputs():
    tables = (ARGUMENTS, SWEEPS, ARMS, PROFILES, REPORTS, RESPONSES, DATA)
    assert all(len({repr(each[:-1]) for each in table}) == len(table) for table in tables)
    assert sum(map(len, tables)) >= 200
