from __future__ import annotations

import pytest
import torch

from tepo_lab.registry.compose import compose_run
from tepo_lab.rollout.engine import Response
from tepo_lab.rollout.transformers_engine import TransformersEngine
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import ModelSpec
from tepo_lab.tasks.sources import open_source
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS
from tepo_lab.train.model import load_model
from tepo_lab.train.step.batches import make_mini_batches
from tepo_lab.train.step.collect import Collector, Group
from tepo_lab.train.step.learner import Learner
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
@pytest.mark.integration
def test_micro_batches_change_nothing_beyond_rounding(overrides):
    whole, whole_metrics = after_learning(*overrides)
    split, split_metrics = after_learning(*overrides, "trainer.micro_batch_tokens=400")
    assert split_metrics["actor/grad_norm"] == pytest.approx(whole_metrics["actor/grad_norm"], rel=1e-4)
    assert split_metrics["actor/pg_loss"] == pytest.approx(whole_metrics["actor/pg_loss"], rel=1e-3, abs=1e-6)
    assert torch.allclose(whole, split, atol=2e-5)


#: Arms and micro-batch tokens: a loss of each token, of the whole mini-batch, and one with the entropy's gradient.
LAYOUT_CASES = [("grpo_dapo", None), ("tepo", None), ("clip_cov", 400), ("kl_cov", 400), ("max_entropy", 400)]


@pytest.fixture(scope="module")
def groups():
    spec = compose_run("tepo", "nano", ("trainer.prompts_per_step=16",), seed=1)
    loaded = load_nano()
    engine = TransformersEngine(loaded.model, end_ids=loaded.end_ids, pad_id=loaded.pad_id)
    return Collector(spec, engine, loaded.tokenizer, open_source(spec.data)).collect(1, 0).groups


@pytest.mark.parametrize(
    ("arm", "micro_batch_tokens"),
    [("tepo", 400), *(pytest.param(*case, marks=pytest.mark.integration) for case in LAYOUT_CASES)],
)
def test_losses_and_gradients_equal_those_of_padded_rows(arm, micro_batch_tokens, groups):
    """Padded rows are transformers' plain forward pass. The weights have moved since the old scores were taken."""
    found = {}
    for shares in (True, False):
        spec = compose_run(arm, "nano", ("trainer.prompts_per_step=16", "trainer.mini_batch_prompts=16"), seed=1)
        trainer = spec.trainer.model_copy(update={"micro_batch_tokens": micro_batch_tokens})
        loaded = load_nano()
        learner = Learner(spec.model_copy(update={"trainer": trainer}), loaded)
        assert learner.scorer.shares_prompts
        learner.scorer.shares_prompts = shares
        (mini_batch,) = make_mini_batches(groups, trainer, learner.scorer, learner.pad_id, SINGLE_PROCESS)
        with torch.no_grad():
            mini_batch = mini_batch.with_old_scores(learner._score)
        assert (len(mini_batch.micro_batches) == 1) == (micro_batch_tokens is None)
        moved = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for each in loaded.model.parameters():
                each += 1e-3 * torch.randn(each.shape, generator=moved)
        metrics = learner._backward(mini_batch)
        found[shares] = metrics, torch.cat([each.grad.flatten().double() for each in loaded.model.parameters()])
    (metrics, gradient), (plain_metrics, plain) = found[True], found[False]
    assert plain.norm() > 0
    assert (gradient - plain).norm() < 1e-6 * plain.norm()
    for name, value in plain_metrics.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name


def test_on_the_first_mini_batch_every_ratio_is_one_and_no_entropy_has_changed():
    _, metrics = after_learning("trainer.mini_batch_prompts=16")
    assert metrics["actor/updates"] == 1
    assert metrics["ratio/min"] == metrics["ratio/max"] == 1
    assert metrics["entropy/change_mean"] == 0
    assert metrics["mask/share"] == 0
    assert metrics["actor/ppo_kl"] == 0


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model_that_comes_with_dropout_learns_without(checkpointing, tmp_path):
    """With dropout old and new log-probabilities would differ by its noise; checkpointed passes are made twice."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from tepo_lab.nano.network import nano_tokenizer

    tokenizer = nano_tokenizer()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=128, n_embd=16, n_layer=2, n_head=2)
    assert config.resid_pdrop == config.attn_pdrop == config.embd_pdrop == 0.1
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = ModelSpec(name="gpt2", path=str(tmp_path), gradient_checkpointing=checkpointing)
    loaded = load_model(model, torch.device("cpu"))
    spec = compose_run("tepo", "nano", ("trainer.prompts_per_step=2", "trainer.mini_batch_prompts=2"), seed=1)
    problem = Problem(id="p", prompt="p", answer="a")
    responses = [Response((5, 6, 7, 8), False), Response((9, 10), False)]
    metrics = Learner(spec, loaded).learn(1, [Group(problem, [3, 4], responses, [1.0, 0.0], [0.5, -0.5])] * 2)
    assert metrics["actor/grad_norm"] > 0
    assert metrics["ratio/min"] == metrics["ratio/max"] == 1
    assert loaded.model.is_gradient_checkpointing == checkpointing
    # What checkpointing in transformers goes by.
    assert loaded.model.training


@pytest.mark.integration
def test_no_gradient_is_kept_after_an_update(groups):
    spec = compose_run("tepo", "nano", ("trainer.gradient_ratio_every=1",), seed=1)
    loaded = load_nano()
    learner = Learner(spec, loaded)
    assert learner.learn(1, groups)["actor/grad_norm"] > 0
    assert all(each.grad is None for each in [*loaded.model.parameters(), *learner.weights])


@pytest.mark.integration
def test_later_mini_batches_move_away_from_the_rollout_policy():
    _, metrics = after_learning("trainer.mini_batch_prompts=2")
    assert metrics["ratio/min"] < 1 < metrics["ratio/max"]
    assert metrics["mask/share"] > 0


@pytest.mark.integration
def test_learning_raises_the_probability_of_right_answers():
    spec = compose_run("grpo_dapo", "nano", ("trainer.prompts_per_step=16", "trainer.mini_batch_prompts=4"), seed=1)
    loaded = load_nano()
    engine = TransformersEngine(loaded.model, end_ids=loaded.end_ids, pad_id=loaded.pad_id)
    groups = Collector(spec, engine, loaded.tokenizer, open_source(spec.data)).collect(1, 0).groups
    learner = Learner(spec, loaded)

    def mean_log_prob(right):
        from tepo_lab.train.step.scoring import pack

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


@pytest.mark.integration
def test_epochs_go_over_the_same_mini_batches_again():
    _, metrics = after_learning("trainer.epochs=2")
    assert metrics["actor/updates"] == 8


@pytest.mark.integration
@pytest.mark.parametrize("where", ["all", "top_covariance"])
def test_the_gradient_ratio_is_measured_when_asked_and_changes_no_number(where):
    overrides = (f"objective.penalty.where={where}", "trainer.micro_batch_tokens=400", "objective.penalty.coef=0.5")
    plain, metrics = after_learning(*overrides, steps=2)
    measured, found = after_learning(*overrides, "trainer.gradient_ratio_every=2", steps=2)
    assert torch.equal(plain, measured)
    assert "penalty/gradient_ratio" not in metrics
    assert 0 < found.pop("penalty/gradient_ratio") < 10
    assert {name: value for name, value in found.items() if not name.startswith("seconds/")} == {
        name: value for name, value in metrics.items() if not name.startswith("seconds/")
    }


@pytest.mark.integration
def test_the_gradient_ratio_grows_with_the_coefficient():
    ratios = []
    for coef in (0.1, 0.2):
        overrides = (f"objective.penalty.coef={coef}", "objective.penalty.estimator=k1", "objective.penalty.where=all")
        every = "trainer.gradient_ratio_every=1"
        ratios.append(after_learning(*overrides, every, "trainer.mini_batch_prompts=16")[1]["penalty/gradient_ratio"])
    # On the first mini-batch the ratio is exactly proportional: both gradients are those at the rollout policy.
    assert ratios[1] == pytest.approx(2 * ratios[0], rel=1e-4)
