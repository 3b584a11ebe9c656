"""What commands say of the files that they are given or that a plan names."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.integration.command import call

GSM8K = ("profile=smollm2-135m", "data.path=train.jsonl", "suite.benchmarks.gsm8k.data.path=test.jsonl")


def test_a_plan_tells_of_data_that_is_not_here_and_is_made_nevertheless(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("plan", "smoke-smollm2", "data.path=nosuch.jsonl")
    done = call(capsys, monkeypatch, *asked)
    assert done.code == 0
    assert done.stderr.startswith("tepo-lab: note: data.path=nosuch.jsonl: no such file or folder on this machine")
    planned = json.loads(call(capsys, monkeypatch, *asked, "--format", "json").stdout)
    assert [note.partition(":")[0] for note in planned["notes"]] == ["data.path=nosuch.jsonl"]
    assert len(planned["runs"]) == 2


def test_data_check_lists_what_cannot_be_read_and_checks_the_rest(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"id": str(number), "problem": f"{number} + 1", "answer": "1"}) for number in range(1319)]
    Path("test.jsonl").write_text("\n".join(rows))
    done = call(capsys, monkeypatch, "data", "check", *GSM8K, "--format", "json")
    training, benchmark = json.loads(done.stdout)
    assert done.code == 1
    assert "train.jsonl: no such file or folder" in training["error"]
    assert (benchmark["name"], benchmark["problems"], "error" in benchmark) == ("gsm8k", 1319, False)


@pytest.mark.parametrize(
    ("line", "code"), [('{"text": "\\\\boxed{2}", "answer": 2}', 0), ('{"text": 1, "answer": "2"}', 2)]
)
def test_responses_that_are_piped_in_are_graded(line: str, code: int, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line.encode())))
    done = call(capsys, monkeypatch, "grade", "-")
    assert done.code == code
    if code:
        assert "standard input:1 has 'text': 1; it must be a string" in done.stderr
    else:
        assert json.loads(done.stdout)["correct"] == 1


def test_a_model_that_was_there_already_says_that_the_source_was_not_read(capsys, monkeypatch, tmp_path: Path) -> None:
    from tepo_lab.nano.model_import import Imported

    there = Imported(tmp_path, "0" * 64, is_new=False)
    monkeypatch.setattr("tepo_lab.nano.model_import.import_model", lambda *given, **named: there)
    source = tmp_path / "empty.jsonl"
    source.touch()
    done = call(capsys, monkeypatch, "model", "import", str(source))
    assert (done.code, f"(was there already; {source} was not read)" in done.stdout) == (0, True)


def test_the_usual_home_need_not_be_there_yet(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("status", "why", "clean", "regrade"):
        assert call(capsys, monkeypatch, command).code == 0
    monkeypatch.setenv("TEPO_LAB_HOME", "nohome")
    done = call(capsys, monkeypatch, "status")
    assert (done.code, done.stderr) == (
        2,
        "tepo-lab: --home nohome: there is no such folder; name one that tepo-lab run has made.\n",
    )
