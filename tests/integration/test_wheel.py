"""The built wheel works outside the repository, in an environment that has only the planner's few dependencies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_the_registry_and_the_embedded_model(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for needed in (
        "tepo_lab/_registry/experiments/arm/tepo.yaml",
        "tepo_lab/_registry/sweeps/panel-e.yaml",
        "tepo_lab/_registry/reports/table3.yaml",
        "tepo_lab/_registry/reports/published/table3.csv",
        "tepo_lab/assets/nano/model.safetensors",
        "tepo_lab/assets/nano/tokenizer.json",
    ):
        assert needed in names
    assert not [name for name in names if name.startswith("tests/")]


def test_installed_elsewhere_it_plans_panel_e_from_an_empty_folder(wheel, tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)], check=True
    )
    code = f"""
import tepo_lab
assert tepo_lab.__file__.startswith({str(site)!r})
from tepo_lab.cli import main
main()
"""
    # -P keeps the checkout's folder off the path; the installed copy comes before an editable install of it.
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "plan", "panel-e", "--format", "json"],
        cwd=empty,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["training_runs"], plan["base_evaluations"]) == (12, 1)
    assert list(empty.iterdir()) == []
