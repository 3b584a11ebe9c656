"""A run's identity: frozen for what it was, changed by what decides the weights, not by anything else."""

from __future__ import annotations

import pytest

from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import IDENTITY_VERSION, planned


def run_id(spec):
    return planned(spec).run_id


#: Ids as they were given out. A change here cuts runs on users' disks off from their sweeps: raise IDENTITY_VERSION.
FROZEN = {
    ("base", "nano", 0): "8450953b9d9d",
    ("tepo", "nano", 1): "44935644fcec",
    ("tepo", "qwen2.5-7b", 2): "b08d1df8adcd",
    ("grpo_dapo", "qwen3-14b", 2): "ec382e43ac7c",
    ("tepo_kl_0.1_k1", "smollm2-135m", 3): "f065ad86d8d2",
}


def test_ids_are_frozen():
    found = {key: run_id(compose_run(key[0], key[1], seed=key[2])) for key in FROZEN}
    assert (IDENTITY_VERSION, found) == (1, FROZEN)


@pytest.mark.parametrize(
    ("profile", "overrides", "is_part"),
    [
        (
            "nano",
            "trainer.steps=5 trainer.evaluate_at=[3] trainer.checkpoint_every=1 trainer.micro_batch_tokens=999 "
            "resources.cpus=4 resources.max_retries=0 profile.label=other model.name=other "
            "model.gradient_checkpointing=true suite.name=other suite.benchmarks.sum3.label=other "
            "rollout.sequences_per_batch=7",
            False,
        ),
        (
            "smollm2-135m",
            "rollout.max_sampler_mismatch=0.5 resources.gpu_memory_gb=40 model.sizes.parameters=7 "
            "model.origin.license=MIT model.path=elsewhere model.system_role=true "
            "suite.benchmarks.gsm8k.prompt=null suite.benchmarks.gsm8k.prompt={template:boxed_chat} "
            "suite.benchmarks.gsm8k.grader=null",
            False,
        ),
        (
            "nano",
            "objective.clip_low=0.1 profile.tepo_kl_coef=0.5 trainer.learning_rate=1e-5 trainer.group_size=4 "
            "data.terms=[3] suite.benchmarks.sum3.problems=10 suite.max_new_tokens=50 rollout.temperature=0.9 "
            "prompt.template=boxed_chat model.dtype=bfloat16",
            True,
        ),
        (
            "smollm2-135m",
            f"model.sha256={'0' * 64} model.system_role=false suite.benchmarks.gsm8k.prompt={{template:dapo_answer}} "
            "suite.benchmarks.gsm8k.grader=exact data.take=8 data.skip=8",
            True,
        ),
    ],
)
def test_what_is_part_of_a_runs_identity(profile, overrides, is_part):
    plain = run_id(compose_run("tepo", profile))
    changed = {override: run_id(compose_run("tepo", profile, [override])) != plain for override in overrides.split()}
    assert changed == dict.fromkeys(changed, is_part)


def test_seeds_share_a_family_and_equal_arms_share_an_id():
    first, second = (planned(compose_run("tepo", "nano", seed=seed)) for seed in (1, 2))
    assert first.family == second.family
    assert first.run_id != second.run_id
    same = compose_run("tepo_kl_1", "nano", ["objective.penalty.coef=0.1"], seed=1)
    assert run_id(same) == run_id(compose_run("tepo_kl_0.1", "nano", seed=1))


def test_where_data_and_weights_lie_is_no_part_of_it():
    def ids(arm: str, profile: str, *overrides: str) -> str:
        return run_id(compose_run(arm, profile, overrides))

    assert ids("tepo", "qwen2.5-7b", "data.path=/a/dapo.jsonl") == ids("tepo", "qwen2.5-7b")
    assert ids("tepo", "smollm2-135m", "data.path=/a/gsm8k_train.jsonl") == ids("tepo", "smollm2-135m")
    assert ids("tepo", "smollm2-135m", "data.path=/a/other.jsonl") != ids("tepo", "smollm2-135m")
    assert ids("tepo", "qwen2.5-7b", "model.path=/a/Q") == ids("tepo", "qwen2.5-7b", "model.path=/b/Q")
    assert ids("tepo", "qwen2.5-7b", "model.path=/a/Q") != ids("tepo", "qwen2.5-7b")


def test_an_untrained_model_is_known_by_model_suite_and_prompt_alone():
    base = run_id(compose_run("base", "nano"))
    assert run_id(compose_run("base", "nano", ["trainer.learning_rate=1e-5", "data.terms=[3]"])) == base
    assert run_id(compose_run("base", "nano", ["suite.seed=1"])) != base


def test_local_places_are_written_out_and_the_run_stays_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    given = ("data=gsm8k", "data.path=own/train.jsonl", "model.path=./weights")
    spec = compose_run("tepo", "smollm2-135m", given)
    placed = spec.with_absolute_paths()
    assert placed.data.path == str(tmp_path / "own" / "train.jsonl")
    assert placed.suite.benchmarks["gsm8k"].data.path == str(tmp_path / "gsm8k_test.jsonl")
    assert placed.model.path == str(tmp_path / "weights")
    assert planned(placed).run_id == planned(spec).run_id
    assert placed.with_absolute_paths() == placed
    hub = compose_run("tepo", "qwen2.5-7b")
    assert hub.with_absolute_paths() == hub
    nano = compose_run("tepo", "nano")
    assert nano.with_absolute_paths() == nano
