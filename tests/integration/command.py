"""The command line called in this process, as fast as a function."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from tepo_lab.cli import main


@dataclass(frozen=True)
class Done:
    """The output and exit code of a call of the command line."""

    code: int
    stdout: str
    stderr: str


def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Done:
    """Run `tepo-lab` with the arguments."""
    monkeypatch.setattr(sys, "argv", ["tepo-lab", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    code = ended.value.code
    return Done(code if isinstance(code, int) else 0, output.out, output.err)
