"""What keeps a model from being loaded: the model itself, or the machine."""

from __future__ import annotations

import errno
import json
import shutil
from importlib import resources
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tepo_lab.errors import ModelError
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import planned
from tepo_lab.schema.profile import ModelSpec
from tepo_lab.train.model import load_model

NANO = Path(str(resources.files("tepo_lab"))) / "assets" / "nano"
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("error", "is_of_machine"),
    [(OSError(number, "of the system"), True) for number in (errno.ENOMEM, errno.EMFILE, errno.ESTALE, errno.EIO)]
    + [(OSError("Cannot allocate memory (os error 12)"), True)]
    + [(OSError(number, "of the system"), False) for number in (errno.ENOENT, errno.EACCES)]
    + [(OSError("no weights in it"), False)],
    ids=str,
)
def test_failures_of_the_machine_are_not_blamed_on_the_model(error, is_of_machine, monkeypatch):
    def fail(*arguments, **settings):
        raise error

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(OSError if is_of_machine else ModelError) as raised:
        load_model(ModelSpec(name="nano", path="package:nano"), CPU)
    assert (raised.value is error) == is_of_machine


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(NANO, tmp_path / "model")


def changed(folder, change):
    """The model in `folder` with its weights changed."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return ModelSpec(name="changed", path=str(folder))


def renamed(weights):
    weights["model.norm.gain"] = weights.pop("model.norm.weight")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda weights: weights.pop("model.norm.weight"), "model.norm.weight missing"),
        (lambda weights: weights.update(extra=torch.zeros(2)), "extra unexpected"),
        (lambda weights: weights.update({"model.norm.weight": torch.zeros(3)}), "model.norm.weight mismatched"),
        (renamed, "model.norm.weight missing"),
    ],
)
def test_weights_that_do_not_fit_the_config_are_refused_by_name(change, names, folder):
    with pytest.raises(ModelError) as error:
        load_model(changed(folder, change), CPU)
    assert names in str(error.value)


def test_another_architecture_in_the_config_is_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"q_proj\.bias.* missing"):
        load_model(ModelSpec(name="other", path=str(folder)), CPU)


def test_tied_weights_may_be_stored_once_or_twice(folder):
    spec = changed(folder, lambda weights: weights.update({"lm_head.weight": weights["model.embed_tokens.weight"] + 0}))
    model = load_model(spec, CPU).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


#: A model folder's Python: imported, it leaves a file; then it is Qwen3 under another name.
REMOTE_CODE = """
from pathlib import Path
from transformers import Qwen3Config, Qwen3ForCausalLM
Path({marker!r}).touch()
class OwnConfig(Qwen3Config):
    model_type = "own"
class OwnForCausalLM(Qwen3ForCausalLM):
    config_class = OwnConfig
"""


def test_a_models_own_code_runs_only_where_it_is_trusted(folder, tmp_path, monkeypatch):
    # An answer of yes on a terminal must not matter: nothing asks.
    monkeypatch.setattr("builtins.input", lambda *prompt: "y")
    marker = tmp_path / "ran"
    config = json.loads((folder / "config.json").read_text())
    code = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": code}))
    (folder / "own.py").write_text(REMOTE_CODE.format(marker=str(marker)))
    spec = ModelSpec(name="own", path=str(folder))
    with pytest.raises(ModelError, match=r"model\.trust_remote_code=true"):
        load_model(spec, CPU)
    assert not marker.exists()
    loaded = load_model(spec.model_copy(update={"trust_remote_code": True}), CPU)
    assert marker.exists()
    assert type(loaded.model).__name__ == "OwnForCausalLM"


def test_trust_is_part_of_the_identity_and_its_default_is_not():
    default, refused, trusted = (
        compose_run("tepo", "nano", given)
        for given in ((), ("model.trust_remote_code=false",), ("model.trust_remote_code=true",))
    )
    assert planned(default).run_id == planned(refused).run_id != planned(trusted).run_id


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"[]"),
        ("config.json", b"[" * 100_000),
        ("config.json", b'{"model_type": "qwen3", "hidden_size": "x"}'),
        ("config.json", b'{"model_type": "qwen3", "num_attention_heads": 0}'),
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 1000),
        ("tokenizer.json", b"[]"),
        ("tokenizer.json", b"[" * 100_000),
        ("tokenizer_config.json", b"[]"),
        ("generation_config.json", b"[]"),
        ("generation_config.json", b'{"eos_token_id": "x"}'),
    ],
)
def test_a_damaged_file_of_a_model_is_the_models_fault(file, content, folder):
    (folder / file).write_bytes(content)
    with pytest.raises(ModelError, match=f"model.path={folder}"):
        load_model(ModelSpec(name="damaged", path=str(folder)), CPU)
