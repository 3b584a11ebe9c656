from __future__ import annotations

import json
import shutil

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from tepo_lab.errors import DataError, RecordError
from tepo_lab.records.files import append_line
from tepo_lab.records.generations import GENERATION_COLUMNS
from tepo_lab.schema.sweep import StopRule
from tepo_lab.train import checkpoint, trial
from tepo_lab.train.trial import Trial, run_trial


def science(folder):
    """The step metrics without what clocks say."""
    return [
        {name: value for name, value in step.items() if not name.startswith("seconds/") and name != "time"}
        for step in folder.metrics()
    ]


def weights(folder, step):
    return load_file(folder.checkpoint(step) / "model" / "model.safetensors")


def assert_same_run(folder, reference, steps):
    assert science(folder) == science(reference)
    ours, theirs = weights(folder, steps), weights(reference, steps)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    columns = [pd.read_parquet(each.generations(steps)) for each in (folder, reference)]
    pd.testing.assert_frame_equal(*columns)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted run of five steps."""
    return tmp_path_factory.mktemp("reference")


def test_a_run_leaves_its_whole_record(small_run):
    spec, folder = small_run("tepo", "trainer.steps=3", "trainer.evaluate_at=[1]")
    last = run_trial(spec, folder)
    assert (last.phase, last.step) == ("complete", 3)
    assert [step["step"] for step in folder.metrics()] == [1, 2, 3]
    assert folder.evaluated_steps() == [1, 3]
    events = [event["event"] for event in folder.events()]
    assert events == ["started", "checkpoint", "evaluated", "checkpoint", "checkpoint", "evaluated", "complete"]
    rows = pd.read_parquet(folder.generations(3))
    assert tuple(rows.columns) == GENERATION_COLUMNS
    expected = {name: each.problems * each.samples for name, each in spec.suite.benchmarks.items()}
    assert rows.groupby("benchmark").size().to_dict() == expected
    scored = {event["step"]: event["benchmarks"] for event in folder.events() if event["event"] == "evaluated"}
    assert {name: count["correct"] for name, count in scored[3].items()} == rows.groupby("benchmark")[
        "correct"
    ].sum().to_dict()


def test_metrics_of_a_step_say_what_happened(small_run):
    spec, folder = small_run("tepo", "trainer.steps=2")
    run_trial(spec, folder)
    first = folder.metrics()[0]
    assert 0 < first["reward/mean"] < 1
    assert 0 < first["rollout/kept_groups"] <= 16
    assert first["actor/updates"] == 4
    assert first["actor/lr"] == spec.trainer.learning_rate
    assert first["actor/entropy"] > 0
    assert first["actor/grad_norm"] > 0
    assert 0 <= first["mask/share"] < 1
    assert first["rollout/tokens"] == pytest.approx(16 * 8 * first["rollout/response_tokens_mean"])
    phases = ("rollout", "grade", "old_log_probs", "update")
    assert sum(first[f"seconds/{phase}"] for phase in phases) <= first["seconds/step"]


def test_training_changes_the_model_and_the_same_seed_repeats_it(small_run, tmp_path):
    spec, folder = small_run("grpo_dapo", "trainer.steps=2")
    run_trial(spec, folder)
    again_spec, again = small_run("grpo_dapo", "trainer.steps=2", home=tmp_path / "again")
    run_trial(again_spec, again)
    other_spec, other = small_run("grpo_dapo", "trainer.steps=2", seed=2)
    run_trial(other_spec, other)
    assert_same_run(again, folder, 2)
    assert science(other) != science(folder)


@pytest.mark.parametrize("steps_before_death", [1, 2, 3, 5])
def test_a_run_that_dies_goes_on_to_the_same_numbers(small_run, reference, tmp_path, steps_before_death):
    spec, uninterrupted = small_run("tepo", "trainer.steps=5", home=reference)
    if not uninterrupted.generations(5).exists():
        run_trial(spec, uninterrupted)
    spec, folder = small_run("tepo", "trainer.steps=5")
    dying = Trial(spec, folder)
    for _ in range(steps_before_death):
        dying.advance()
    with folder.metrics_file.open("a") as stream:
        stream.write('{"step": 6, "rew')
    run_trial(spec, folder)
    assert_same_run(folder, uninterrupted, 5)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(small_run):
    spec, folder = small_run("tepo", "trainer.steps=4", "trainer.checkpoint_every=1")
    run_trial(spec, folder)
    before = science(folder)
    assert [path.name for path in sorted(folder.checkpoints.iterdir())] == ["step-000003", "step-000004"]
    damaged = folder.checkpoint(4) / "training.pt"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    found = checkpoint.newest(folder, 99)
    assert found is not None
    assert found[1].step == 3
    folder.generations(4).unlink()
    run_trial(spec, folder)
    assert science(folder) == before


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


def test_a_broken_rule_ends_the_run_as_collapsed_with_an_evaluation(small_run):
    spec, folder = small_run("tepo", "trainer.steps=6")
    rule = StopRule.model_validate({"when": "reward/mean < 2", "for": 2})
    last = run_trial(spec, folder, stop=[rule])
    assert (last.phase, last.step) == ("collapsed", 2)
    assert folder.evaluated_steps() == [2]
    assert folder.events()[-1]["rule"] == "reward/mean < 2"


def test_the_untrained_model_is_evaluated_and_nothing_else(small_run):
    spec, folder = small_run("base", seed=0)
    last = run_trial(spec, folder)
    assert (last.phase, last.step) == ("complete", 0)
    assert folder.evaluated_steps() == [0]
    assert folder.metrics() == []
    assert not folder.checkpoints.exists()


def test_refilling_gives_full_batches_of_mixed_groups_or_says_why_not(small_run):
    spec, folder = small_run("grpo_dapo", "trainer.steps=1", "trainer.dynamic_sampling=refill")
    run_trial(spec, folder)
    metrics = folder.metrics()[0]
    assert metrics["rollout/kept_groups"] == 16
    assert metrics["rollout/generation_batches"] >= 1
    position = json.loads((folder.checkpoint(1) / "manifest.json").read_text())["data"]
    assert position == 16 * metrics["rollout/generation_batches"]
    # With no token to answer in, every response is wrong and no group is ever mixed.
    spec, folder = small_run(
        "grpo_dapo",
        "trainer.steps=1",
        "trainer.dynamic_sampling=refill",
        "rollout.max_new_tokens=1",
        "trainer.max_generation_batches=2",
    )
    with pytest.raises(DataError, match=r"2 batches of 16 prompts gave 0 groups"):
        run_trial(spec, folder)


def test_a_step_without_any_mixed_group_learns_nothing_and_goes_on(small_run):
    spec, folder = small_run("grpo_dapo", "trainer.steps=1", "rollout.max_new_tokens=1")
    run_trial(spec, folder)
    metrics = folder.metrics()[0]
    assert (metrics["actor/updates"], metrics["rollout/kept_groups"]) == (0, 0)
    assert metrics["rollout/truncated_share"] == 1


def test_without_dynamic_sampling_every_group_stays(small_run):
    spec, folder = small_run("grpo_dapo", "trainer.steps=1", "trainer.dynamic_sampling='off'")
    run_trial(spec, folder)
    assert folder.metrics()[0]["rollout/kept_groups"] == 16


def test_the_sampler_rests_before_the_trainer_learns_and_takes_its_weights_after(small_run, monkeypatch):
    trial = Trial(*small_run("tepo", "trainer.steps=2", "trainer.evaluate_at=[1]"))
    order = []
    for part, name in (
        (trial.engine, "generate"),
        (trial.engine, "rest"),
        (trial.engine, "sync_weights"),
        (trial.learner, "learn"),
    ):
        own = getattr(part, name)
        monkeypatch.setattr(part, name, lambda *a, own=own, name=name, **k: order.append(name) or own(*a, **k))
    while not trial.done:
        trial.advance()
    called = [name for name, before in zip(order, [None, *order], strict=False) if name != before]
    # An evaluation and the next step's sampling have the same weights, and no rest between them.
    assert called == ["generate", "rest", "learn", "sync_weights"] * 2 + ["generate"]


def test_leftovers_of_a_killed_save_are_removed(small_run):
    spec, folder = small_run("grpo_dapo", "trainer.steps=2")
    leftover = folder.checkpoints / ".step-000001.123.partial"
    leftover.mkdir(parents=True)
    run_trial(spec, folder)
    assert not leftover.exists()
    shutil.rmtree(folder.path)


def test_records_are_not_cut_back_to_a_shorter_request(small_run):
    spec, folder = small_run("grpo_dapo", "trainer.steps=2")
    run_trial(spec, folder)
    shorter, _ = small_run("grpo_dapo", "trainer.steps=1")
    with pytest.raises(RecordError, match=r"is at step 2, and going back to step 1 would drop.*trainer\.steps=2"):
        Trial(shorter, folder)
    assert [step["step"] for step in folder.metrics()] == [1, 2]
    assert folder.evaluated_steps() == [2]


def test_where_a_run_starts_and_goes_on_the_hardware_is_noted_if_it_is_told(small_run):
    spec, folder = small_run("tepo", "trainer.steps=2")
    Trial(spec, folder, hardware={"cpus": 2, "gpus": ["one"]}).close()
    Trial(spec, folder).close()
    started, resumed = folder.events()
    assert (started["event"], started["hardware"]) == ("started", {"cpus": 2, "gpus": ["one"]})
    assert resumed["event"] == "resumed"
    assert "hardware" not in resumed


def files(folder):
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def test_no_step_is_made_again_at_the_cost_of_an_end_that_was_evaluated(small_run):
    spec, folder = small_run("tepo", "trainer.steps=2", "trainer.checkpoint_every=1")
    run_trial(spec, folder)
    longer, _ = small_run("tepo", "trainer.steps=4", "trainer.checkpoint_every=1")
    for step, told in ((2, "only from step 1"), (1, "from none of its checkpoints")):
        (folder.checkpoint(step) / "training.pt").write_bytes(b"damaged")
        before = files(folder)
        with pytest.raises(RecordError, match=rf"was complete at step 2 and can go on {told}: .*; remove the folder"):
            Trial(longer, folder)
        assert files(folder) == before


def test_damaged_checkpoints_do_not_outlast_those_made_again(small_run):
    spec, folder = small_run("tepo", "trainer.steps=6", "trainer.checkpoint_every=1", "trainer.keep_checkpoints=1")
    for step in range(1, 6):
        append_line(folder.metrics_file, {"step": step})
    for step in (4, 5):
        folder.checkpoint(step).mkdir(parents=True)
    again = Trial(spec, folder)
    assert (folder.checkpoint_steps(), folder.metrics()) == ([], [])
    again.advance()
    again.close()
    found = checkpoint.newest(folder, 99)
    assert found is not None
    assert (folder.checkpoint_steps(), found[1].step) == ([1], 1)


def test_before_each_write_it_is_asked_whether_this_process_still_may(small_run, monkeypatch):
    spec, folder = small_run("tepo", "trainer.steps=1")
    append_line(folder.metrics_file, {"step": 1})
    order = []
    for module, name in (
        (trial, "append_line"),
        (trial, "write_whole"),
        (trial, "write_tokens"),
        (trial, "write_generations"),
        (checkpoint, "remove_after"),
        (checkpoint, "_empty_folder"),
        (checkpoint, "_publish"),
        (checkpoint, "prune"),
    ):
        own = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, own=own, name=name: order.append(name) or own(*a))
    guarded = Trial(spec, folder, guard=lambda: order.append("guard"))
    while not guarded.done:
        guarded.advance()
    guarded.close()
    writes = ["remove_after", "write_whole", "append_line"]
    writes += ["append_line", "write_tokens", "_empty_folder", "_publish", "prune", "append_line"]
    writes += ["write_generations", "append_line", "append_line"]
    assert order == [each for name in writes for each in ("guard", name)]


def test_a_process_that_may_not_write_any_more_leaves_the_records_as_they_are(small_run):
    spec, folder = small_run("tepo", "trainer.steps=1")
    taken = []

    def guard():
        if taken:
            raise RecordError("taken over")

    frozen = Trial(spec, folder, guard=guard)
    taken.append(True)
    before = files(folder)
    with pytest.raises(RecordError, match="taken over"):
        frozen.advance()
    frozen.close()
    assert files(folder) == before
