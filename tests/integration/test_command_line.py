"""The command line as a process of its own: plans of files, completion, and what is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.integration.test_run import run

pytestmark = pytest.mark.integration


def test_a_sweep_file_anywhere_is_planned(tmp_path):
    sweep = tmp_path / "my-sweep.yaml"
    sweep.write_text("title: mine\narms: [gspo]\nseeds: [4, 5]\n")
    plan = json.loads(run("plan", str(sweep), "--format", "json", "--home", str(tmp_path / "home")).stdout)
    assert [(each["arm"], each["seed"], each["action"]) for each in plan["runs"]] == [
        ("base", 0, "run"),
        ("gspo", 4, "run"),
        ("gspo", 5, "run"),
    ]
    assert (plan["training_runs"], plan["base_evaluations"]) == (2, 1)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("tepo-lab re", {"report", "regrade"}),
        ("tepo-lab run panel-", {f"panel-{panel}" for panel in "abcde"}),
        ("tepo-lab report fig", {"figure2", "figure3"}),
        ("tepo-lab show gs", {"gspo", "gspo_original"}),
        ("tepo-lab status gspo-", {"gspo-nano-s1-01234567"}),
        ("tepo-lab plan --cp", {"--cpus"}),
    ],
)
def test_the_shell_completes_commands_names_and_options(line, completed, tmp_path):
    record = tmp_path / "outputs" / "runs" / "gspo-nano-s1-01234567" / "run.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    words = {"_TEPO_LAB_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    code = "from tepo_lab.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=os.environ | words
    )
    assert done.stderr == ""
    assert set(done.stdout.split()) == completed


def test_planning_and_help_import_nothing_heavy():
    code = (
        "import sys\nsys.argv = ['tepo-lab', 'plan', 'panel-e']\n"
        "from tepo_lab.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'mlflow', 'transformers', 'pandas', 'datasets', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
