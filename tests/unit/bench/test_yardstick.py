"""Another trainer's step in turn with ours."""

from __future__ import annotations

from pathlib import Path

from tests.bench import steps
from tests.bench.steps import yardstick_ratios


def test_each_arm_has_ratios_of_its_own_against_the_same_rounds(monkeypatch):
    seconds = {"theirs": iter([6.0, 8.0, 4.0]), "grpo_dapo": iter([2.0] * 3), "tepo": iter([3.0, 2.0, 4.0])}
    called = []

    def printed(program):
        called.append(program[program.index("--arm") + 1] if "--arm" in program else program[0])
        return {"tool": "other", "cpu_s_per_step": next(seconds[called[-1]])}

    monkeypatch.setattr(steps, "_printed", printed)
    found = yardstick_ratios(["theirs"], Path("model"), Path("prompts"), 1, 3, ["grpo_dapo", "tepo"])
    assert called == ["theirs", "grpo_dapo", "tepo"] * 3
    assert {arm: values["ratios"] for arm, values in found["arms"].items()} == {
        "grpo_dapo": [3.0, 4.0, 2.0],
        "tepo": [2.0, 4.0, 1.0],
    }
    assert [values["median"] for values in found["arms"].values()] == [3.0, 2.0]
    assert [each["cpu_s_per_step"] for each in found["theirs"]] == [6.0, 8.0, 4.0]
