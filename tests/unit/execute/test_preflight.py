"""What is looked at before anything starts."""

from __future__ import annotations

from tepo_lab.execute.preflight import missing_data
from tepo_lab.registry.compose import compose_run


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
