"""A run from start to end: its records, its resumption after a kill, and what is refused."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from tepo_lab.errors import DataError, RecordError
from tepo_lab.records.events import Started
from tepo_lab.records.files import append_line
from tepo_lab.records.generations import GENERATION_COLUMNS
from tepo_lab.records.history import RunHistory, State
from tepo_lab.schema.sweep import StopRule
from tepo_lab.train import checkpoint, trial
from tepo_lab.train.trial import Trial, run_trial

TRAINING_STATE = "training-00000.safetensors"


def metrics_without_times(folder):
    return [
        {name: value for name, value in step.items() if not name.startswith("seconds/") and name != "time"}
        for step in folder.metrics()
    ]


def assert_same_run(folder, reference, steps):
    assert metrics_without_times(folder) == metrics_without_times(reference)
    ours, theirs = (load_file(run.checkpoint(steps) / "model" / "model.safetensors") for run in (folder, reference))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    pd.testing.assert_frame_equal(*(pd.read_parquet(run.generations(steps)) for run in (folder, reference)))


def files(folder):
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("reference")


@pytest.fixture
def reference(small_run, home):
    """An uninterrupted run of three steps, evaluated after the first; not to be changed."""
    spec, folder = small_run("tepo", "trainer.steps=3", "trainer.evaluate_at=[1]", home=home)
    if not folder.generations(3).exists():
        last = run_trial(spec, folder)
        assert (last.phase, last.step) == ("complete", 3)
    return spec, folder


def test_a_run_leaves_complete_records(reference):
    spec, folder = reference
    history = RunHistory.read(folder)
    kinds = [event.event for event in history.events]
    assert kinds == ["started", "checkpoint", "evaluated", "checkpoint", "checkpoint", "evaluated", "complete"]
    assert (history.state, history.step, history.complete_evaluations) == (State.COMPLETE, 3, (1, 3))
    assert [step["step"] for step in folder.metrics()] == [1, 2, 3]
    rows = pd.read_parquet(folder.generations(3))
    assert tuple(rows.columns) == GENERATION_COLUMNS
    expected = {name: each.problems * each.samples for name, each in spec.suite.benchmarks.items()}
    assert rows.groupby("benchmark").size().to_dict() == expected
    correct = {name: tally.correct for name, tally in history.evaluations[3].counts.items()}
    assert correct == rows.groupby("benchmark")["correct"].sum().to_dict()


def test_the_metrics_of_a_step_describe_it(reference):
    spec, folder = reference
    first = folder.metrics()[0]
    assert 0 < first["reward/mean"] < 1
    assert 0 < first["rollout/kept_groups"] <= 16
    assert first["actor/updates"] == 4
    assert first["actor/lr"] == spec.trainer.learning_rate
    assert min(first["actor/entropy"], first["actor/grad_norm"]) > 0
    assert 0 <= first["mask/share"] < 1
    assert first["rollout/tokens"] == pytest.approx(16 * 8 * first["rollout/response_tokens_mean"])
    phases = ("rollout", "grade", "old_log_probs", "update")
    assert sum(first[f"seconds/{phase}"] for phase in phases) <= first["seconds/step"]


@pytest.mark.parametrize("advances", [3, *(pytest.param(count, marks=pytest.mark.integration) for count in (1, 2, 5))])
def test_a_killed_run_resumes_to_the_same_numbers(small_run, reference, advances):
    spec, uninterrupted = reference
    _, folder = small_run("tepo", "trainer.steps=3", "trainer.evaluate_at=[1]")
    killed = Trial(spec, folder)
    for _ in range(advances):
        killed.advance()
    with folder.metrics_file.open("a") as stream:
        stream.write('{"step": 6, "rew')
    run_trial(spec, folder)
    assert_same_run(folder, uninterrupted, 3)


def test_the_untrained_model_is_evaluated_and_nothing_else(small_run):
    spec, folder = small_run("base", seed=0)
    last = run_trial(spec, folder)
    assert (last.phase, last.step) == ("complete", 0)
    assert RunHistory.read(folder).complete_evaluations == (0,)
    assert folder.metrics() == []
    assert not folder.checkpoints.exists()


@pytest.mark.integration
def test_another_seed_gives_other_numbers(small_run, reference):
    spec, folder = small_run("tepo", "trainer.steps=1", seed=2)
    run_trial(spec, folder)
    assert metrics_without_times(folder)[0] != metrics_without_times(reference[1])[0]


@pytest.mark.integration
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(small_run):
    spec, folder = small_run("tepo", "trainer.steps=4", "trainer.checkpoint_every=1")
    run_trial(spec, folder)
    before = metrics_without_times(folder)
    assert folder.checkpoint_steps() == [3, 4]
    damaged = folder.checkpoint(4) / TRAINING_STATE
    damaged.write_bytes(damaged.read_bytes()[:-100])
    folder.generations(4).unlink()
    run_trial(spec, folder)
    assert metrics_without_times(folder) == before


@pytest.mark.integration
def test_a_run_can_be_extended_and_keeps_its_earlier_evaluation(small_run, tmp_path):
    spec, folder = small_run("tepo", "trainer.steps=2")
    run_trial(spec, folder)
    early = folder.generations(2).read_bytes()
    longer, same_folder = small_run("tepo", "trainer.steps=4")
    assert same_folder.path == folder.path
    run_trial(longer, folder)
    direct_spec, direct = small_run("tepo", "trainer.steps=4", home=tmp_path / "direct")
    run_trial(direct_spec, direct)
    assert folder.generations(2).read_bytes() == early
    assert_same_run(folder, direct, 4)


@pytest.mark.integration
def test_a_broken_rule_ends_the_run_as_collapsed_with_an_evaluation(small_run):
    spec, folder = small_run("tepo", "trainer.steps=6")
    last = run_trial(spec, folder, stop=[StopRule.model_validate({"when": "reward/mean < 2", "for": 2})])
    assert (last.phase, last.step) == ("collapsed", 2)
    history = RunHistory.read(folder)
    assert history.complete_evaluations == (2,)
    assert (history.collapsed_at, history.outcome.rule) == (2, "reward/mean < 2")


@pytest.mark.integration
def test_refilling_gives_full_batches_of_mixed_groups_or_fails(small_run):
    refill = "trainer.dynamic_sampling=refill"
    spec, folder = small_run("grpo_dapo", "trainer.steps=1", refill)
    run_trial(spec, folder)
    metrics = folder.metrics()[0]
    assert metrics["rollout/kept_groups"] == 16
    position = json.loads((folder.checkpoint(1) / "manifest.json").read_text())["data"]
    assert position == 16 * metrics["rollout/generation_batches"] >= 16
    # With no token to answer in, every response is wrong and no group is ever mixed.
    few = ("rollout.max_new_tokens=1", "trainer.max_generation_batches=2")
    spec, folder = small_run("grpo_dapo", "trainer.steps=1", refill, *few)
    with pytest.raises(DataError, match=r"2 batches of 16 prompts gave 0 groups"):
        run_trial(spec, folder)


@pytest.mark.parametrize(
    ("override", "updates", "kept", "truncated"),
    [("rollout.max_new_tokens=1", 0, 0, 1), ("trainer.dynamic_sampling='off'", 4, 16, 0)],
    ids=["no mixed group", "no dynamic sampling"],
)
def test_groups_that_are_learned_from(small_run, override, updates, kept, truncated):
    step = Trial(*small_run("grpo_dapo", "trainer.steps=2", override))
    metrics = step.advance().metrics
    step.close()
    assert (metrics["actor/updates"], metrics["rollout/kept_groups"]) == (updates, kept)
    assert metrics["rollout/truncated_share"] >= truncated


@pytest.mark.integration
def test_the_sampler_rests_before_the_update_and_takes_the_new_weights_after(small_run, monkeypatch):
    run = Trial(*small_run("tepo", "trainer.steps=1", "trainer.evaluate_at=[1]"))
    order = []
    for part, name in (
        (run.engine, "generate"),
        (run.engine, "rest"),
        (run.engine, "sync_weights"),
        (run.learner, "learn"),
    ):
        own = getattr(part, name)
        monkeypatch.setattr(part, name, lambda *a, own=own, name=name, **k: order.append(name) or own(*a, **k))
    while not run.done:
        run.advance()
    called = [name for name, before in zip(order, [None, *order], strict=False) if name != before]
    assert called == ["generate", "rest", "learn", "sync_weights", "generate"]


@pytest.mark.integration
def test_each_start_is_recorded_with_the_hardware_where_it_is_given(small_run):
    spec, folder = small_run("tepo", "trainer.steps=2")
    Trial(spec, folder, hardware={"cpus": 2, "gpus": ["one"]}).close()
    Trial(spec, folder).close()
    started, resumed = RunHistory.read(folder).events
    assert isinstance(started, Started)
    assert (started.event, started.hardware) == ("started", {"cpus": 2, "gpus": ["one"]})
    assert (resumed.event, resumed.hardware) == ("resumed", None)


@pytest.mark.integration
def test_results_are_not_deleted_to_resume_earlier(small_run):
    every = "trainer.checkpoint_every=1"
    spec, folder = small_run("tepo", "trainer.steps=2", every)
    run_trial(spec, folder)
    (shorter, _), (longer, _) = (small_run("tepo", f"trainer.steps={steps}", every) for steps in (1, 4))
    before = files(folder)
    with pytest.raises(RecordError, match=r"is at step 2; .*trainer\.steps=2"):
        Trial(shorter, folder)
    assert files(folder) == before
    for step, left in ((2, 1), (1, 0)):
        (folder.checkpoint(step) / TRAINING_STATE).write_bytes(b"damaged")
        before = files(folder)
        with pytest.raises(RecordError, match=rf"was complete at step 2 and can only resume at step {left}"):
            Trial(longer, folder)
        assert files(folder) == before


@pytest.mark.integration
def test_damaged_checkpoints_of_later_steps_are_removed_on_resume(small_run):
    spec, folder = small_run("tepo", "trainer.steps=6", "trainer.checkpoint_every=1", "trainer.keep_checkpoints=1")
    for step in range(1, 6):
        append_line(folder.metrics_file, {"step": step})
    for step in (4, 5):
        folder.checkpoint(step).mkdir(parents=True)
    again = Trial(spec, folder)
    assert (folder.checkpoint_steps(), folder.metrics()) == ([], [])
    again.advance()
    again.close()
    newest = checkpoint.newest(folder, 1)
    assert newest is not None
    assert (folder.checkpoint_steps(), newest[1].step) == ([1], 1)


def test_ownership_is_checked_before_every_write(small_run, monkeypatch):
    spec, folder = small_run("tepo", "trainer.steps=1")
    order = []
    for module, name in (
        (trial, "remove_later_records"),
        (trial, "append_event"),
        (trial, "append_line"),
        (trial, "write_tokens"),
        (trial, "write_generations"),
        (checkpoint, "write_json"),
        (checkpoint, "prune"),
    ):
        own = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, own=own, name=name: order.append(name) or own(*a))
    guarded = Trial(spec, folder, guard=lambda: order.append("guard"))
    while not guarded.done:
        guarded.advance()
    guarded.close()
    checked = ["guard", "write_json"]
    for name in ("prune", "append_event", "write_generations", "append_event", "append_event"):
        checked += ["guard", name]
    opened = [each for name in ("remove_later_records", "append_event") for each in ("guard", name)]
    trained = [each for name in ("append_line", "write_tokens") for each in ("guard", name)]
    # A checkpoint checks once more before it makes its folder.
    assert order == [*opened, *trained, "guard", *checked]


def test_a_process_that_no_longer_owns_the_run_leaves_the_records_as_they_are(small_run):
    spec, folder = small_run("tepo", "trainer.steps=1")
    taken_over = []

    def guard():
        if taken_over:
            raise RecordError("taken over")

    frozen = Trial(spec, folder, guard=guard)
    taken_over.append(True)
    before = files(folder)
    with pytest.raises(RecordError, match="taken over"):
        frozen.advance()
    frozen.close()
    assert files(folder) == before
