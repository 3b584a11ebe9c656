"""Every command's --help: a summary that fits the list, examples that parse, and units and defaults of its options."""

from __future__ import annotations

import json
import os
import re
import shlex

import pytest
import typer

from tepo_lab.cli import app
from tests.integration.command import call

TOP = typer.main.get_command(app)


def commands(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(TOP))

#: What lists or counts; `grade` prints JSON lines anyway, and the others make files or serve.
WITH_JSON = ["run", "plan", "status", "why", "clean", "report", "audit", "theory", "ls", "show", "diff", "data check"]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_are_commands_that_parse(path):
    epilog = COMMANDS[path].epilog or ""
    lines = [line.strip() for line in epilog.splitlines() if line.startswith("  tepo-lab ")]
    assert lines, f"{' '.join(path)} has no example"
    for line in lines:
        words = shlex.split(line.partition(" > ")[0])[1:]
        assert tuple(words[: len(path)]) == path
        command = COMMANDS[path]
        with command.make_context("tepo-lab", words[len(path) :]) as context:
            assert context.params


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_a_summary_that_fits_the_list_and_help_for_every_option(path):
    summary = COMMANDS[path].get_short_help_str(limit=65)
    assert summary.endswith(".")
    assert not summary.endswith("...")
    assert [option.name for option in COMMANDS[path].params if not getattr(option, "help", None)] == []


@pytest.mark.parametrize("name", WITH_JSON)
def test_what_lists_or_counts_is_also_json_and_says_what_stands_in_it(name):
    command = COMMANDS[tuple(name.split())]
    assert "format" in {each.name for each in command.params}
    assert "--format json: " in (command.epilog or "")


@pytest.mark.parametrize("words", [(), ("data",), ("model",), ("bench",)])
def test_a_group_alone_prints_its_help(words, capsys, monkeypatch):
    done = call(capsys, monkeypatch, *words)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: tepo-lab")
    assert "Options:" in done.stdout


def test_the_version(capsys, monkeypatch):
    done = call(capsys, monkeypatch, "--version")
    assert done.code == 0
    assert re.fullmatch(r"tepo-lab \d+\.\d+\.\d+\n", done.stdout)


def test_plan_as_json_has_the_keys_that_help_names(capsys, monkeypatch, tmp_path):
    done = call(capsys, monkeypatch, "plan", "panel-e", "--format", "json", "--home", str(tmp_path / "home"))
    plan = json.loads(done.stdout)
    epilog = COMMANDS["plan",].epilog
    assert all(key in epilog for key in (*plan, *plan["runs"][0]))
    assert plan["disk_bytes"] > 0


@pytest.mark.integration
def test_what_only_reads_has_the_json_keys_that_help_names(capsys, monkeypatch, tmp_path):
    epilog = COMMANDS["audit",].epilog
    assert all(key in epilog for key in json.loads(call(capsys, monkeypatch, "audit", "--format", "json").stdout))
    (first, *_) = json.loads(call(capsys, monkeypatch, "data", "check", "--format", "json").stdout)
    assert all(key in COMMANDS["data", "check"].epilog for key in first)
    home = ("--home", str(tmp_path), "--format", "json")
    assert json.loads(call(capsys, monkeypatch, "status", *home).stdout) == {"states": {}, "runs": []}
    assert json.loads(call(capsys, monkeypatch, "why", *home).stdout) == []
    assert set(json.loads(call(capsys, monkeypatch, "ls", "--format", "json").stdout)) == {
        "arms",
        "sweeps",
        "profiles",
        "tables",
        "figures",
    }
    shown = json.loads(call(capsys, monkeypatch, "show", "tepo", "--format", "json").stdout)
    assert shown["arm"]["sources"]["objective.penalty.where"]["where"] == "Eq. 4"
    different = json.loads(call(capsys, monkeypatch, "diff", "tepo_no_kl", "gspo", "--format", "json").stdout)
    assert different == {"objective.aggregation": {"tepo_no_kl": "token-mean", "gspo": "seq-mean-token-mean"}}


def test_clean_as_json(capsys, monkeypatch, tmp_path):
    stale = tmp_path / "home" / "sweeps" / "x" / ".table.md.999999999.partial"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"12345")
    home = ("--format", "json", "--home", str(tmp_path / "home"))
    # Another machine that shares the home may be writing what has changed within a day.
    assert json.loads(call(capsys, monkeypatch, "clean", *home).stdout)["leftovers"] == []
    os.utime(stale, (0, 0))
    path = "sweeps/x/.table.md.999999999.partial"
    found = {"path": path, "why": "left by a killed writer", "bytes": 5, "run": None}
    done = call(capsys, monkeypatch, "clean", *home)
    assert json.loads(done.stdout) == {"removed": False, "bytes": 5, "leftovers": [found]}
    assert stale.exists()
    assert json.loads(call(capsys, monkeypatch, "clean", "--yes", *home).stdout)["removed"]
    assert not stale.exists()
