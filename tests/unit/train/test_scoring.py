from __future__ import annotations

import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from tepo_lab.train import scoring
from tepo_lab.train.scoring import Scorer, pack

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
        with torch.no_grad():
            assert_equals_by_hand(nano.model, scorer(pack(PROMPTS, RESPONSES, nano.pad_id)), temperature)


def test_a_model_that_caps_its_logits_is_scored_through_its_own_head():
    config = Gemma2Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        final_logit_softcapping=0.5,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(config).eval()
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
