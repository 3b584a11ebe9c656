"""What comes from outside (weights, YAML, records) is never run; nothing is served or reported to others unasked."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import pickle
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch
import yaml

import tepo_lab
from tepo_lab.cli import NO_TELEMETRY
from tepo_lab.errors import ModelError, printable
from tepo_lab.records.files import RunFolder
from tepo_lab.registry.locations import parse_yaml
from tepo_lab.schema.profile import ModelSpec
from tepo_lab.track.ui import running_server, serve
from tepo_lab.train.checkpoint import MANIFEST, newest
from tepo_lab.train.model import load_model
from tepo_lab.train.training_state import load_training_state
from tests.integration.command import call

SOURCES = sorted(Path(tepo_lab.__file__).parent.rglob("*.py"))

#: Calls that run what they are given, and the one place of each that is known to be given its own.
RUNS_ITS_INPUT = {
    "eval": (),
    "exec": (),
    "compile": (),
    "os.system": (),
    "os.popen": (),
    "pickle.load": (),
    # What was pickled in the same line: whether an error can go to another process.
    "pickle.loads": ("process_group.py",),
    "yaml.unsafe_load": (),
    "yaml.full_load": (),
    "joblib.load": (),
    "numpy.load": (),
    "np.load": (),
}


class Marker:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def calls(path: Path):
    """Every call in a file, as it is written, with its keyword arguments."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {each.arg: ast.unparse(each.value) for each in node.keywords}


def test_nothing_in_the_package_runs_what_it_reads():
    found = [(path.name, name, given) for path in SOURCES for name, given in calls(path)]
    assert len(SOURCES) > 100
    assert [each for each in found if each[1] in RUNS_ITS_INPUT and each[0] not in RUNS_ITS_INPUT[each[1]]] == []
    assert [each for each in found if each[1] == "torch.load" and each[2].get("weights_only") != "True"] == []
    assert [each for each in found if each[1] == "yaml.load" and each[2].get("Loader") != "_Loader"] == []
    assert [each for each in found if each[2].get("shell") == "True"] == []
    loads = [each for each in found if each[1].endswith((".from_pretrained", ".from_config")) or each[1] == "LLM"]
    assert len(loads) >= 6
    assert [each for each in loads if "trust_remote_code" not in each[2]] == []


def test_no_python_that_is_started_imports_from_the_working_folder():
    nodes = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text())))
    lists = (list(map(ast.unparse, node.elts)) for node in nodes if isinstance(node, ast.List))
    commands = [parts for parts in lists if parts[:1] == ["sys.executable"]]
    assert len(commands) >= 2
    assert {parts[1] for parts in commands} == {"'-P'"}


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.mkdir [made]",
        "x: !!python/name:os.system",
        "!!python/object/new:os.mkdir [made]",
        "x: !!python/module:os",
        "!!binary aGVsbG8=",
        "!made x",
        'x: "\\ud800"',
    ],
)
def test_yaml_is_plain_values(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(yaml.YAMLError):
        parse_yaml(text)
    assert list(tmp_path.iterdir()) == []


def test_weights_that_would_run_something_are_refused(tmp_path):
    folder, made = tmp_path / "model", tmp_path / "made"
    shutil.copytree(Path(str(resources.files("tepo_lab"))) / "assets" / "nano", folder)
    (folder / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Marker(made)}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"use weights in model\.safetensors"):
        load_model(ModelSpec(name="hostile", path=str(folder)), torch.device("cpu"))
    assert not made.exists()


def test_a_checkpoint_that_would_run_something_is_refused(tmp_path):
    folder, made = RunFolder(tmp_path / "run"), tmp_path / "made"
    path = folder.checkpoint(3)
    path.mkdir(parents=True)
    torch.save({"torch_rng": Marker(made)}, path / "training.pt")
    digest = hashlib.sha256((path / "training.pt").read_bytes()).hexdigest()
    (path / MANIFEST).write_text(json.dumps({"step": 3, "data": 0, "sha256": {"training.pt": digest}}))
    assert newest(folder, 99) is not None
    weight = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(pickle.UnpicklingError):
        load_training_state(path, None, torch.optim.AdamW([weight]))
    assert not made.exists()


def test_pages_are_served_to_this_machine_unless_asked(tmp_path, capsys, monkeypatch):
    hosts = []
    monkeypatch.setattr("tepo_lab.track.ui.serve", lambda *given, host, **others: hosts.append(host))
    call(capsys, monkeypatch, "ui", "--home", str(tmp_path))
    call(capsys, monkeypatch, "ui", "--home", str(tmp_path), "--host", "0.0.0.0")
    assert hosts == ["127.0.0.1", "0.0.0.0"]
    for each in (serve, running_server):
        assert inspect.signature(each).parameters["host"].default == "127.0.0.1"


@pytest.mark.integration
def test_no_library_reports_its_use():
    """In a process of its own, whose environment says nothing of it."""
    code = (
        "import sys; sys.argv = ['tepo-lab', 'ls', 'sweeps']\n"
        "from contextlib import suppress\n"
        "from tepo_lab.cli import main\n"
        "with suppress(SystemExit): main()\n"
        "from huggingface_hub import constants\n"
        "from mlflow.telemetry.utils import is_telemetry_disabled\n"
        "from ray._common.usage import usage_lib\n"
        "print(constants.HF_HUB_DISABLE_TELEMETRY, is_telemetry_disabled(), usage_lib.usage_stats_enabled())\n"
    )
    own = {name: value for name, value in os.environ.items() if name not in NO_TELEMETRY}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=own, check=True)
    assert done.stdout.splitlines()[-1] == "True True False"


def test_text_for_the_terminal_passes_where_control_characters_are_escaped():
    writes = [(path.name, name) for path in SOURCES for name, _ in calls(path) if name == "sys.stderr.write"]
    assert writes == [("errors.py", "sys.stderr.write")]
    assert printable("\x1b]52;c;x\x07 \x9b \ud800 a\tb\n") == r"\x1b]52;c;x\x07 \x9b \ud800 a" + "\tb\n"
