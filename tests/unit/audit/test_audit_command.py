"""`tepo-lab audit` from a user's side: files, formats, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tepo_lab.cli import app
from tepo_lab.errors import ConfigError, DataError
from tests.golden_files import assert_golden

TABLE = """table,panel,model,row,label,benchmark,percent
t,,m,one,One,hard,20.83
t,,m,one,One,easy,75.00
t,,m,one,One,avg,{average}
"""
COUNTS = "benchmarks:\n  hard: {problems: 30, samples: 4}\n  easy: {problems: 200}\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.csv").write_text(TABLE.format(average="54.68"))
    (tmp_path / "mine.yaml").write_text(COUNTS)
    return tmp_path / "mine.csv"


@pytest.mark.parametrize("form", ["text", "json"])
def test_golden(form: str) -> None:
    done = CliRunner().invoke(app, ["audit", "--format", form])
    assert done.exit_code == 0
    assert_golden("report/audit", form, done.stdout)


def test_strict_exits_with_1_on_findings_alone(mine: Path) -> None:
    assert CliRunner().invoke(app, ["audit", "--strict"]).exit_code == 1
    assert CliRunner().invoke(app, ["audit", str(mine), "--strict"]).exit_code == 0


def test_counts_from_another_file(mine: Path) -> None:
    counts = mine.with_suffix(".yaml").rename(mine.with_name("counts.yml"))
    mine.write_text(TABLE.format(average="60.00"))
    done = CliRunner().invoke(app, ["audit", str(mine), "--counts", str(counts), "--format", "json"])
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["kind"], finding["row"], finding["printed"]) == ("average", "one", 60.0)
    assert isinstance(CliRunner().invoke(app, ["audit", str(mine)]).exception, DataError)
    assert isinstance(CliRunner().invoke(app, ["audit", "--counts", str(counts)]).exception, ConfigError)
