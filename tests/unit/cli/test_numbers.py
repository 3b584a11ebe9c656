"""Numbers on the command line that are none, or that nothing could have: one line, exit code 2."""

from __future__ import annotations

import pytest

from tests.integration.command import call

NEVER = ("nan", "inf", "-inf", "1e400", "-1", "", "x", "0x10")

OPTIONS = [
    (("plan", "panel-e", "--cpus"), (*NEVER, "0", "99999999999999999999")),
    (("plan", "panel-e", "--gpus"), (*NEVER, "99999999999999999999")),
    (("plan", "panel-e", "--gpu-memory-gb"), (*NEVER, "0", "0.5")),
    (("clean", "--keep"), (*NEVER, "0.5")),
    (("ui", "--port"), (*NEVER, "0.5", "65536")),
    (("report", "panel-e", "--target"), (*NEVER, "0", "101")),
    (("report", "panel-e", "--target", "50", "--window"), (*NEVER, "0", "0.5")),
    (("report", "panel-e", "--pass-at"), (*NEVER, "0", "1,nan", "1,,2")),
    (("theory", "--seed"), (*NEVER, "0.5")),
]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [(arguments, value) for arguments, values in OPTIONS for value in values],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else part,
)
def test_what_is_no_number_for_it_is_refused(arguments, value, capsys, monkeypatch, tmp_path):
    done = call(capsys, monkeypatch, *arguments, value, "--home", str(tmp_path / "home"))
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith("tepo-lab: ")
    assert done.stderr.count("\n") == 1
    assert arguments[-1] in done.stderr
    assert list(tmp_path.iterdir()) == []
