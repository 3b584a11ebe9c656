"""The embedded model's tokenizer, and the checkpoint that the package ships."""

import hashlib
import json
import random
from importlib.resources import as_file, files

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from tepo_lab.nano.network import VOCABULARY, nano_network, nano_tokenizer
from tepo_lab.tasks.chain import ChainTask, DemonstrationStyle, demonstration


@pytest.fixture(params=["fresh", "saved", "shipped"])
def tokenizer(request: pytest.FixtureRequest, tmp_path) -> PreTrainedTokenizerBase:
    if request.param == "shipped":
        with as_file(files("tepo_lab") / "assets" / "nano") as folder:
            return AutoTokenizer.from_pretrained(folder)
    fresh = nano_tokenizer()
    if request.param == "fresh":
        return fresh
    fresh.save_pretrained(tmp_path)
    nano_network(0).save_pretrained(tmp_path)
    return AutoTokenizer.from_pretrained(tmp_path)


def test_every_sequence_of_ids_survives_decoding(tokenizer: PreTrainedTokenizerBase) -> None:
    draw = random.Random(0)
    for _ in range(50):
        ids = [draw.randrange(len(VOCABULARY)) for _ in range(30)]
        assert tokenizer(tokenizer.decode(ids))["input_ids"] == ids


def test_texts_of_the_task_survive_encoding(tokenizer: PreTrainedTokenizerBase) -> None:
    for problem in ChainTask(terms=14, operators="+-*").problems("train", 0, 20):
        text = problem.prompt + demonstration(problem.prompt, DemonstrationStyle(), random.Random(0))
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids


def test_the_box_is_one_token_and_the_rest_are_characters(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.tokenize("b=77\\boxed{77}") == ["b", "=", "7", "7", "\\boxed{", "7", "7", "}"]


def test_a_foreign_character_is_unknown(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer("a?")["input_ids"] == [VOCABULARY.index("a"), VOCABULARY.index("<unk>")]


def test_special_tokens_are_real_and_padding_is_on_the_left(tokenizer: PreTrainedTokenizerBase) -> None:
    specials = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert specials == (0, 1, 2, 3)
    assert tokenizer(["a1", "a"], padding=True)["input_ids"][1] == [0, VOCABULARY.index("a")]


def test_fresh_weights_depend_on_the_seed_alone_and_leave_the_random_state() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    first, again, other = nano_network(1), nano_network(1), nano_network(2)
    assert torch.rand(1) == expected
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.model.embed_tokens.weight, other.model.embed_tokens.weight)


def test_the_shipped_weights_are_those_of_the_recorded_hash() -> None:
    folder = files("tepo_lab") / "assets" / "nano"
    recorded = json.loads((folder / "sha256.json").read_text())
    assert {"model.safetensors": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()} == recorded


def test_the_shipped_model_is_the_network_described_here() -> None:
    with as_file(files("tepo_lab") / "assets" / "nano") as folder:
        model = AutoModelForCausalLM.from_pretrained(folder)
    fresh = nano_network(0)
    assert {name: weight.shape for name, weight in model.state_dict().items()} == {
        name: weight.shape for name, weight in fresh.state_dict().items()
    }
    assert model.dtype == torch.float32
    assert (model.generation_config.pad_token_id, model.generation_config.eos_token_id) == (0, 2)
