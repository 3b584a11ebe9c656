"""Where `tepo-lab report` and `theory` write, and what they refuse before any work."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tepo_lab.cli import app
from tepo_lab.cli.common import writing
from tepo_lab.errors import ConfigError


def refused(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert isinstance(done.exception, ConfigError)
    return str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("report", "dynamics", "--out", "file.md/x.png"), "--out file.md/x.png: there is no folder file.md"),
        (("report", "dynamics", "--out", "nowhere/x.png"), "--out nowhere/x.png: there is no folder nowhere"),
        (("report", "dynamics", "--out", "dir.png"), "--out dir.png: this is a folder"),
        (("report", "panel-e", "--page", "--out", "dir.html"), "--out dir.html: this is a folder"),
        (("theory", "--out", "dir.png"), "--out dir.png: this is a folder"),
        (("report", "panel-e", "--page", "--out", "page.txt"), "--out page.txt: a page is written as .html"),
        (("report", "panel-e", "--page", "--format", "json"), "--page and --format: give one"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_in_a_line(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.md").write_text("")
    Path("dir.png").mkdir()
    Path("dir.html").mkdir()
    assert words in refused(*arguments)


def test_writing_tells_the_place_at_fault_from_a_full_disk_and_other_files(tmp_path: Path) -> None:
    out = tmp_path / "x.png"
    for at in (out, tmp_path):
        with (
            pytest.raises(ConfigError, match=r"x\.png cannot be written \(no\); name another"),
            writing(out),
        ):
            raise PermissionError(errno.EACCES, "no", str(at))
    with pytest.raises(OSError, match="full"), writing(out):
        raise OSError(errno.ENOSPC, "full", str(out))
    with pytest.raises(PermissionError), writing(out):
        raise PermissionError(errno.EACCES, "no", str(tmp_path / "run.json"))
