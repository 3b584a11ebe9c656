"""Every YAML file of the registry: it loads, it says where its values come from, and it means what the paper does."""

from __future__ import annotations

import pytest

from tepo_lab.registry.compose import arm_file, arm_values, compose_run, lineage
from tepo_lab.registry.difference import check_against_parent
from tepo_lab.registry.expand import expand, load_sweep
from tepo_lab.registry.locations import names
from tepo_lab.registry.reports import load_report, own_profiles, resolve_report
from tepo_lab.registry.values import flatten
from tepo_lab.schema.arm import source_of
from tepo_lab.schema.profile import PromptSpec
from tepo_lab.schema.sweep import MUST_BE_FINITE

ARMS = names("experiments", "arm")
TRAINED = [arm for arm in ARMS if arm_file(arm).trained]
PROFILES = names("experiments", "profile")
PAPER_PROFILES = [profile for profile in PROFILES if profile not in ("nano", "smollm2-135m")]
COLUMNS = ["aime24", "aime25", "amc", "math500", "omni_math", "olympiadbench", "minerva"]


@pytest.mark.parametrize("profile", ["nano", "qwen2.5-7b"])
def test_every_arm_differs_from_its_parent_in_what_it_varies_alone(profile):
    for arm in TRAINED:
        check_against_parent(arm, profile)
        assert compose_run(arm, profile).profile.name == profile


@pytest.mark.parametrize("profile", PROFILES)
def test_every_benchmark_of_every_profile_states_its_prompt_and_its_grader(profile):
    spec = compose_run("tepo", profile)
    template, grader = ("plain", "exact") if profile == "nano" else ("boxed_chat", "symbolic")
    for benchmark in spec.suite.benchmarks.values():
        assert benchmark.prompt == PromptSpec(template=template)
        assert benchmark.grader == grader


def test_the_papers_benchmarks_are_asked_alike_whatever_a_model_is_trained_with():
    spec = compose_run("tepo", "qwen2.5-7b", ("prompt=dapo_answer",))
    assert spec.prompt.template == "dapo_answer"
    assert {benchmark.prompt.template for benchmark in spec.suite.benchmarks.values()} == {"boxed_chat"}
    assert [profile for profile in PROFILES if not compose_run("tepo", profile).model.system_role] == [
        "mistral-7b-instruct-v0.2"
    ]


@pytest.mark.parametrize("arm", TRAINED)
def test_every_value_of_an_arm_has_a_source(arm):
    sources = arm_file(arm).sources
    assert [key for key in flatten(arm_values(arm)) if source_of(sources, key) is None] == []
    for key, source in sources.items():
        assert (source.paper and source.where and source.says) or source.chosen, key
    spec = compose_run(arm, "nano")
    resolved = flatten({"objective": spec.objective.model_dump()})
    assert [key for key in resolved if source_of(spec.arm.sources, key) is None] == []


@pytest.mark.parametrize("arm", [arm for arm in TRAINED if arm != "grpo_dapo"])
def test_every_other_arm_descends_from_grpo_and_differs_from_its_parent(arm):
    assert lineage(arm)[0] == "grpo_dapo"
    assert compose_run(arm, "nano").objective != compose_run(arm_file(arm).parent, "nano").objective


#: Resolved values by arm on qwen2.5-7b, from the paper and its sources; a digit that slips is caught here.
VALUES = {
    "grpo_dapo": {"ratio": "token", "clip_low": 0.2, "clip_high": 0.28, "aggregation": "token-mean", "penalty": None},
    "tepo_no_kl": {"ratio": "sequence", "surrogate": "ppo_clip", "clip_low": 0.2, "clip_high": 0.28, "penalty": None},
    "tepo": {
        "ratio": "sequence",
        "penalty.coef": 0.001,
        "penalty.estimator": "k3",
        "penalty.where": "advantage_positive_entropy_falling",
    },
    "tepo_kl_1": {"ratio": "sequence", "penalty.coef": 1, "penalty.estimator": "k3", "penalty.where": "all"},
    "tepo_kl_0.0001_k1": {"penalty.coef": 0.0001, "penalty.estimator": "k1", "penalty.where": "all"},
    "max_entropy": {"penalty.kind": "entropy", "penalty.direction": "maximise", "ratio": "sequence"},
    "min_entropy": {"penalty.kind": "entropy", "penalty.direction": "minimise", "penalty.coef": 0.001},
    "steel": {"weights.kind": "steer", "weights.low": 0.8, "weights.high": 1.0, "dual_clip": 10.0, "ratio": "token"},
    "clip_cov": {"selection.fraction": 2e-4, "selection.lower": 1, "selection.upper": 5, "clip_low": 1, "clip_high": 1},
    "kl_cov": {
        "surrogate": "unclipped",
        "penalty.coef": 1,
        "penalty.estimator": "abs",
        "penalty.where": "top_covariance",
        "penalty.top_fraction": 2e-3,
    },
    "entropy_term": {"shaping.coef": 4e-4, "shaping.kappa": 2},
    "entropy_term_original": {"shaping.coef": 0.4, "shaping.kappa": 2},
    "gpg": {"advantage": "gpg", "ratio": "none", "surrogate": "log_likelihood", "penalty": None},
    "cispo": {"surrogate": "detached_clip", "clip_low": 1, "clip_high": 4, "ratio": "token"},
    "reinforce": {"surrogate": "unclipped", "ratio": "token", "penalty": None},
    "prefix_is": {"ratio": "prefix", "clip_low": 0.2, "clip_high": 0.28},
    "gspo": {"ratio": "sequence", "aggregation": "seq-mean-token-mean", "clip_low": 0.2, "clip_high": 0.28},
    "gspo_original": {"aggregation": "seq-mean-token-mean", "clip_low": 3e-4, "clip_high": 4e-4},
    "seq_mean_token_sum": {"ratio": "sequence", "aggregation": "seq-mean-token-sum"},
    "tepo_printed_clip": {"surrogate": "printed_clip", "penalty.coef": 0.001},
    "tepo_line21": {"gradient": "line21", "penalty.coef": 0.001},
    "tepo_kl_both": {"penalty.where": "union", "penalty.coef": 0.001},
    "tepo_kl_negative_rising": {"penalty.where": "advantage_negative_entropy_rising", "penalty.coef": 0.001},
}


@pytest.mark.parametrize("arm", VALUES)
def test_values_are_the_papers(arm):
    objective = flatten(compose_run(arm, "qwen2.5-7b").objective.model_dump())
    assert {key: objective[key] for key in VALUES[arm]} == VALUES[arm]


def test_beta_comes_from_the_profile():
    betas = {profile: compose_run("tepo", profile).objective.penalty.coef for profile in PROFILES}
    assert betas == {profile: 1.0 if profile in ("nano", "qwen3-14b") else 0.001 for profile in PROFILES}
    assert compose_run("tepo_kl_both", "qwen3-14b").objective.penalty.coef == 1.0


@pytest.mark.parametrize("profile", PAPER_PROFILES)
def test_a_paper_profile_has_the_papers_suite_and_training(profile):
    spec = compose_run("grpo_dapo", profile)
    benchmarks = spec.suite.benchmarks
    assert list(benchmarks) == COLUMNS
    assert [each.problems * each.samples for each in benchmarks.values()] == [960, 960, 2656, 500, 2811, 675, 272]
    assert [each.temperature for each in benchmarks.values()] == [0.6, 0.6, 0.6, 0, 0, 0, 0]
    trainer = spec.trainer
    updates = trainer.prompts_per_step // trainer.mini_batch_prompts * trainer.epochs
    assert (trainer.prompts_per_step, trainer.group_size, updates) == (64, 8, 8)
    assert (trainer.learning_rate, trainer.steps, trainer.weight_decay, trainer.max_grad_norm) == (5e-7, 72, 0, 1)
    assert (spec.rollout.max_new_tokens, spec.suite.max_new_tokens, spec.rollout.temperature) == (8192, 8192, 1)
    assert (spec.rollout.engine, spec.resources.gpus, spec.data.hub) == ("vllm", 8, "open-r1/DAPO-Math-17k-Processed")


@pytest.mark.parametrize("name", names("sweeps"))
def test_every_sweep_expands_on_its_own_profile(name):
    runs = expand(*load_sweep(name)).runs
    assert len({run.run_id for run in runs}) == len(runs) > 1


@pytest.mark.parametrize("name", names("sweeps"))
def test_a_sweep_in_which_a_loss_may_overflow_lets_a_gradient_too(name):
    sweep, _ = load_sweep(name)
    watched = {rule.metric for rule in sweep.stop if rule.when.endswith("is not finite")}
    assert watched in (set(), set(MUST_BE_FINITE))


@pytest.mark.parametrize("name", names("reports"))
def test_every_report_resolves_and_its_published_rows_are_arms_it_shows(name):
    from tepo_lab.registry.locations import package_root
    from tepo_lab.report.table.published import load_published

    report = load_report(name)
    published = load_published(package_root() / "reports" / "published", report.published)
    assert set(report.profiles) == published.models
    for profile in dict.fromkeys([*report.profiles, *own_profiles(report), "nano"]):
        shown = {(row.panel or "", row.published) for row in resolve_report(report, profile).rows}
        arms = {arm for _, arm in shown}
        printed = {(panel, row) for panel, _, row, _ in published.percents}
        printed = {(panel, row) for panel, row in printed if row != "base" and not row.startswith("delta")}
        assert {row for _, row in printed} <= arms
        assert {each for each in printed if each[0]} <= shown
