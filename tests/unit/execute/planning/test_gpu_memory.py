"""Memory of one GPU, against numbers reckoned by hand."""

from __future__ import annotations

import json

import pytest

from tepo_lab.errors import ResourceError
from tepo_lab.execute.planning.gpu_memory import (
    OVERHEAD_GB,
    check_memory,
    estimate,
    memory_lines,
    parameters_of,
    sizes_of,
)
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.locations import names

#: Sizes of no model, round ones.
SMALL = (
    "{parameters: 1000000000, layers: 10, hidden_size: 1000, intermediate_size: 4000, heads: 10, kv_heads: 2, "
    "head_dim: 100, vocabulary: 100000}"
)
ONE_GPU = (
    f"model.sizes={SMALL}",
    "rollout.engine=transformers",
    "rollout.max_prompt_tokens=1000",
    "rollout.max_new_tokens=1000",
    "suite.max_new_tokens=1000",
    "rollout.sequences_per_batch=100",
    "trainer.micro_batch_tokens=4000",
    "resources={gpus: 1, learners: 1, gpu_memory_gb: null}",
)


def memory_of(*overrides):
    memory = estimate(compose_run("tepo", "qwen2.5-7b", (*ONE_GPU, *overrides)))
    assert memory is not None
    return memory


@pytest.fixture(autouse=True)
def no_hub_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def test_one_learner_in_bfloat16():
    memory = memory_of("model.gradient_checkpointing=true")
    assert (memory.weights, memory.gradients, memory.optimizer, memory.gathered) == (6.0, 4.0, 8.0, 0.0)
    # One layer keeps 4 h + 100 (2 * 10 + 2 * 2) + 4 i = 22,400 values a token; each of ten its input, 1000.
    assert memory.activations == pytest.approx(4000 * 2 * (10 * 1000 + 22_400) / 1e9)
    assert memory.logits == pytest.approx(4000 * 100_000 * 4 * 4 / 1e9)
    # 100 sequences of 2000 tokens, each with 2 * 10 * 2 * 100 values of 2 bytes a token.
    assert memory.engine == pytest.approx(100 * 2000 * 4000 * 2 / 1e9)
    assert memory.needed() == pytest.approx(18 + 0.2592 + 6.4 + OVERHEAD_GB)


def test_sixteen_bytes_a_parameter_are_shared_by_learners():
    memory = memory_of("resources={gpus: 8, learners: 8}")
    assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(16 / 8)
    # Two layers of (1e9 - 2e8) / 10 parameters and the 2e8 outside of them, in bfloat16; a replica samples.
    assert memory.gathered == pytest.approx(2 * (2 * 0.08 + 0.2))
    assert (memory.engine, memory.replica) == pytest.approx((1.6, 2.0))
    # The replica stays while the learners work; vLLM's copy of the weights does not.
    assert memory.learning == pytest.approx(2 + 0.72 + memory.activations + 6.4 + 2.0 + OVERHEAD_GB)
    sleeping = memory_of("resources={gpus: 8, learners: 8}", "rollout.engine=vllm")
    assert sleeping.learning == pytest.approx(memory.learning - 2.0)
    assert (sleeping.engine, sleeping.replica) == pytest.approx((2.0 + 0.016, 0.0))


def test_float32_and_no_checkpointing():
    memory = memory_of("model.dtype=float32", "model.gradient_checkpointing=false")
    assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(16)
    assert memory.activations == pytest.approx(4000 * 4 * 10 * 22_400 / 1e9)


def test_logits_are_held_in_chunks():
    assert memory_of("trainer.micro_batch_tokens=16000").logits == pytest.approx(2**29 * 16 / 1e9)


def test_what_cannot_fit_is_refused_with_numbers_and_a_mend():
    fits = compose_run("tepo", "qwen2.5-7b", (*ONE_GPU, "resources.gpu_memory_gb=27"))
    check_memory([fits])
    with pytest.raises(ResourceError, match=r"needs 27 GB of each GPU .*one has 20 GB; share it by more learners"):
        check_memory([fits], 20)
    unknown = compose_run("tepo", "qwen2.5-7b", ONE_GPU)
    check_memory([unknown])
    with pytest.raises(ResourceError, match="one has 10 GB"):
        check_memory([unknown], 10)


def test_a_replica_that_leaves_no_room_to_learn_is_mended_by_vllm():
    spec = compose_run("tepo", "qwen2.5-7b", (*ONE_GPU, "resources={gpus: 8, learners: 8}"))
    with pytest.raises(ResourceError, match=r"beside a replica of 2\.0\).*set rollout\.engine=vllm"):
        check_memory([spec], 13)


def test_vllm_takes_its_share_of_the_gpu_beside_the_resting_learner():
    spec = compose_run("tepo", "qwen2.5-7b", (*ONE_GPU, "rollout.engine=vllm"))
    # Awake it plans with 0.6 of the GPU, and 6 + 8 + 2 GB rest beside it: 40 GB hold both, 39 do not.
    check_memory([spec], 40)
    with pytest.raises(ResourceError):
        check_memory([spec], 39)


def test_every_profile_fits_the_gpus_that_it_asks_for():
    specs = [compose_run("tepo", profile) for profile in names("experiments", "profile")]
    check_memory(specs)
    assert len(memory_lines(specs)) == sum(spec.resources.gpus > 0 for spec in specs) == 5


def test_runs_without_gpus_and_untrained_models_have_no_estimate():
    assert estimate(compose_run("tepo", "nano")) is None
    assert estimate(compose_run("base", "qwen2.5-7b")) is None


@pytest.mark.parametrize("model", [name for name in names("experiments", "profile") if name != "nano"])
def test_declared_sizes_add_up_to_the_declared_parameters(model):
    sizes = compose_run("base", model).model.sizes
    assert sizes is not None
    shape = sizes.model_dump(exclude={"parameters"})
    assert parameters_of(**shape, tied=model.startswith("smollm2")) == pytest.approx(sizes.parameters, rel=1e-4)


def test_sizes_come_from_a_configuration_at_hand(tmp_path, monkeypatch):
    spec = compose_run("base", "nano").model
    nano = sizes_of(spec)
    assert nano is not None
    assert (nano.layers, nano.hidden_size, nano.vocabulary) == (3, 64, 35)
    config = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 8,
        "intermediate_size": 16,
        "vocab_size": 10,
    }
    place = tmp_path / "hub" / "models--some--model" / "snapshots" / "abc"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(config))
    found = sizes_of(spec.model_copy(update={"path": "some/model", "sizes": None}))
    assert found is not None
    assert (found.kv_heads, found.head_dim) == (4, 2)
    assert found.parameters == 2 * (2 * 8 * 2 * 8 + 3 * 8 * 16 + 16) + 2 * 10 * 8 + 8
    assert sizes_of(spec.model_copy(update={"path": "no/such", "sizes": None})) is None
