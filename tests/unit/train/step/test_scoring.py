from __future__ import annotations

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tepo_lab.train.step import scoring
from tepo_lab.train.step.scoring import Scorer, pack, pack_sharing

PROMPTS = [[15, 16, 20, 21], [15, 11, 12, 13, 14, 15, 16]]
RESPONSES = [(20, 21, 22, 5, 2), (18, 2)]


def by_hand(model, prompt, response, temperature=1.0):
    """Log-probabilities and entropies of one response, from the model's logits and nothing else."""
    logits = model(torch.tensor([[*prompt, *response]])).logits[0].double() / temperature
    log_softmax = logits.log_softmax(-1)
    rows = log_softmax[len(prompt) - 1 : -1]
    return rows[torch.arange(len(response)), torch.tensor(response)], -(rows.exp() * rows).sum(-1)


def assert_equals_by_hand(model, scores, temperature=1.0):
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        log_probs, entropy = by_hand(model, prompt, response, temperature)
        assert torch.allclose(scores.log_probs[row, : len(response)].double(), log_probs, atol=1e-5)
        assert torch.allclose(scores.entropy[row, : len(response)].double(), entropy, atol=1e-5)
        assert (scores.log_probs[row, len(response) :] == 0).all()


def test_scores_equal_the_models_logits_row_by_row(nano):
    for temperature in (1.0, 0.6):
        scorer = Scorer(nano.model, temperature=temperature)
        assert scorer.head is not None
        assert scorer.shares_prompts
        for sequences in (pack(PROMPTS, RESPONSES, nano.pad_id), pack_sharing(PROMPTS, RESPONSES)):
            with torch.no_grad():
                assert_equals_by_hand(nano.model, scorer(sequences), temperature)


def test_a_shared_prompt_is_run_once_and_last_tokens_never():
    prompts = [[3, 4, 5]] * 3 + [[6, 7]] * 2
    responses = [[8, 9, 2], [8, 2], [2], [9, 9, 9, 2], [8, 2]]
    sequences = pack_sharing(prompts, responses)
    assert sequences.input_ids.tolist() == [[3, 4, 5, 8, 9, 8, 6, 7, 9, 9, 9, 8]]
    assert sequences.position_ids.tolist() == [[0, 1, 2, 3, 4, 3, 0, 1, 2, 3, 4, 2]]
    assert sequences.predicting.tolist() == [2, 3, 4, 2, 5, 2, 7, 8, 9, 10, 7, 11]
    assert sequences.to_rows(sequences.targets).tolist() == [[*each, *[0] * (4 - len(each))] for each in responses]


MODELS = {
    "grouped queries": (Qwen2Config, Qwen2ForCausalLM, {"num_key_value_heads": 2}),
    "learned positions": (GPT2Config, GPT2LMHeadModel, {}),
    "partial rotation, parallel blocks": (GPTNeoXConfig, GPTNeoXForCausalLM, {}),
    "checkpointed": (LlamaConfig, LlamaForCausalLM, {}),
}


SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}


def small(config_class, model_class, **settings):
    torch.manual_seed(0)
    config = config_class(**SMALL | settings)
    # Without dropout: two passes are to be the same.
    for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return model_class(config).train()


def scores_and_gradient(scorer, sequences):
    scorer.model.zero_grad()
    scores = scorer(sequences, entropy_gradient=True)
    (scores.log_probs.cumsum(1) * scores.entropy).sum().backward()
    return scores, torch.cat([each.grad.flatten() for each in scorer.model.parameters()])


@pytest.mark.parametrize("name", list(MODELS))
def test_any_model_with_full_attention_shares_prompts(name):
    config_class, model_class, settings = MODELS[name]
    model = small(config_class, model_class, **settings)
    if name == "checkpointed":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    scorer = Scorer(model, temperature=1.0)
    assert scorer.shares_prompts
    prompts = [prompt for prompt, count in (([5, 6, 7], 3), ([8, 9], 20), ([10, 11, 12, 13], 1)) for _ in range(count)]
    responses = [[3 + (row * 7 + place) % 30 for place in range(1 + row * 5 % 17)] for row in range(len(prompts))]
    shared, gradient = scores_and_gradient(scorer, pack_sharing(prompts, responses))
    padded, expected = scores_and_gradient(scorer, pack(prompts, responses, 0))
    assert torch.allclose(shared.log_probs, padded.log_probs, atol=1e-5)
    assert (gradient - expected).norm() < 2e-6 * expected.norm()


def test_a_model_with_a_sliding_window_is_scored_in_padded_rows():
    settings = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0, "num_key_value_heads": 4}
    model = small(Qwen2Config, Qwen2ForCausalLM, **settings)
    scorer = Scorer(model, temperature=1.0)
    assert not scorer.shares_prompts
    assert scorer.pack(PROMPTS, RESPONSES, 0).layout is None
    with torch.no_grad():
        assert_equals_by_hand(model, scorer(scorer.pack(PROMPTS, RESPONSES, 0)))


def test_a_model_that_keeps_its_attention_to_itself_is_scored_in_padded_rows(monkeypatch):
    """One that takes the keyword but attends as ever: the probe tells."""
    model = small(LlamaConfig, LlamaForCausalLM)
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda attend=None, **inputs: forward(**inputs))
    scorer = Scorer(model, temperature=1.0)
    assert not scorer.shares_prompts


def test_a_model_that_caps_its_logits_is_scored_through_its_own_head():
    settings = {"num_key_value_heads": 2, "head_dim": 8, "final_logit_softcapping": 0.5}
    model = small(Gemma2Config, Gemma2ForCausalLM, **settings)
    scorer = Scorer(model, temperature=1.0)
    assert scorer.head is None
    with torch.no_grad():
        assert_equals_by_hand(model, scorer(pack(PROMPTS, RESPONSES, 0)))


def test_chunks_change_neither_scores_nor_gradients(nano, monkeypatch):
    sequences = pack(PROMPTS, RESPONSES, nano.pad_id)

    def scores_and_gradient():
        nano.model.zero_grad()
        scores = Scorer(nano.model, temperature=1.0)(sequences, entropy_gradient=True)
        (scores.log_probs.sum() + scores.entropy.sum()).backward()
        return scores.log_probs.detach(), torch.cat([p.grad.flatten() for p in nano.model.parameters()])

    whole, whole_gradient = scores_and_gradient()
    vocabulary = nano.model.config.vocab_size
    monkeypatch.setattr(scoring, "MAX_LOGITS", 2 * vocabulary)
    chunked, chunked_gradient = scores_and_gradient()
    nano.model.zero_grad()
    assert torch.allclose(whole, chunked, atol=1e-6)
    assert (whole_gradient - chunked_gradient).norm() < 1e-5 * whole_gradient.norm()


def test_entropy_carries_a_gradient_only_when_asked(nano):
    scorer = Scorer(nano.model, temperature=1.0)
    sequences = pack(PROMPTS, RESPONSES, nano.pad_id)
    assert scorer(sequences).entropy.requires_grad is False
    assert scorer(sequences, entropy_gradient=True).entropy.requires_grad is True
