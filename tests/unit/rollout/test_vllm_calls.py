"""The order in which a colocated vLLM sleeps, takes weights and wakes on a GPU, as a stand-in for it notes them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tepo_lab.errors import MachineError
from tepo_lab.rollout.engine import Response, Sampling
from tepo_lab.rollout.vllm_engine import ENVIRONMENT, VllmEngine


class Recorder:
    """Stands in for vLLM's LLM and its engine: notes each call, and answers requests in pairs, the last ones first."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        self.seeds: list[int] = []
        self.llm_engine = self.engine_core = self
        self.waiting: list[tuple[str, int]] = []

    def shutdown(self) -> None:
        self.calls.append("shutdown")

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

    def add_request(self, request_id: str, prompt: dict, params: SimpleNamespace) -> None:
        if not self.waiting:
            self.calls.append("generate")
        self.seeds.append(params.seed)
        self.waiting.append((request_id, prompt["prompt_token_ids"][0]))

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list:
        self.waiting, done = self.waiting[:-2], self.waiting[-2:]
        unfinished = [SimpleNamespace(finished=False)] if self.waiting else []
        return unfinished + [
            SimpleNamespace(finished=True, request_id=name, outputs=[_answer(first + 2)]) for name, first in done
        ]


def _answer(token: int) -> SimpleNamespace:
    logprobs = [{token: SimpleNamespace(logprob=-0.5)}]
    return SimpleNamespace(token_ids=[token], logprobs=logprobs, finish_reason="length")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> VllmEngine:
    parts = {
        "vllm": {"SamplingParams": SimpleNamespace},
        "vllm.inputs": {"tokens_input": lambda ids: {"prompt_token_ids": ids}},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(FINAL_ONLY="final")},
    }
    for name, contents in parts.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    made = VllmEngine.__new__(VllmEngine)
    made.model = torch.nn.Linear(2, 1, bias=False)
    made.end_ids, made.on_gpu, made.is_current, made.is_asleep = [1], True, False, False
    made.llm = Recorder()
    return made


def test_on_a_gpu_it_sleeps_while_the_trainer_learns_and_wakes_with_its_weights(engine: VllmEngine) -> None:
    awake = ["reload_weights", "reset", "generate", "generate"]
    ((response,),) = engine.generate([[5, 6]], samples=1, sampling=Sampling(1.0, 1))
    assert (response.token_ids, response.log_probs, response.truncated) == ((7,), (-0.5,), True)
    engine.generate([[5, 6]], samples=1, sampling=Sampling(1.0, 1))
    assert engine.llm.calls == awake
    engine.rest()
    engine.rest()
    assert engine.llm.calls == [*awake, "sleep 2"]
    with torch.no_grad():
        engine.model.weight.fill_(3.0)
    engine.sync_weights()
    for _ in range(2):
        engine.generate([[5, 6]], samples=1, sampling=Sampling(1.0, 1))
    woken = ["wake weights", "reload_weights", "wake kv_cache", "reset", "generate", "generate"]
    assert engine.llm.calls == [*awake, "sleep 2", *woken]
    assert torch.equal(engine.llm.weights[1]["weight"], torch.full((1, 2), 3.0))


def test_on_a_cpu_weights_are_taken_once_until_they_are_synced(engine: VllmEngine) -> None:
    engine.on_gpu = False
    engine.rest()
    for _ in range(2):
        engine.generate([[5]], samples=1, sampling=Sampling(1.0, 1))
    assert engine.llm.calls == ["reload_weights", "reset", "generate", "generate"]
    engine.sync_weights()
    engine.generate([[5]], samples=1, sampling=Sampling(1.0, 1))
    assert engine.llm.calls[4:] == ["reload_weights", "reset", "generate"]


def test_closing_shuts_the_engine_down(engine: VllmEngine) -> None:
    recorder = engine.llm
    engine.close()
    assert recorder.calls == ["shutdown"]
    assert not hasattr(engine, "llm")


def test_responses_are_reported_as_they_finish_and_given_in_order(engine: VllmEngine) -> None:
    reported: list[tuple[int, int, int]] = []

    def finished(prompt: int, sample: int, response: Response) -> None:
        reported.append((prompt, sample, len(engine.llm.waiting)))
        assert response.token_ids == (5 + 10 * prompt + 2,)

    groups = engine.generate([[5], [15]], samples=3, sampling=Sampling(1.0, 1), finished=finished)
    assert [[response.token_ids for response in group] for group in groups] == [[(7,)] * 3, [(17,)] * 3]
    # The first two are reported while four others are still waiting.
    assert reported == [(1, 1, 4), (1, 2, 4), (0, 2, 2), (1, 0, 2), (0, 0, 0), (0, 1, 0)]


def test_no_two_samples_of_a_batch_share_their_noise(engine: VllmEngine) -> None:
    for seed in (3, 4):
        engine.generate([[5]] * 32, samples=8, sampling=Sampling(1.0, 1, seed=seed))
    drawn = set(engine.llm.seeds)
    assert len(drawn) == 2 * 32 * 8
    assert min(drawn) >= 0
    assert max(drawn) < 2**63


def test_a_prompts_seed_does_not_depend_on_the_batch_it_is_in(engine: VllmEngine) -> None:
    engine.generate([[5]] * 4, samples=1, sampling=Sampling(1.0, 1, seed=3))
    engine.generate([[5]] * 2, samples=1, sampling=Sampling(1.0, 1, seed=3, first_prompt=2))
    assert engine.llm.seeds[4:] == engine.llm.seeds[2:4]


def opened(monkeypatch: pytest.MonkeyPatch, llm: object, **options: object) -> VllmEngine:
    """An engine on a GPU whose vLLM is made by `llm`."""
    module = ModuleType("vllm")
    module.LLM = llm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    model = SimpleNamespace(device=torch.device("cuda"))
    sizes = {"max_tokens": 8, "sequences_per_batch": 4}
    return VllmEngine(model, checkpoint="m", dtype="float32", end_ids=[1], **sizes, **options)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(
            "Free memory on device cuda:0 (3.15/79.1 GiB) on startup is less than desired GPU memory utilization (0.6, "
            "47.5 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        ),
        ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."),
        AssertionError("Error in memory profiling. Initial free memory 3.15 GiB, current free memory 70.2 GiB."),
    ],
    ids=["held by others", "none left for the cache", "given back meanwhile"],
)
def test_memory_that_a_gpu_has_not_now_is_the_machines_failure(error: Exception, monkeypatch) -> None:
    def without_memory(**given: object) -> None:
        raise error

    with pytest.raises(MachineError) as raised:
        opened(monkeypatch, without_memory)
    first = str(error).partition(". ")[0]
    assert str(raised.value).startswith(f"vLLM cannot start ({first}): free the GPU's memory")

    def with_other_trouble(**given: object) -> None:
        raise ValueError("max_model_len is too large")

    with pytest.raises(ValueError, match="max_model_len"):
        opened(monkeypatch, with_other_trouble)


@pytest.mark.parametrize("has_peers", [False, True])
def test_only_learners_with_peers_are_placed_by_their_launcher(has_peers: bool, monkeypatch) -> None:
    """The external launcher reads RANK and LOCAL_RANK, which a learner by itself has not."""
    given: dict = {}
    opened(monkeypatch, given.update, revision="a1b2", **({"has_peers": True} if has_peers else {}))
    assert given["enable_sleep_mode"]
    assert given["revision"] == "a1b2"
    assert given.get("distributed_executor_backend") == ("external_launcher" if has_peers else None)
