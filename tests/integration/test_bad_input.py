"""A table of wrong inputs: each gets one clear line on standard error, exit code 2, and changes nothing on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tepo_lab.records.files import append_line, write_json
from tepo_lab.registry.compose import clear_caches
from tepo_lab.registry.locations import package_root
from tests.integration.command import Done, call
from tests.integration.wrong_inputs import ARGUMENTS, ARMS, DATA, PROFILES, REPORTS, RESPONSES, SWEEPS


def answer(done: Done) -> str:
    """The one line that a wrong input is answered with. Fails when anything else is said or the exit code is not 2."""
    assert done.code == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tepo-lab: ")
    assert len(lines[0]) < 2100
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return lines[0]


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
    monkeypatch.setattr("tepo_lab.execute.running.sweep.Executor", started)
    folder = tmp_path / "outputs" / "runs" / "gspo-other-s1-01234567"
    spec = {"arm": {"name": "gspo"}, "seed": 1, "trainer": {"steps": 1}}
    write_json(folder / "run.json", {"id": "0123456789ab", "family": "f", "name": folder.name, "spec": spec})
    append_line(folder / "events.jsonl", {"time": 1.0, "event": "complete", "step": 1})
    clear_caches()
    yield tmp_path
    clear_caches()


@pytest.fixture
def refusal(place, capsys, monkeypatch) -> Callable[..., str]:
    """Calls the command line, which must leave home, registry and working folder as they are, and gives its answer."""

    def ask(*arguments: str) -> str:
        before = files(place, *REGISTRY)
        line = answer(call(capsys, monkeypatch, *arguments))
        assert files(place, *REGISTRY) == before
        return line

    return ask


def short(text: str) -> str:
    return text.encode("unicode_escape").decode()[:60]


@pytest.mark.parametrize(("arguments", "said"), ARGUMENTS, ids=[short(" ".join(each)) for each, _ in ARGUMENTS])
def test_wrong_arguments(arguments, said, refusal):
    assert said in refusal(*arguments)


@pytest.mark.parametrize(("text", "said"), SWEEPS, ids=[short(text) for text, _ in SWEEPS])
def test_wrong_sweep_files(text, said, place, refusal):
    (place / "mine.yaml").write_text(text)
    for command in ("run", "plan"):
        assert said in refusal(command, "./mine.yaml")


@pytest.mark.parametrize(("text", "said"), REPORTS, ids=[short(text) for text, _ in REPORTS])
def test_wrong_report_files(text, said, place, refusal):
    (place / "mine.yaml").write_text(text)
    for command in ("report", "bundle"):
        assert said in refusal(command, "./mine.yaml")


def test_sweep_files_that_are_no_text(place, refusal):
    (place / "binary.yaml").write_bytes(bytes(range(256)))
    (place / "utf16.yaml").write_bytes("title: x\narms: [tepo]\n".encode("utf-16"))
    (place / "folder.yaml").mkdir()
    (place / "two words; rm -rf x.yaml").write_text("title: x\narms: [tepo]\n")
    (place / "gone.yaml").symlink_to("nowhere.yaml")
    (place / "round.yaml").symlink_to("round.yaml")
    os.mkfifo(place / "pipe.yaml")
    assert "not UTF-8 text" in refusal("run", "./binary.yaml")
    assert "save it as UTF-8" in refusal("run", "./utf16.yaml")
    assert "cannot be read (not a file)" in refusal("run", "./folder.yaml")
    assert "must be a plain name" in refusal("run", "./two words; rm -rf x.yaml")
    assert "no such file" in refusal("run", "./gone.yaml")
    assert "round.yaml: " in refusal("run", "./round.yaml")
    assert "cannot be read (not a file)" in refusal("run", "./pipe.yaml")


def test_a_byte_order_mark_and_windows_lines_are_read(place, capsys, monkeypatch):
    (place / "mine.yaml").write_bytes(b"\xef\xbb\xbftitle: x\r\narms: [tepo]\r\n")
    assert call(capsys, monkeypatch, "plan", "./mine.yaml").code == 0


@pytest.mark.parametrize(("arms", "said"), ARMS)
def test_wrong_arms(arms, said, place, refusal, monkeypatch):
    registry(place, monkeypatch, {f"experiments/arm/{name}": text for name, text in arms.items()})
    assert said in refusal("run", "panel-e", "arms=[a]")


@pytest.mark.parametrize(("text", "said"), PROFILES, ids=[short(text) for text, _ in PROFILES])
def test_wrong_profiles(text, said, place, refusal, monkeypatch):
    registry(place, monkeypatch, {"experiments/profile/p": text})
    assert said in refusal("plan", "panel-e", "profile=p")
    assert said in refusal("ls", "profiles")


def registry(place: Path, monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = place / "registry" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("TEPO_LAB_REGISTRY", str(place / "registry"))
    clear_caches()


def test_a_registry_that_is_no_folder(place, refusal, monkeypatch):
    monkeypatch.setenv("TEPO_LAB_REGISTRY", str(place / "nowhere"))
    clear_caches()
    assert "is not a folder" in refusal("run", "panel-e")
    assert "is not a folder" in refusal("ls")


@pytest.mark.parametrize(("content", "said"), RESPONSES)
def test_wrong_responses(content, said, place, refusal):
    (place / "f.jsonl").write_bytes(content)
    assert said in refusal("grade", "f.jsonl")


@pytest.mark.parametrize(("name", "content", "said"), DATA)
def test_wrong_data(name, content, said, place, refusal):
    path = place / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    given = name.partition("/")[0]
    assert said in refusal("run", "panel-e", "data=gsm8k", f"data.path={given}")


def test_a_pipe_is_no_data(place, refusal):
    os.mkfifo(place / "f.jsonl")
    assert "f.jsonl: neither a file nor a folder" in refusal("run", "panel-e", "data=gsm8k", "data.path=f.jsonl")
    (place / "d").mkdir()
    (place / "f.jsonl").rename(place / "d" / "f.jsonl")
    assert "d/f.jsonl: not a file that can be read" in refusal("run", "panel-e", "data=gsm8k", "data.path=d")


@pytest.mark.parametrize("command", ["run", "plan"])
def test_names_that_no_folder_can_have(command, place, refusal, monkeypatch):
    name = "a" * 101
    (place / f"{name}.yaml").write_text("title: x\narms: [tepo]\n")
    assert "'name': a name has at most 100 characters, this one has 101" in refusal(command, f"./{name}.yaml")
    registry(place, monkeypatch, {f"experiments/arm/{name}": "label: A\nparent: tepo\n"})
    assert "a name has at most 100 characters, this one has 101" in refusal(command, "panel-e", f"arms=[{name}]")


def test_a_model_to_import_that_is_not_there(place, refusal, monkeypatch):
    monkeypatch.setenv("HOME", str(place))
    folder = place / ".cache" / "tepo-lab" / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    assert "nope.gguf: no such file or folder" in refusal("model", "import", "nope.gguf")


def test_data_of_another_size_than_the_benchmark_states(place, refusal):
    (place / "f.jsonl").write_text('{"problem": "1 + 1", "answer": "#### 2"}\n')
    assert "has 1 problems" in refusal(
        "run",
        "panel-e",
        "suite=gsm8k",
        "suite.benchmarks.gsm8k.data.path=f.jsonl",
        "suite.max_new_tokens=9",
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
def test_a_home_that_is_no_folder(command, place, refusal):
    (place / "home").write_text("not a folder")
    (place / "round").symlink_to("round")
    assert "--home home: home is not a folder that can be read" in refusal(*command, "--home", "home")
    assert "is not a folder that can be read" in refusal(*command, "--home", "home/below")
    assert "is not a folder that can be read" in refusal(*command, "--home", "round")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written(place, refusal):
    (place / "home").mkdir(mode=0o500)
    assert "is not a folder that can be read and written" in refusal("run", "panel-e", "--home", "home")


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
    assert "sweep.json is damaged" in answer(call(capsys, monkeypatch, "status", "mine", *home))
    assert files(place) == before
    write_json(folder / "run.json", {"family": "x"})
    (folder / "events.jsonl").write_text('{"event": "sta\n')
    append_line(folder / "events.jsonl", {"time": 1.0, "event": "started", "step": 0})
    assert call(capsys, monkeypatch, "status", *home).code == 0


def test_a_foreign_database_is_left_alone(place, capsys, monkeypatch):
    import sqlite3

    home = place / "outputs"
    (run,) = (each.name for each in home.glob("runs/*"))
    write_json(home / "sweeps" / "mine" / "sweep.json", {"runs": [run]})
    with sqlite3.connect(home / "mlflow.db") as database:
        database.execute("CREATE TABLE poems (line TEXT)")
    before = (home / "mlflow.db").read_bytes()
    said = answer(call(capsys, monkeypatch, "mirror", "--rebuild", "--home", "outputs"))
    assert "mlflow.db is another program's database: move it away" in said
    assert (home / "mlflow.db").read_bytes() == before


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
    before = files(place)
    done = subprocess.run([sys.executable, "-m", "tepo_lab", *arguments], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert (done.stderr.startswith("tepo-lab: "), done.stderr.count("\n")) == (True, 1)
    assert said in done.stderr
    assert files(place) == before


def test_the_table_has_at_least_sixty_different_inputs():
    tables = (ARGUMENTS, SWEEPS, ARMS, PROFILES, REPORTS, RESPONSES, DATA)
    assert all(len({repr(each[:-1]) for each in table}) == len(table) for table in tables)
    assert sum(map(len, tables)) >= 200
