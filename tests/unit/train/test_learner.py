from __future__ import annotations

import pytest
import torch

from tepo_lab.registry.compose import compose_run
from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.tasks.sources import open_source
from tepo_lab.train.experience import Collector
from tepo_lab.train.learner import Learner
from tests.conftest import load_nano


def after_learning(*overrides, arm="tepo", steps=1):
    """(weights, metrics) after some steps on the same experience under `overrides`."""
    spec = compose_run(arm, "nano", ("trainer.prompts_per_step=16", "trainer.mini_batch_prompts=4", *overrides), seed=1)
    loaded = load_nano()
    engine = TransformersEngine(loaded.model, end_ids=loaded.end_ids, pad_id=loaded.pad_id)
    experience = Collector(spec, engine, loaded.tokenizer, open_source(spec.data)).collect(1, 0)
    learner = Learner(spec, loaded)
    for step in range(1, steps + 1):
        metrics = learner.learn(step, experience.groups)
    return torch.cat([p.detach().flatten() for p in loaded.model.parameters()]), metrics


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("objective.aggregation=seq-mean-token-mean",),
        ("objective.selection={kind: clip_cov, fraction: 1.0, lower: 0.0, upper: 100.0}", "objective.penalty=null"),
        ("objective.weights={kind: steer}", "objective.penalty=null"),
        ("objective.penalty.where=top_covariance", "objective.penalty.top_fraction=0.1"),
    ],
    ids=["tepo", "gspo", "clip_cov", "steer", "kl_cov"],
)
def test_micro_batches_change_nothing_beyond_rounding(overrides):
    whole, whole_metrics = after_learning(*overrides)
    split, split_metrics = after_learning(*overrides, "trainer.micro_batch_tokens=400")
    assert split_metrics["actor/grad_norm"] == pytest.approx(whole_metrics["actor/grad_norm"], rel=1e-4)
    assert split_metrics["actor/pg_loss"] == pytest.approx(whole_metrics["actor/pg_loss"], rel=1e-3, abs=1e-6)
    assert torch.allclose(whole, split, atol=2e-5)


def test_on_the_first_mini_batch_every_ratio_is_one_and_no_entropy_has_changed():
    _, metrics = after_learning("trainer.mini_batch_prompts=16")
    assert metrics["actor/updates"] == 1
    assert metrics["ratio/min"] == metrics["ratio/max"] == 1
    assert metrics["entropy/change_mean"] == 0
    assert metrics["mask/share"] == 0
    assert metrics["actor/ppo_kl"] == 0


def test_later_mini_batches_move_away_from_the_rollout_policy():
    _, metrics = after_learning("trainer.mini_batch_prompts=2")
    assert metrics["ratio/min"] < 1 < metrics["ratio/max"]
    assert metrics["mask/share"] > 0


def test_learning_raises_the_probability_of_right_answers():
    spec = compose_run("grpo_dapo", "nano", ("trainer.prompts_per_step=16", "trainer.mini_batch_prompts=4"), seed=1)
    loaded = load_nano()
    engine = TransformersEngine(loaded.model, end_ids=loaded.end_ids, pad_id=loaded.pad_id)
    groups = Collector(spec, engine, loaded.tokenizer, open_source(spec.data)).collect(1, 0).groups
    learner = Learner(spec, loaded)

    def mean_log_prob(right):
        from tepo_lab.train.scoring import pack

        pairs = [
            (group.prompt_ids, response.token_ids)
            for group in groups
            for response, reward in zip(group.responses, group.rewards, strict=True)
            if (reward > 0) == right
        ]
        with torch.no_grad():
            return float(learner.scorer(pack(*zip(*pairs, strict=True), loaded.pad_id)).log_probs.sum() / len(pairs))

    before = mean_log_prob(True) - mean_log_prob(False)
    for _ in range(3):
        learner.learn(1, groups)
    assert mean_log_prob(True) - mean_log_prob(False) > before + 0.5


def test_warm_up_rises_linearly_to_the_learning_rate():
    spec = compose_run("tepo", "nano", ("trainer.warmup_steps=4", "trainer.learning_rate=1e-3"))
    learner = Learner(spec, load_nano())
    assert [learner._set_learning_rate(step) for step in (1, 2, 4, 9)] == pytest.approx([2.5e-4, 5e-4, 1e-3, 1e-3])


def test_epochs_go_over_the_same_mini_batches_again():
    _, metrics = after_learning("trainer.epochs=2")
    assert metrics["actor/updates"] == 8
