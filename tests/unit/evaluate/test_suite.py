"""What an evaluation asks of its benchmarks before it samples."""

from __future__ import annotations

import pytest

from tepo_lab.errors import DataError
from tepo_lab.evaluate.suite import evaluate
from tepo_lab.registry.compose import compose_run
from tepo_lab.schema.profile import DatasetData


class Untouched:
    """An engine and a tokenizer that nobody may ask."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked for before all benchmarks were looked at")


def test_a_benchmark_of_another_count_is_refused_before_any_other_is_sampled(tmp_path) -> None:
    spec = compose_run("tepo", "nano")
    (tmp_path / "x.jsonl").write_text('{"id": "a", "problem": "1+1?", "answer": "2"}\n')
    benchmarks = dict(spec.suite.benchmarks)
    last = list(benchmarks)[-1]
    data = DatasetData(kind="dataset", path=str(tmp_path / "x.jsonl"))
    benchmarks[last] = benchmarks[last].model_copy(update={"data": data})
    suite = spec.suite.model_copy(update={"benchmarks": benchmarks})
    with pytest.raises(DataError, match="has 1 problems, the benchmark states 200"):
        evaluate(Untouched(), Untouched(), suite, spec.prompt, max_prompt_tokens=64)
