"""Wrong inputs through the command line: one line on standard error, exit code 2, and nothing changes on disk."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tepo_lab.records.files import append_line, write_json
from tests.integration.command import Done, call

#: Longer than any file system takes for the name of a file or folder.
LONG = "x" * 300

#: Arguments, and what names the fault in the line: the option, key or name.
ARGUMENTS: list[tuple[tuple[str, ...], str]] = [
    (("frobnicate",), "'frobnicate'"),
    (("data", "frobnicate"), "tepo-lab data --help"),
    (("plan",), "Missing argument"),
    (("plan", "seeds=[1]"), "name at least one sweep"),
    (("plan", "panel-f"), "'panel-f'. Did you mean 'panel-e'?"),
    (("plan", "panel-e", "trainer.stps=3"), "'trainer.stps'. Did you mean 'steps'?"),
    (("plan", "panel-e", "x" * 100_000 + "=1"), "'xxx"),
    (("plan", "panel-e", "--cpus", "many"), "--cpus"),
    (("plan", "panel-e", f"model.path={LONG}"), "name is too long"),
    (("plan", "panel-e", "profile=qwen2.5-7b", "resources.gpus=4"), "resources.gpus=8"),
    (("report", "table9"), "'table9'"),
    (("report", "."), "'.'"),
    (("report", "table3", "--panel", "z"), "'z'"),
    (("report", "table3", "--out", "x.png"), "--out"),
    (("report", "table3", "profile="), "profile="),
    (("report", "table3", "--format", "pdf"), "'pdf'"),
    (("bundle", "panel-e"), "panel-e"),
    (("bundle", "panel-e", "--out", "panel-e.zip"), ".tar.gz"),
    (("bundle", "panel-e", "--out", "nowhere/panel-e.tar.gz"), "nowhere"),
    (("show", "tepoo"), "'tepoo'. Did you mean 'tepo'?"),
    (("show", "../arm/tepo"), "'../arm/tepo'"),
    (("diff", "tepo"), "Missing argument"),
    (("ls", "arm"), "'arm'"),
    (("schema", "runs"), "'runs'"),
    (("mirror", "--home", "x"), "--home x"),
    (("ui", "--port", "99999"), "--port"),
    (("status", "seeds=[1]"), "seeds=[1]"),
    (("status", "--watch", "--format", "json"), "--watch"),
    (("status", "nowhere/sweep.yaml"), "nowhere/sweep.yaml"),
    (("status", "x" * 5000), "xxx"),
    (("status", "--home", ""), "--home"),
    (("status", "--home", "nohome"), "--home nohome"),
    (("status", "--home", LONG), "--home xxx"),
    (("why", "tepooo"), "'tepooo'"),
    (("why", "../../etc/passwd"), "../../etc/passwd"),
    (("clean", "--keep", "-1"), "--keep"),
    (("clean", "--yes", "--dry-run"), "--dry-run"),
    (("regrade", "../x"), "'../x'"),
    (("regrade", ""), "''"),
    (("grade", "nowhere.jsonl"), "nowhere.jsonl"),
    (("grade", LONG), "name is too long"),
    (("data", "check", "data.terms=[0]"), "'data.terms.0'"),
    (("audit", "."), "."),
    (("theory", "--seed", "-1"), "--seed"),
    (("model", "build-nano", "."), "."),
]

#: Inputs that `run` refuses before anything starts.
RUNS: list[tuple[tuple[str, ...], str]] = [
    (("--home", "/proc/nope"), "--home /proc/nope"),
    (("--address", "nowhere"), "host:port"),
    (("--mlflow", "nonsense://host"), "nonsense"),
    (("arms=[\x1b]52;c;aGk=\x07]",), r"\x1b]52;c;aGk=\x07"),
    (("model.path=/nowhere",), "model.path=/nowhere"),
    (("model.sha256=" + "0" * 64,), "000000000000"),
    (("rollout.max_new_tokens=4000",), "256 tokens"),
    (("data=gsm8k", "data.path=/dev/zero"), "/dev/zero"),
    (("data=gsm8k", f"data.path={LONG}"), "name is too long"),
    (("data=gsm8k", "data.path=empty.jsonl"), "empty.jsonl"),
    (("resources.learners=100000",), "100000 learners"),
]


def error_line(done: Done) -> str:
    """The one line that a wrong input is answered with."""
    assert (done.code, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("tepo-lab: ")
    assert len(line) < 2100
    return line


def files(place: Path) -> dict[str, tuple[int, int, int]]:
    """Every file with its size, mode and time of change."""
    stats = {str(path): path.lstat() for path in place.rglob("*")}
    return {path: (stat.st_size, stat.st_mode, stat.st_mtime_ns) for path, stat in stats.items()}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with a home that has one run."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs" / "runs" / "gspo-other-s1-01234567"
    spec = {"arm": {"name": "gspo"}, "seed": 1, "trainer": {"steps": 1}}
    write_json(folder / "run.json", {"id": "0123456789ab", "family": "f", "name": folder.name, "spec": spec})
    append_line(folder / "events.jsonl", {"time": 1.0, "event": "complete", "step": 1})
    (tmp_path / "empty.jsonl").touch()
    return tmp_path


@pytest.fixture
def refusal(place, capsys, monkeypatch) -> Callable[..., str]:
    """Calls the command line, which must leave all files as they are, and returns its line."""

    def ask(*arguments: str) -> str:
        before = files(place)
        line = error_line(call(capsys, monkeypatch, *arguments))
        assert files(place) == before
        return line

    return ask


@pytest.mark.parametrize(("arguments", "named"), ARGUMENTS, ids=lambda part: ascii(part)[:60])
def test_wrong_arguments(arguments, named, refusal):
    assert named in refusal(*arguments)


@pytest.mark.integration
@pytest.mark.parametrize(("arguments", "named"), RUNS, ids=lambda part: ascii(part)[:60])
def test_wrong_runs(arguments, named, refusal, monkeypatch):
    def started(*arguments: object, **named: object) -> None:
        raise AssertionError("a wrong input was run")

    monkeypatch.setattr("tepo_lab.execute.running.run_sweep.Executor", started)
    assert named in refusal("run", "panel-e", *arguments)


@pytest.mark.parametrize(
    "command",
    ["run panel-e", "plan panel-e", "status", "why", "clean", "regrade", "report table3", "mirror", "theory", "ui"],
)
def test_a_home_that_is_no_folder(command, place, refusal):
    (place / "loop").symlink_to("loop")
    for home in ("empty.jsonl", "empty.jsonl/below", "loop"):
        assert f"--home {home}" in refusal(*command.split(), "--home", home)


def test_control_characters_of_files_and_records_do_not_reach_the_terminal(place, capsys, monkeypatch):
    (place / "mine.yaml").write_text(
        '{title: "\\e]52;c;aGk=\\a", arms: [gspo], labels: {gspo: "\\e[31mred"}, seeds: [9]}'
    )
    for arguments in (("plan", "./mine.yaml"), ("status", "./mine.yaml"), ("report", "./mine.yaml")):
        done = call(capsys, monkeypatch, *arguments)
        assert done.code == 0
        assert "\x1b" not in done.stdout + done.stderr
        assert "\x07" not in done.stdout + done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_command_with_one_line(number, code, place, capsys, monkeypatch):
    monkeypatch.setattr("tepo_lab.evaluate.lines.grade_lines", lambda *arguments: [signal.raise_signal(number)])
    monkeypatch.setattr("tepo_lab.errors.Terminated.received", False)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        done = call(capsys, monkeypatch, "grade", "empty.jsonl")
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert (done.code, done.stdout, done.stderr.count("\n")) == (code, "", 1)


def test_a_byte_order_mark_and_windows_lines_are_read(place, capsys, monkeypatch):
    (place / "mine.yaml").write_bytes(b"\xef\xbb\xbftitle: x\r\narms: [tepo]\r\n")
    assert call(capsys, monkeypatch, "plan", "./mine.yaml").code == 0


def test_a_model_to_import_that_does_not_exist(place, refusal, monkeypatch):
    monkeypatch.setenv("HOME", str(place))
    folder = place / ".cache" / "tepo-lab" / "models" / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    assert "nope.gguf" in refusal("model", "import", "nope.gguf")
