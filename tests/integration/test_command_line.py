"""What a user gets wrong is answered in one line on standard error, with exit code 2 and nothing changed on disk."""

from __future__ import annotations

import json

import pytest

from tests.integration.test_run import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "panel-f"), "unknown sweep 'panel-f'. Did you mean 'panel-e'?"),
        (("run", "panel-e", "arms=[tepoo]"), "unknown arm 'tepoo'. Did you mean 'tepo'?"),
        (("run", "panel-e", "trainer.stps=3"), "unknown key 'trainer.stps'. Did you mean 'steps'?"),
        (("run", "panel-e", "trainer.steps=many"), "'trainer.steps': Input should be a valid integer"),
        (("run", "panel-e", "objective.ratio=tokn"), "'objective.ratio'"),
        (("run", "panel-e", "profile=nana"), "unknown profile 'nana'. Did you mean 'nano'?"),
        (("run", "panel-e", "trainer.steps"), "is not an override: write key=value"),
        (("run", "nowhere/sweep.yaml"), "no such file"),
        (("report", "table9"), "unknown report 'table9'"),
        (("report", "table3", "--panel", "z"), "has no panel 'z'"),
        (("plan",), "Missing argument"),
        (("run", "panel-e", "--hme", "x"), "No such option"),
        (("ui",), "tepo-lab run"),
        (("show", "tepoo"), "unknown arm 'tepoo'"),
        (("run", "panel-e", "resources.cpus=1000"), "asks for 1000 CPUs"),
        (("run", "panel-e", "resources.gpus=1", "resources.device=cuda"), "GPUs"),
    ],
)
def test_a_wrong_input_gets_one_clear_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("tepo-lab: ")]
    assert len(errors) == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.rglob("run.json"))


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


def test_planning_and_help_import_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys\nsys.argv = ['tepo-lab', 'plan', 'panel-e']\n"
        "from tepo_lab.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'mlflow', 'transformers', 'pandas', 'datasets', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
