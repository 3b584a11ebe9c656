"""Standard streams that are closed, or whose encoding has not every character."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integration.command import call


def test_what_an_encoding_lacks_is_written_in_ascii(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call(capsys, monkeypatch, "--version")
    assert "─≥ é Δ".encode("latin-1", errors="tepo_lab") == b"->= \xe9 \\u0394"
    assert "±é\ud800".encode("ascii", errors="tepo_lab") == rb"+-\xe9\ud800"


@pytest.mark.integration
def test_no_file_takes_the_place_of_a_closed_stream() -> None:
    code = (
        "import os, sys\n"
        "os.close(0), os.close(1)\n"
        "sys.argv = ['tepo-lab', '--version']\n"
        "from tepo_lab.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "null = os.stat(os.devnull).st_rdev\n"
        "sys.stderr.write(str([os.fstat(number).st_rdev == null for number in (0, 1)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr.endswith("[True, True]")
