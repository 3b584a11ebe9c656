"""Supervised warm start: what the loss covers, the schedule, and that every bit comes again."""

import pytest
import torch
from transformers import Qwen3ForCausalLM

from tepo_lab.errors import DataError, ModelError
from tepo_lab.nano.network import nano_network, nano_tokenizer
from tepo_lab.nano.warm_start import (
    IGNORED,
    WarmStartSettings,
    accumulate_gradient,
    encode_pairs,
    pad_right,
    warm_start,
)

PAIRS = [("a10b+1=", r"b=11\boxed{11}"), ("a10b+1c+1=", r"\boxed{12}"), ("a59b*3=", r"b59*3=77\boxed{77}")]
SETTINGS = WarmStartSettings(batches=6, learning_rate=3e-3, warmup=2)


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    return nano_network(0)


def gradients(model: Qwen3ForCausalLM) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_labels_cover_the_response_and_its_end_token_only() -> None:
    tokenizer = nano_tokenizer()
    input_ids, labels = pad_right(encode_pairs(tokenizer, PAIRS), tokenizer)
    for row, (prompt, response) in enumerate(PAIRS):
        labelled = labels[row] != IGNORED
        assert tokenizer.decode(labels[row][labelled]) == response + "<eos>"
        assert tokenizer.decode(input_ids[row]).rstrip("<pad>") == (prompt + response + "<eos>").rstrip("<pad>")
        assert labelled.nonzero()[0].item() == len(tokenizer(prompt)["input_ids"])


def test_the_loss_is_the_mean_over_response_tokens_of_each_pair_alone(model: Qwen3ForCausalLM) -> None:
    tokenizer = nano_tokenizer()
    total, tokens = 0.0, 0
    for prompt, response in PAIRS:
        prompt_ids = tokenizer(prompt)["input_ids"]
        ids = torch.tensor([prompt_ids + tokenizer(response)["input_ids"] + [tokenizer.eos_token_id]])
        log_probs = model(ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None]).squeeze(-1)
        total -= log_probs[len(prompt_ids) - 1 :].sum().item()
        tokens += ids.shape[1] - len(prompt_ids)
    assert accumulate_gradient(model, tokenizer, PAIRS, rows_per_forward=3) == pytest.approx(total / tokens, abs=1e-5)


def test_cutting_a_batch_leaves_its_gradient(model: Qwen3ForCausalLM) -> None:
    accumulate_gradient(model, nano_tokenizer(), PAIRS, rows_per_forward=3)
    whole = gradients(model)
    model.zero_grad()
    accumulate_gradient(model, nano_tokenizer(), PAIRS, rows_per_forward=1)
    for together, cut in zip(whole, gradients(model), strict=True):
        torch.testing.assert_close(together, cut, atol=1e-6, rtol=1e-4)


def test_training_lowers_the_loss_and_reports_each_batch(model: Qwen3ForCausalLM) -> None:
    seen = []
    last = warm_start(model, nano_tokenizer(), [PAIRS] * 9, SETTINGS, on_progress=seen.append)
    assert [progress.batch for progress in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[-1] == last
    assert last.loss < seen[0].loss - 0.5


def test_training_stops_when_told(model: Qwen3ForCausalLM) -> None:
    last = warm_start(model, nano_tokenizer(), [PAIRS] * 9, SETTINGS, until=lambda progress: progress.batch == 3)
    assert last.batch == 3


def test_the_same_batches_give_the_same_bits_on_any_number_of_threads() -> None:
    threads = torch.get_num_threads()
    weights = []
    for count in (1, 2):
        torch.set_num_threads(count)
        model = nano_network(0)
        warm_start(model, nano_tokenizer(), [PAIRS] * 3, SETTINGS)
        assert torch.get_num_threads() == count
        weights.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    torch.set_num_threads(threads)
    assert torch.equal(*weights)


def test_the_rate_rises_linearly_and_falls_as_a_cosine_to_zero() -> None:
    settings = WarmStartSettings(batches=110, learning_rate=1.0, warmup=10)
    assert [settings.rate(0), settings.rate(4), settings.rate(9), settings.rate(10)] == pytest.approx([0.1, 0.5, 1, 1])
    assert settings.rate(60) == pytest.approx(0.5)
    assert settings.rate(110) == pytest.approx(0.0)


def test_an_empty_response_is_refused(model: Qwen3ForCausalLM) -> None:
    with pytest.raises(DataError, match="'a10b' is empty"):
        warm_start(model, nano_tokenizer(), [[("a10b", "")]], SETTINGS)


def test_no_batches_are_refused(model: Qwen3ForCausalLM) -> None:
    with pytest.raises(DataError, match="no batch"):
        warm_start(model, nano_tokenizer(), [], SETTINGS)


def test_a_diverged_loss_is_refused(model: Qwen3ForCausalLM) -> None:
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="batch 1"):
        warm_start(model, nano_tokenizer(), [PAIRS], SETTINGS)
