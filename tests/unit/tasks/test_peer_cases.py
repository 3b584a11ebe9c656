"""Grading cases of other projects' tests: our verdicts are those recorded, and docs/grading.md counts them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tepo_lab.tasks.grading import grade_all

#: One case a line: `source` (repository and file), `gold`, `given` (boxed here), the verdicts `theirs` and `ours`, and
#: where they differ the `difference`: whose fault ("ours", "theirs", "debatable"), and why.
CASES = [json.loads(line) for line in Path(__file__).with_name("peer_cases.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.integration
def test_verdicts_are_those_recorded() -> None:
    grades = grade_all([f"\\boxed{{{case['given']}}}" for case in CASES], [case["gold"] for case in CASES])
    verdicts = [(case["gold"], case["given"], grade.correct) for case, grade in zip(CASES, grades, strict=True)]
    assert verdicts == [(case["gold"], case["given"], case["ours"]) for case in CASES]


def test_each_difference_is_classified_and_counted_in_the_documentation() -> None:
    for case in CASES:
        assert (case["theirs"] != case["ours"]) == bool(
            re.match("(ours|theirs|debatable): .", case.get("difference", ""))
        )
    agree = Counter(case["source"] for case in CASES if case["theirs"] == case["ours"])
    page = (Path(__file__).parents[3] / "docs" / "grading.md").read_text("utf-8")
    for source, count in Counter(case["source"] for case in CASES).items():
        assert f"| {source} | {count} | {agree[source]} |" in page
