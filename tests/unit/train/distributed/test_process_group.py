from __future__ import annotations

import pickle
import random
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from tepo_lab.records.files import RunFolder
from tepo_lab.records.history import RunHistory
from tepo_lab.registry.compose import compose_run
from tepo_lab.rollout.engine import Response, Sampling
from tepo_lab.schema.problem import Problem
from tepo_lab.schema.profile import ModelSpec
from tepo_lab.train import checkpoint
from tepo_lab.train.distributed.process_group import SINGLE_PROCESS, TorchProcessGroup, picklable
from tepo_lab.train.distributed.sharing import SharedEngine
from tepo_lab.train.model import LoadedModel, read_model
from tepo_lab.train.step.collect import Group
from tepo_lab.train.step.learner import Learner
from tepo_lab.train.step.optimizer import adamw
from tepo_lab.train.step.sampler_check import CheckedEngine
from tepo_lab.train.training_state import load_training_state, save_training_state
from tepo_lab.train.trial import Trial
from tests.unit.train.distributed.processes import in_processes

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


def learned(arm: str, model, process_group):
    """Metrics of three steps, the last with a mini-batch of a single group."""
    spec = compose_run(arm, "nano", (*OVERRIDES, *ARMS[arm]), seed=1)
    learner = Learner(spec, LoadedModel(model, None, (0,), 0), process_group)
    steps = [learner.learn(step, groups(step, prompts)) for step, prompts in ((1, 8), (2, 7), (3, 1))]
    return [{name: value for name, value in step.items() if not name.startswith("seconds/")} for step in steps]


#: Whether the embeddings are tied, the arm, gradient checkpointing.
CASES = {
    "tied-tepo": (True, "tepo", False),
    "untied-clip_cov": (False, "clip_cov", False),
    "tied-kl_cov-checkpointing": (True, "kl_cov", True),
}


def compare(process_group, path):
    """Learn each case with all processes and with one; the first process keeps the metrics and weights of both."""
    from tepo_lab.train.distributed.sharded import full_weights, load_sharded

    results = {}
    for name, (tied, arm, checkpointing) in CASES.items():
        spec = ModelSpec(name="tiny", path="tiny", gradient_checkpointing=checkpointing)
        model = load_sharded(spec, process_group, torch.device("cpu"), partial(tiny, tied=tied))
        shared = learned(arm, model, process_group)
        weights = dict(full_weights(model))
        if process_group.is_rank_zero:
            alone = tiny(tied=tied)
            results[name] = (shared, learned(arm, alone, SINGLE_PROCESS), weights, alone.state_dict())
    others = {
        "untouched": taken_over_untouched(process_group, path.with_name("optimizer")),
        "to one and back": to_one_and_back(process_group, path.with_name("checkpoints")),
        "replica": replica_mismatches(process_group),
    }
    if process_group.is_rank_zero:
        torch.save(results | others, path)


def taken_over_untouched(process_group, home):
    """Weights after the first update with an optimizer restored before any: saved by two ranks, by one, and new."""
    from tepo_lab.train.distributed.sharded import full_weights, load_sharded

    spec, cpu = ModelSpec(name="tiny", path="tiny"), torch.device("cpu")
    weights = {}
    for way in ("two ranks", "one rank", "new"):
        folder = home.with_name(way)
        model = load_sharded(spec, process_group, cpu, partial(tiny, tied=True))
        learner = Learner(
            compose_run("tepo", "nano", OVERRIDES, seed=1), LoadedModel(model, None, (0,), 0), process_group
        )
        process_group.on_rank_zero(folder.mkdir)
        if way == "two ranks":
            save_training_state(folder, model, learner.optimizer, process_group)
        elif way == "one rank":
            alone = tiny(tied=True)
            own = torch.optim.AdamW(alone.parameters())
            process_group.on_rank_zero(partial(save_training_state, folder, alone, own))
        if way != "new":
            load_training_state(folder, model, learner.optimizer, process_group)
        learner.learn(1, groups(1, 2))
        weights[way] = {name: value.clone() for name, value in full_weights(model)}
    return weights


class NoTokenizer:
    def save_pretrained(self, folder): ...


def to_one_and_back(process_group, home):
    """Float32 weights and moments of a bfloat16 model: of two processes, then of one, then of two again."""
    from tepo_lab.train.distributed.sharded import load_sharded

    trainer = compose_run("tepo", "nano", OVERRIDES, seed=1).trainer

    def sharded(read):
        model = load_sharded(
            ModelSpec(name="tiny", path="tiny", dtype="bfloat16"), process_group, torch.device("cpu"), read
        )
        return model, adamw(model, trainer)

    def saved(step, model, optimizer, by):
        return checkpoint.save(RunFolder(home), checkpoint.Position(step, 0), model, NoTokenizer(), optimizer, by)

    model, optimizer = sharded(partial(tiny, tied=True))
    for parameter in model.parameters():
        parameter.grad = 1e-3 * parameter.detach()
    optimizer.step()
    path = saved(1, model, optimizer, process_group)
    states = [held(model.parameters(), optimizer)]

    def by_one():
        alone = read_model(path / "model", dtype=torch.bfloat16)
        own = adamw(alone, trainer)
        load_training_state(path, alone, own, SINGLE_PROCESS)
        assert all(torch.equal(*pair) for pair in zip(alone.parameters(), map(rounded, own.masters), strict=True))
        return held(own.masters, own), saved(2, alone, own, SINGLE_PROCESS)

    of_one, path = process_group.on_rank_zero(by_one)
    model, optimizer = sharded(partial(read_model, path / "model", dtype=torch.float32))
    load_training_state(path, model, optimizer, process_group)
    return [*states, of_one, held(model.parameters(), optimizer)]


def held(weights, optimizer):
    """Each weight with its moments and the steps made of it."""

    def whole(value):
        return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()

    return [[whole(each), *map(whole, optimizer.state[each].values())] for each in weights]


def rounded(weight):
    return weight.bfloat16()


def replica_mismatches(process_group):
    """How far a replica's log-probabilities are from the sharded model's: before an update, after it, and synced."""
    from tepo_lab.train.distributed.sharded import ReplicaEngine, load_sharded

    model = load_sharded(
        ModelSpec(name="tiny", path="tiny"), process_group, torch.device("cpu"), partial(tiny, tied=True)
    )
    loaded = LoadedModel(model, None, (0,), 0)
    learner = Learner(compose_run("tepo", "nano", OVERRIDES, seed=1), loaded, process_group)
    replica = ReplicaEngine(model, dtype="float32", end_ids=(0,), pad_id=0, sequences_per_batch=8)
    engine = SharedEngine(replica, process_group)

    def mismatch():
        checked = CheckedEngine(engine, 1)
        checked.generate([[5, 6, 7], [8, 9], [10]], samples=2, sampling=Sampling(0.7, 20, seed=3))
        return checked.mismatch(loaded)

    found = [mismatch()]
    learner.learn(1, groups(1, 4))
    found.append(mismatch())
    engine.sync_weights()
    return [*found, mismatch()]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    path = tmp_path_factory.mktemp("process_group") / "results.pt"
    in_processes(2, compare, path)
    return torch.load(path)


@pytest.mark.integration
@pytest.mark.parametrize("case", CASES)
def test_two_processes_make_the_updates_of_one(case, compared):
    shared, alone, weights, expected = compared[case]
    for step, reference in zip(shared, alone, strict=True):
        assert step == pytest.approx(reference, rel=1e-4, abs=1e-5)
    before = tiny(tied=CASES[case][0]).state_dict()
    assert max(float((expected[name] - before[name]).abs().max()) for name in expected) > 1e-3
    assert max(float((weights[name] - expected[name]).abs().max()) for name in expected) < 1e-5


@pytest.mark.integration
@pytest.mark.parametrize("way", ["two ranks", "one rank"])
def test_an_optimizer_that_has_made_no_update_is_taken_over_as_new(way, compared):
    found, new = compared["untouched"][way], compared["untouched"]["new"]
    assert all(torch.equal(found[name], value) for name, value in new.items())


@pytest.mark.integration
def test_float32_weights_and_moments_of_a_bfloat16_model_go_to_one_process_and_back(compared):
    before, of_one, again = compared["to one and back"]
    assert any(not torch.equal(state[0], rounded(state[0]).float()) for state in before)
    for state, *others in zip(before, of_one, again, strict=True):
        for values in others:
            assert len(values) == 4
            assert all(torch.equal(*pair) for pair in zip(state, values, strict=True))


@pytest.mark.integration
def test_a_replica_tells_whether_it_has_the_trainers_weights(compared):
    fresh, stale, synced = compared["replica"]
    assert max(fresh, synced) < 1e-5
    assert stale > 1e-3


def go_on(process_group, specs, folder):
    """The run's steps by all processes, then by the first alone, then by all again."""
    carry_out(specs[0], folder, process_group)
    process_group.on_rank_zero(lambda: carry_out(specs[1], folder, SINGLE_PROCESS))
    carry_out(specs[2], folder, process_group)


def carry_out(spec, folder, process_group):
    trial = Trial(spec, folder, process_group=process_group)
    while not trial.done:
        trial.advance()


@pytest.mark.integration
def test_a_run_goes_on_with_another_number_of_processes(small_run, tmp_path):
    every = "trainer.checkpoint_every=1"
    made = [small_run("tepo", f"trainer.steps={steps}", every) for steps in (1, 2, 3)]
    specs, folder = [spec for spec, _ in made], made[0][1]
    in_processes(2, go_on, specs, folder)
    alone = small_run("tepo", every, home=tmp_path / "alone")[1]
    carry_out(specs[2], alone, SINGLE_PROCESS)
    for step, reference in zip(folder.metrics(), alone.metrics(), strict=True):
        for name in ("reward/mean", "rollout/tokens"):
            assert step[name] == reference[name]
        for name in ("actor/grad_norm", "actor/pg_loss", "actor/entropy", "penalty/kl_on_mask"):
            assert step[name] == pytest.approx(reference[name], rel=1e-3, abs=1e-5)
    # One process samples with the model itself; the copy that several have is compared with it.
    has_copy = [True, False, True]
    evaluated = list(RunHistory.read(folder).evaluations.values())
    assert ["rollout/sampler_mismatch_max" in step for step in folder.metrics()] == has_copy
    assert [evaluation.checks_sampler for evaluation in evaluated] == has_copy
    assert max(step.get("rollout/sampler_mismatch_max", 0) for step in folder.metrics()) < 1e-3
    assert max(evaluation.sampler_mismatch or 0 for evaluation in evaluated) < 1e-4
    ours, theirs = (load_file(each.checkpoint(3) / "model" / "model.safetensors") for each in (folder, alone))
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-5


class NotSendableError(Exception):
    """Takes two arguments and keeps one: it is pickled, and cannot be made again."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def test_an_error_that_cannot_be_pickled_is_told_by_name_and_message():
    known = ValueError("as it is")
    assert picklable(known) is known
    local = type("LocalError", (Exception,), {})("of no module")
    for error in (NotSendableError("one", "two"), local):
        found = pickle.loads(pickle.dumps(picklable(error)))
        assert (type(found).__name__, str(found)) == (type(error).__name__, str(error))


class FakeGroup:
    """A process group whose other process takes what the first one sent."""

    def __init__(self):
        self.sent = b""

    def broadcast_object_list(self, objects, src, group):
        if self.sent:
            objects[:] = pickle.loads(self.sent)
        else:
            self.sent = pickle.dumps(objects)


def test_all_processes_raise_what_the_first_cannot_send():
    group = FakeGroup()
    for rank in (0, 1):
        process_group = TorchProcessGroup.__new__(TorchProcessGroup)
        process_group.rank, process_group.world_size, process_group._gloo, process_group._dist = rank, 2, None, group

        def work():
            raise NotSendableError("one", "two")

        with pytest.raises(Exception, match="one and two") as raised:
            process_group.on_rank_zero(work)
        assert raised.type.__name__ == "NotSendableError"
        assert (raised.type is NotSendableError) == (rank == 0)
