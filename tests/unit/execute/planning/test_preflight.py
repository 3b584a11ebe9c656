"""What is looked at before anything starts."""

from __future__ import annotations

import pytest

from tepo_lab.errors import DataError
from tepo_lab.execute.planning import preflight
from tepo_lab.execute.planning.preflight import check_hub_counts, missing_data
from tepo_lab.registry.compose import compose_run
from tepo_lab.schema.problem import Problem
from tepo_lab.tasks import sources
from tepo_lab.tasks.hub_data import HubUnreachableError


def test_a_file_of_problems_that_is_not_here_is_told_once_and_one_that_is_here_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ("data=gsm8k", "suite=gsm8k", "data.path=train.jsonl")
    specs = [compose_run("tepo", "nano", data, seed=seed) for seed in (1, 2)]
    first, second = missing_data(specs)
    assert first.startswith("data.path=train.jsonl: no such file or folder on this machine; tepo-lab run refuses it")
    assert second.startswith("suite.benchmarks.gsm8k.data.path=gsm8k_test.jsonl: no such file")
    for name in ("train.jsonl", "gsm8k_test.jsonl"):
        (tmp_path / name).write_text("{")
    assert missing_data(specs) == []
    assert missing_data([compose_run("base", "nano")]) == []


@pytest.fixture
def hub(monkeypatch):
    """Rows of the hub's data sets by name; which were read, at which revision."""
    read = []
    counts = {
        "HuggingFaceH4/aime_2024": 30,
        "math-ai/aime25": 30,
        "AI-MO/aimo-validation-amc": 83,
        "HuggingFaceH4/MATH-500": 500,
        "KbsdJames/Omni-MATH": 4428,
        "math-ai/olympiadbench": 674,
        "math-ai/minervamath": 272,
    }

    def rows(data):
        read.append((data.hub, data.revision))
        return [{"number": number} for number in range(counts[data.hub])]

    monkeypatch.setattr(sources, "hub_rows", rows)
    monkeypatch.setattr(sources, "_problem", lambda row, number, data, where: Problem(str(number), "", ""))
    monkeypatch.setattr(preflight, "commit_of", lambda data: "c" * 40)
    return read


def paper(*overrides):
    return [compose_run("tepo", "qwen2.5-7b", overrides, seed=seed) for seed in (1, 2)]


def test_benchmarks_of_the_hub_are_counted_once_and_all_that_are_wrong_are_told_at_once(hub):
    with pytest.raises(DataError) as told:
        check_hub_counts(paper())
    said = str(told.value)
    assert "suite.benchmarks.omni_math: data set KbsdJames/Omni-MATH [test]: has 4428 problems, the benchmark" in said
    assert "has 674 problems, the benchmark states 675" in said
    assert "suite.benchmarks.olympiadbench.data.path=FILE.jsonl" in said
    assert "aime" not in said
    assert len(said.splitlines()) == 1
    assert sorted(hub) == sorted({(name, "c" * 40) for name, _ in hub})
    assert len(hub) == 7


def test_a_local_copy_is_not_counted_here_and_another_count_may_be_stated(hub):
    changed = ("suite.benchmarks.omni_math.data.path=omni.jsonl", "suite.benchmarks.olympiadbench.problems=674")
    check_hub_counts(paper(*changed))
    assert "KbsdJames/Omni-MATH" not in {name for name, _ in hub}
    assert len(hub) == 6


def test_a_hub_that_cannot_be_reached_is_told_as_such(hub, monkeypatch):
    def unreachable(data):
        raise HubUnreachableError("data set: cannot be loaded")

    monkeypatch.setattr(sources, "hub_rows", unreachable)
    with pytest.raises(HubUnreachableError):
        check_hub_counts(paper())
