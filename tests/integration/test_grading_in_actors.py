"""Grading from inside Ray's actors, with one thread of their own and with two."""

from __future__ import annotations

from typing import Any

import pytest

ANSWERS = (
    ("\\boxed{5}", "5"),
    ("\\boxed{x+1}", "1+x"),
    ("\\boxed{x+2}", "1+x"),
    ("\\boxed{9^{9^{9^{9}}}}", "5"),
    ("", "5"),
)
EXPECTED = [(1, "exact"), (1, "symbolic"), (0, "symbolic"), (0, "timeout"), (0, "none")]


@pytest.fixture
def session() -> Any:
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="CRITICAL")
    yield ray
    ray.shutdown()


def test_answers_are_graded_inside_actors(session) -> None:
    # A class of this function travels whole; actors cannot import a test's module.
    class Grading:
        def grades(self, texts: list[str], answers: list[str]) -> list[tuple[int, str]]:
            from tepo_lab.tasks.grading import grade_all

            return [(each.correct, each.how) for each in grade_all(texts, answers)]

    texts, answers = map(list, zip(*ANSWERS, strict=True))
    actors = [session.remote(Grading).options(num_cpus=1, max_concurrency=threads).remote() for threads in (1, 2)]
    assert session.get([actor.grades.remote(texts, answers) for actor in actors]) == [EXPECTED] * 2
