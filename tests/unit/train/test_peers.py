from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from tepo_lab.registry.compose import compose_run
from tepo_lab.rollout.engine import Response
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import ModelSpec
from tepo_lab.train.experience import Group
from tepo_lab.train.learner import Learner
from tepo_lab.train.model import LoadedModel
from tepo_lab.train.peers import ALONE
from tepo_lab.train.trial import Trial
from tests.unit.train.peers import in_processes

#: Objectives of each kind: token by token with a masked penalty, a choice of tokens over the whole mini-batch.
ARMS = {"tepo": (), "clip_cov": ("objective.selection.fraction=0.2", "objective.selection.lower=-9"), "kl_cov": ()}

OVERRIDES = (
    "trainer.prompts_per_step=8",
    "trainer.mini_batch_prompts=4",
    "trainer.micro_batch_tokens=70",
    "trainer.learning_rate=1e-3",
    "trainer.gradient_ratio_every=1",
)


def tiny(*, tied: bool):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        initializer_range=0.2,
        tie_word_embeddings=tied,
    )
    return Qwen3ForCausalLM(config).eval()


def groups(step: int, prompts: int):
    """Groups of three responses of very different lengths, so that shares and micro-batches come out uneven."""
    draw = random.Random(step)
    made = []
    for _ in range(prompts):
        ids = [[draw.randrange(40) for _ in range(draw.choice((1, 3, 30)))] for _ in range(3)]
        rewards = [1.0, 0.0, float(draw.random() < 0.5)]
        mean = sum(rewards) / 3
        responses = [Response(tuple(each), False, tuple(-1.0 for _ in each)) for each in ids]
        prompt = [draw.randrange(40) for _ in range(draw.randrange(2, 6))]
        problem = Problem(id="p", prompt="p", answer="a")
        made.append(Group(problem, prompt, responses, rewards, [reward - mean for reward in rewards]))
    return made


def learned(arm: str, model, peers):
    """Metrics of three steps, the last with a mini-batch of a single group."""
    spec = compose_run(arm, "nano", (*OVERRIDES, *ARMS[arm]), seed=1)
    learner = Learner(spec, LoadedModel(model, None, (0,), 0), peers)
    steps = [learner.learn(step, groups(step, prompts)) for step, prompts in ((1, 8), (2, 7), (3, 1))]
    return [{name: value for name, value in step.items() if not name.startswith("seconds/")} for step in steps]


#: Whether the embeddings are tied, the arm, gradient checkpointing.
CASES = {
    "tied-tepo": (True, "tepo", False),
    "untied-clip_cov": (False, "clip_cov", False),
    "tied-kl_cov-checkpointing": (True, "kl_cov", True),
}


def compare(peers, path):
    """Learn each case with all processes and with one; the first process keeps the metrics and weights of both."""
    from tepo_lab.train.sharded import full_weights, load_sharded

    results = {}
    for name, (tied, arm, checkpointing) in CASES.items():
        spec = ModelSpec(name="tiny", path="tiny", gradient_checkpointing=checkpointing)
        model = load_sharded(spec, peers, torch.device("cpu"), partial(tiny, tied=tied))
        shared = learned(arm, model, peers)
        weights = dict(full_weights(model))
        if peers.is_first:
            alone = tiny(tied=tied)
            results[name] = (shared, learned(arm, alone, ALONE), weights, alone.state_dict())
    if peers.is_first:
        torch.save(results, path)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    path = tmp_path_factory.mktemp("peers") / "results.pt"
    in_processes(2, compare, path)
    return torch.load(path)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_make_the_updates_of_one(case, compared):
    shared, alone, weights, expected = compared[case]
    for step, reference in zip(shared, alone, strict=True):
        assert step == pytest.approx(reference, rel=1e-4, abs=1e-5)
    before = tiny(tied=CASES[case][0]).state_dict()
    assert max(float((expected[name] - before[name]).abs().max()) for name in expected) > 1e-3
    assert max(float((weights[name] - expected[name]).abs().max()) for name in expected) < 1e-5


def go_on(peers, specs, folder):
    """The run's steps by all processes, then by the first alone, then by all again."""
    carry_out(specs[0], folder, peers)
    peers.first(lambda: carry_out(specs[1], folder, ALONE))
    carry_out(specs[2], folder, peers)


def carry_out(spec, folder, peers):
    trial = Trial(spec, folder, peers=peers)
    while not trial.done:
        trial.advance()


def test_a_run_goes_on_with_another_number_of_processes(small_run, tmp_path):
    every = "trainer.checkpoint_every=1"
    made = [small_run("tepo", f"trainer.steps={steps}", every) for steps in (1, 2, 3)]
    specs, folder = [spec for spec, _ in made], made[0][1]
    in_processes(2, go_on, specs, folder)
    alone = small_run("tepo", every, home=tmp_path / "alone")[1]
    carry_out(specs[2], alone, ALONE)
    for step, reference in zip(folder.metrics(), alone.metrics(), strict=True):
        for name in ("reward/mean", "rollout/tokens"):
            assert step[name] == reference[name]
        for name in ("actor/grad_norm", "actor/pg_loss", "actor/entropy", "penalty/kl_on_mask"):
            assert step[name] == pytest.approx(reference[name], rel=1e-3, abs=1e-5)
    ours, theirs = (load_file(each.checkpoint(3) / "model" / "model.safetensors") for each in (folder, alone))
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-5
