"""The order in which a colocated vLLM sleeps, takes weights and wakes on a GPU, as a stand-in for it notes them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tepo_lab.rollout.engine import Sampling
from tepo_lab.rollout.vllm_engine import VllmEngine


class Recorder:
    """Stands in for vLLM's LLM: notes each call, and answers every request with the token 7."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.weights: list[dict[str, torch.Tensor]] = []

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {tags[0]}")

    def collective_rpc(self, method: str, kwargs: dict) -> None:
        assert kwargs["is_checkpoint_format"]
        self.weights.append({name: value.clone() for name, value in kwargs["weights_iterator"]})
        self.calls.append(method)

    def reset_prefix_cache(self) -> None:
        self.calls.append("reset")

    def generate(self, requests: list, settings: list, use_tqdm: bool) -> list:
        self.calls.append("generate")
        one = SimpleNamespace(
            index=0, token_ids=[7], logprobs=[{7: SimpleNamespace(logprob=-0.5)}], finish_reason="length"
        )
        return [SimpleNamespace(outputs=[one]) for _ in requests]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> VllmEngine:
    module = ModuleType("vllm")
    module.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    made = VllmEngine.__new__(VllmEngine)
    made.model = torch.nn.Linear(2, 1, bias=False)
    made.end_ids, made.on_gpu, made.is_current = [1], True, False
    made.llm = Recorder()
    return made


def test_on_a_gpu_it_sleeps_after_each_batch_and_wakes_with_the_trainers_weights(engine: VllmEngine) -> None:
    generate = ["wake weights", "reload_weights", "wake kv_cache", "reset", "generate", "sleep 2"]
    ((response,),) = engine.generate([[5, 6]], samples=1, sampling=Sampling(1.0, 1))
    assert (response.token_ids, response.log_probs, response.truncated) == ((7,), (-0.5,), True)
    assert engine.llm.calls == generate
    with torch.no_grad():
        engine.model.weight.fill_(3.0)
    engine.sync_weights()
    engine.generate([[5, 6]], samples=1, sampling=Sampling(1.0, 1))
    assert engine.llm.calls == generate * 2
    assert torch.equal(engine.llm.weights[1]["weight"], torch.full((1, 2), 3.0))


def test_on_a_cpu_weights_are_taken_once_until_they_are_synced(engine: VllmEngine) -> None:
    engine.on_gpu = False
    for _ in range(2):
        engine.generate([[5]], samples=1, sampling=Sampling(1.0, 1))
    assert engine.llm.calls == ["reload_weights", "reset", "generate", "generate"]
    engine.sync_weights()
    engine.generate([[5]], samples=1, sampling=Sampling(1.0, 1))
    assert engine.llm.calls[4:] == ["reload_weights", "reset", "generate"]
