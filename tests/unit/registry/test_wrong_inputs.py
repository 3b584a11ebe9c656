"""Wrong YAML files, sweeps, arms, profiles, reports and overrides: a `ConfigError` that names the place and the key."""

from __future__ import annotations

import os

import pytest

from tepo_lab.errors import ConfigError
from tepo_lab.registry.compose import compose_run
from tepo_lab.registry.expand import expand, load_sweep
from tepo_lab.registry.locations import MAX_YAML_BYTES, read_yaml
from tepo_lab.registry.reports import load_report

#: Ten aliases of ten values each, six deep: eleven million values in a few hundred bytes.
ALIAS_BOMB = "&a0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
for depth in range(1, 7):
    ALIAS_BOMB = f"&a{depth} [{ALIAS_BOMB}" + f", *a{depth - 1}" * 9 + "]"


def error_of(function, *arguments) -> str:
    with pytest.raises(ConfigError) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"title: x\narms: [tepo\n", ":3:1: not YAML"),
        (b"title: x\n\tarms: [tepo]\n", ":2:1: not YAML"),
        (b"title: @x\n", ":1:8: not YAML"),
        (b"title: x\ntitle: y\n", ":2:1: not YAML: the key 'title' stands twice"),
        (b"a: {b: 1, b: 2}\n", ":1:11: not YAML: the key 'b' stands twice"),
        (b"title: !!python/object/apply:os.system ['touch hacked']\n", ":1:8: not YAML"),
        (b"title: !when 2024-01-01\n", ":1:8: not YAML"),
        (b"title: !!binary aGVsbG8=\n", ": not YAML"),
        (b"? [a]\n: 1\n", ":1:3: not YAML"),
        (b"title: *tepo\n", ":1:8: not YAML"),
        (b"title: x\n---\ntitle: y\n", ":2:1: not YAML"),
        (b"title: x\x07\n", ": not YAML"),
        (b"arms: &a [*a]\n", ": not YAML"),
        (b"a: " + b"[" * 3000 + b"]" * 3000, ": not YAML: nested too deeply"),
        (b"a: " + b"[" * 400_000, ": not YAML: nested too deeply"),
        (b"- " * 400_000, ": not YAML: nested too deeply"),
        (b"a: " + b"9" * 5000, ": not YAML"),
        (f"a: {ALIAS_BOMB}\n".encode(), ": not YAML"),
        (b"#" + b"x" * MAX_YAML_BYTES, ": larger than"),
        (b"", ": must hold a mapping"),
        (b"- tepo\n", ": must hold a mapping"),
        (bytes(range(128, 256)), ": not UTF-8"),
        ("title: x\n".encode("utf-16"), ": not UTF-8"),
    ],
    ids=lambda part: ascii(part)[:50],
)
def test_wrong_yaml_is_refused_with_file_and_line(content, place, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    assert error_of(read_yaml, path).startswith(f"{path}{place}")


def test_paths_that_are_no_file(tmp_path):
    (tmp_path / "dangling.yaml").symlink_to("nowhere.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    for name in ("", "dangling.yaml", "loop.yaml", "pipe.yaml", "nowhere.yaml", "x" * 300):
        assert error_of(read_yaml, tmp_path / name).startswith(f"{tmp_path / name}: ")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("arms: [tepo]", "'title'"),
        ("title: x", "at least one arm"),
        ("title: x\nname: y\narms: [tepo]", "'name'"),
        ("title: x\narms: [tepo]\nseed: [1]", "'seed'. Did you mean 'seeds'?"),
        ("title: x\narmz: [tepo]", "'armz'. Did you mean 'arms'?"),
        ("title: null\narms: [tepo]", "'title'"),
        ("title: ''\narms: [tepo]", "'title'"),
        ("title: x\narms: tepo", "'arms'"),
        ("title: x\narms: [[tepo]]", "'arms.0'"),
        ("title: x\narms: [tepo, tepo]", "'arms'"),
        ("title: x\narms: [tepoo]", "'tepoo'. Did you mean 'tepo'?"),
        ("title: x\narms: [tepo]\nseeds: 1", "'seeds'"),
        ("title: x\narms: [tepo]\nseeds: [one]", "'seeds.0'"),
        ("title: x\narms: [tepo]\nseeds: [.nan]", "'seeds.0'"),
        ("title: x\narms: [tepo]\nseeds: [true]", "'seeds.0'"),
        ("title: x\narms: [tepo]\nseeds: [99999999999]", "'seeds.0'"),
        ("title: x\narms: [tepo]\nsteps: .inf", "'steps'"),
        ("title: x\narms: [tepo]\nprofile: [nano, nano]", "'profile'"),
        ("title: x\narms: [tepo]\nprofile: nan", "'nan'. Did you mean 'nano'?"),
        ("title: x\narms: [tepo]\naxes: [objective.clip_low]", "'axes'"),
        ("title: x\narms: [tepo]\naxes: {objective.clip_low: []}", "'axes.objective.clip_low'"),
        ("title: x\narms: [tepo]\naxes: {objective.clip_low: [0.1, 0.1]}", "'axes.objective.clip_low'"),
        ("title: x\narms: [tepo]\naxes: {a: {uniform: [0, 1], samples: 1000000000}}", "'axes.a.samples'"),
        ("title: x\narms: [tepo]\naxes: {a: {uniform: [2, 1], samples: 3}}", "'axes.a'"),
        ("title: x\narms: [tepo]\naxes: {a: {samples: 3}}", "'axes.a'"),
        (f"title: x\narms: [tepo]\naxes: {{a: {list(range(200))}, b: {list(range(200))}}}", "40,000 points"),
        ("title: x\narms: [tepo]\naxes: {seed: [1, 2]}", "'seed'"),
        ("title: x\narms: [tepo]\naxes: {trainer.lr: [1]}", "'trainer.lr'"),
        ("title: x\narms: [tepo]\naxes: {objective.clip_low: [-1]}", "'objective.clip_low'"),
        ("title: x\narms: [tepo]\naxes: {objective.penalty.cof: [1]}", "'objective.penalty.cof'"),
        ("title: x\narms: [tepo]\noverrides: [trainer.steps=3]", "'overrides'"),
        ("title: x\narms: [tepo]\noverrides: {arm.name: x}", "'arm.name'"),
        ("title: x\narms: [tepo]\noverrides: {trainer.stps: 2}", "'trainer.stps'. Did you mean 'steps'?"),
        ("title: x\narms: [tepo]\noverrides: {model: nope}", "'nope'"),
        ("title: x\narms: [tepo]\ntrainer: {steps: 6}", "{trainer.steps: ...}"),
        ("title: x\nparts: [{arms: [tepo], model.dtype: float32}]", "{model.dtype: ...}"),
        ("title: x\narms: [tepo]\nparts: tepo", "'parts'"),
        ("title: x\narms: [tepo]\nparts: [{steps: 3}]", "part 1"),
        ("title: x\narms: [tepo]\nparts: [{arms: [gspoo]}]", "'gspoo'. Did you mean 'gspo'?"),
        ("title: x\narms: [tepo]\nstop: reward/mean < 0.1", "'stop'"),
        ("title: x\narms: [tepo]\nstop: [{when: reward}]", "'stop.0.when'"),
        ("title: x\narms: [tepo]\nstop: [{when: reward/mean < 1e999}]", "'stop.0.when'"),
        ("title: x\narms: [tepo]\nstop: [{when: reward/mean < 0.02, for: 0}]", "'stop.0.for'"),
        ("title: x\narms: [tepo]\nstop: [{when: actor/grad_norm is not finite, for: 2}]", "'stop.0'"),
        ("title: x\narms: [tepo]\nstop: [{when: reward_mean < 2}]", "'reward_mean'. Did you mean 'reward/mean'?"),
        ("title: x\narms: [tepo]\nfeeds: [table9]", "'table9'. Did you mean 'table"),
        ("title: x\narms: [tepo]\nlabels: {tepoo: A}", "'tepoo' beside it. Did you mean 'tepo'?"),
        ("title: x\narms: [tepo]\nsearch: {}", "'search.validation'"),
    ],
)
def test_a_wrong_sweep_is_named_with_file_and_key(text, key, sweep_file):
    path = sweep_file(text)
    message = error_of(lambda: expand(*load_sweep(path)))
    assert message.startswith(path)
    assert key in message


SEARCH = """
title: Exploratory
arms: [tepo]
axes: {objective.penalty.coef: {loguniform: [0.01, 10], samples: 6}}
search:
  validation:
    held: {label: Held, problems: 50, data: {kind: chain, split: validation, terms: [6]}}
"""


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (SEARCH + "  metric: mix7\n", "'search'"),
        (SEARCH.replace("split: validation", "split: test"), "'search'"),
        (SEARCH.replace("{loguniform: [0.01, 10], samples: 6}", "[1, 2]"), "search: algorithm"),
    ],
)
def test_a_search_sees_validation_problems_alone(text, key, sweep_file):
    assert key in error_of(load_sweep, sweep_file(text))


@pytest.mark.parametrize("name", ["two words; rm -rf x", "a" * 101])
def test_a_name_that_no_folder_can_have(name, sweep_file):
    assert "'name'" in error_of(load_sweep, sweep_file("{title: x, arms: [tepo]}", name))


def test_names_that_are_unknown():
    for name in ("panel-f", ".", "", "panel-e\x00", "🙂"):
        assert repr(name) in error_of(load_sweep, name)
    for name in ("../panel-e", "nowhere/sweep.yaml", "/"):
        assert error_of(load_sweep, name).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("arms=[tepoo]", "'tepoo'. Did you mean 'tepo'?"),
        ("arms=[]", "at least one arm"),
        ("arms=tepo", "'arms'"),
        ("arms=[tepo", "cannot be read"),
        ("arms=[../../etc]", "'../../etc'"),
        ("seeds=[1,1]", "'seeds'"),
        ("seeds=1", "'seeds'"),
        ("seeds=", "no value"),
        ("seeds=null", "'seeds'"),
        ("seeds=[1.5]", "'seeds.0'"),
        ("seeds=[]", "'seeds'"),
        ("seed=3", "seeds=[3]"),
        ("sedes=[1]", "'sedes'. Did you mean 'seeds'?"),
        ("title=x", "title"),
        ("axes.objective.clip_low=[1]", "axes={...}"),
        ("axes={objective.clip_low: [-1]}", "'objective.clip_low'"),
        ("stop=[reward/mean < 0.1]", "'stop.0'"),
        ("stop=[{when: step > 3}]", "'step'"),
        ("feeds=[table9]", "'table9'"),
        ("labels={tepoo: A}", "'tepoo'"),
        ("steps=1e9", "'steps'"),
        ("steps=-3", "'steps'"),
        ("profile=", "no value"),
        ("profile=[]", "'profile'"),
        ("profile=../nano", "'../nano'"),
        ("arm=tepo", "arms=[NAME]"),
        ("trianer.steps=3", "'trianer'. Did you mean 'trainer'?"),
        ("hydra.run.dir=x", "'hydra'"),
        ("++trainer.steps=3", "key=value"),
        ("trainer.steps", "key=value"),
        ("=3", "key=value"),
        ("trainer.stps=3", "'trainer.stps'. Did you mean 'steps'?"),
    ],
)
def test_a_wrong_override_of_a_sweep_is_named(override, key):
    message = error_of(lambda: expand(*load_sweep("panel-e", [override])))
    assert key in message
    assert override.partition("=")[0].removesuffix("s") in message


def test_an_error_of_the_override_does_not_name_the_sweeps_file(sweep_file):
    path = sweep_file("{title: T, arms: [tepo], overrides: {objective.clip_high: 0.3}}")
    message = error_of(lambda: expand(*load_sweep(path, ["trainer.stps=3"])))
    assert message.startswith("arm tepo, profile nano, with objective.clip_high=0.3 trainer.stps=3: ")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("trainer.steps=many", "'trainer.steps'"),
        ("trainer.steps=-1", "'trainer.steps'"),
        ("trainer.steps=true", "'trainer.steps'"),
        ("trainer.steps=null", "'trainer.steps'"),
        ("trainer.steps=1.5", "'trainer.steps'"),
        ("trainer.betas=[2,3]", "'trainer.betas.0'"),
        ("trainer.betas=[0.9]", "'trainer.betas.1'"),
        ("trainer.learning_rate=nan", "'trainer.learning_rate'"),
        ("trainer.learning_rate=0", "'trainer.learning_rate'"),
        ("trainer.mini_batch_prompts=7", "mini_batch_prompts (7)"),
        ("objective.ratio=tokn", "'objective.ratio'"),
        ("objective.penalty.where=some", "'objective.penalty.where'"),
        ("objective.clip_lo=1", "'objective.clip_lo'. Did you mean 'clip_low'?"),
        ("rollout.top_p=1.5", "'rollout.top_p'"),
        ("suite.benchmarks.sum_6.samples=0", "'sum_6'. Did you mean 'sum6'?"),
        ("suite.benchmarks.sum3.samples=4", "'suite.benchmarks.sum3'"),
        ("suite.benchmarks.sum3.problems=100000000", "'suite.benchmarks.sum3.problems'"),
        ("suite.name=../x", "'suite.name'"),
        ("data.kind=gsm8k", "'data'"),
        ("data.path=nowhere.jsonl", "'data.path'. Known: kind, operators"),
        (
            "model.dtype=float8",
            "'model.dtype': must be 'float32' or 'bfloat16' (got 'float8'). Did you mean 'float32'?",
        ),
        ("model.path=", "'model.path'"),
        ("resources.device=cuda", "gpus: 1"),
        ("resources.cpus=nan", "'resources.cpus'"),
        ("resources.threads=100000", "'resources.threads'"),
        ("trainer.steps=${trainer.steps}", "leads back to itself"),
        ("trainer.steps=${nowhere}", "${nowhere}: there is no such key"),
        ("objective.ratio.kind=token", "'ratio.kind'"),
    ],
)
def test_a_wrong_value_of_a_run_is_named_with_its_override(override, key):
    message = error_of(compose_run, "tepo", "nano", [override])
    assert message.startswith(f"arm tepo, profile nano, with {override}: ")
    assert key in message


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("trainer=papr", "'papr'. Did you mean 'paper'?"),
        ("trainer.steps=1,2", "axes"),
        ("trainer.steps=1\n2", "cannot be read"),
        ("trainer.steps=" + "9" * 5000, "cannot be read"),
        ("seed=3", "seeds=[1, 2]"),
        ("profile.name=x", "profile=NAME"),
    ],
)
def test_an_override_that_cannot_be_applied(override, key):
    assert key in error_of(compose_run, "tepo", "nano", [override]).replace("\\n", "\n")


@pytest.mark.parametrize(
    ("files", "key"),
    [
        ({"a": "label: a\nparent: b\n", "b": "label: b\nparent: a\n"}, "a -> b -> a"),
        ({"a": "label: a\nparent: a\n"}, "a -> a"),
        ({"a": "label: a\nparent: tepoo\n"}, "'tepoo'. Did you mean 'tepo'?"),
        ({"a": "label: a\nlable: b\n"}, "'lable'. Did you mean 'label'?"),
        ({"a": "label: a\nobjektive: {}\n"}, "'objektive'. Did you mean 'objective'?"),
        ({"a": "label: a\nseed: 3\n"}, "'seed'"),
        ({"a": "parent: tepo\n"}, "'label'"),
        ({"a": "label: A\nparent: 3\n"}, "'parent'"),
        ({"a": "label: A\nparent: tepo\nsources: {objective: {paper: '1'}}\n"}, "'sources.objective'"),
        ({"a": "label: A\nparent: tepo\nobjective: 3\n"}, "'objective'"),
        ({"a": "label: A\nparent: tepo\nobjective: {ratio: both}\n"}, "'objective.ratio'"),
        ({"a": "label: A\nparent: tepo\nobjective: {clip_high: .inf}\n"}, "'objective.clip_high'"),
        ({"a": "label: A\nparent: tepo\ntrainer: {steps: '${nowhere}'}\n"}, "${nowhere}"),
        ({"a": "label: [\n"}, "a.yaml:2:1"),
        ({"a" * 101: "label: A\nparent: tepo\n"}, "'name'"),
    ],
)
def test_a_wrong_arm_file_is_named(files, key, user_registry):
    user_registry(**{f"experiments/arm/{name}": text for name, text in files.items()})
    assert key in error_of(compose_run, next(iter(files)), "nano")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a: [\n", "p.yaml:2:1"),
        ("defaults: 3\n", "defaults"),
        ("defaults: [/model: nope]\n", "'model/nope'"),
        ("defaults: [p]\n", "p.yaml"),
        ("x: ${nowhere}\n", "${nowhere}"),
        ("hydra: {run: {dir: x}}\n", "profile"),
    ],
)
def test_a_wrong_profile_is_named(text, key, user_registry):
    user_registry(**{"experiments/profile/p": text})
    assert key in error_of(compose_run, "tepo", "p")


def test_a_registry_that_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TEPO_LAB_REGISTRY", str(tmp_path / "nowhere"))
    assert f"TEPO_LAB_REGISTRY={tmp_path / 'nowhere'}" in error_of(load_sweep, "panel-e")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("title: [", ":2:1: not YAML"),
        ("{title: T, profile: nano, panels: {}}", "'panels'"),
        ("{title: T, profile: nano, panels: {a: panel-e}}", "'panels.a'"),
        ("{title: T, profile: nope, panels: {a: {sweep: panel-e}}}", "'nope'"),
        (
            "{title: T, profile: nano, published: tabel3, panels: {a: {sweep: panel-e}}}",
            "'tabel3'. Did you mean 'table",
        ),
        ("{title: T, profile: nano, draw: pie, panels: {a: {sweep: panel-e}}}", "'draw'"),
        ("{title: T, profile: nano, panels: {a: {sweep: panel-f}}}", "'panel-f'. Did you mean 'panel-e'?"),
        ("{title: T, profile: nano, panels: {a: {sweep: panel-e, arms: [gspo]}}}", "panel 'a'"),
        ("{title: T, profile: nano, panels: {a: {sweep: panel-e, extra: [gspo]}}}", "panel 'a'"),
        ("{title: T, profile: nano, panels: {a: {sweep: panel-e, arms: [tepo, tepo]}}}", "'panels.a'"),
        ("{title: T, profile: nano, panels: {a: {sweep: panel-e, steps: best}}}", "'panels.a.steps'"),
        (
            "{title: T, profile: nano, panels: {a: {sweep: panel-e, labels: {tepoo: x}}}}",
            "'tepoo'. Did you mean 'tepo'?",
        ),
    ],
)
def test_a_wrong_report_is_named_with_file_and_key(text, key, sweep_file):
    path = sweep_file(text)
    message = error_of(load_report, path)
    assert message.startswith(path)
    assert key in message
