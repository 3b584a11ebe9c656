"""Numbers on the command line that are none, or out of range: one line that names the option, exit code 2."""

from __future__ import annotations

import pytest

from tests.integration.command import call

NEVER = ("nan", "-1", "")


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("plan", "panel-e", "--cpus"), ("0", "99999999999999999999")),
        (("plan", "panel-e", "--gpus"), ("99999999999999999999",)),
        (("plan", "panel-e", "--gpu-memory-gb"), ("0", "0.5")),
        (("clean", "--keep"), ("0.5",)),
        (("ui", "--port"), ("0.5", "65536")),
        (("report", "panel-e", "--target"), ("0", "101")),
        (("report", "panel-e", "--target", "50", "--window"), ("0", "0.5")),
        (("report", "panel-e", "--pass-at"), ("0", "1,nan", "1,,2")),
        (("theory", "--seed"), ("0.5",)),
    ],
)
def test_a_wrong_number_is_refused(arguments, more, capsys, monkeypatch, tmp_path):
    for value in (*NEVER, *more):
        done = call(capsys, monkeypatch, *arguments, value, "--home", str(tmp_path / "home"))
        assert (done.code, done.stdout) == (2, ""), value
        (line,) = done.stderr.splitlines()
        assert arguments[-1] in line
    assert list(tmp_path.iterdir()) == []
