"""Responses are graded while others are sampled, and come out as if they had been graded afterwards."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from tepo_lab.evaluate.sampling import decoder, sample_and_grade
from tepo_lab.rollout.engine import Finished, Prompts, Response, Sampling
from tepo_lab.schema.problem import Problem
from tepo_lab.tasks import verifier as module
from tepo_lab.tasks.grading import Grader, Grading, grade_all
from tepo_lab.train.peers import Peers
from tepo_lab.train.sharing import SharedEngine, SharedGrading

#: What an engine answers, by its token: right and wrong to the letter, by mathematics, and not at all.
TEXTS = [r"\boxed{x+1}", r"\boxed{5}", r"\boxed{1+x}", "no answer", r"\boxed{x+2}", r"\boxed{1+x}"]
PROBLEMS = [Problem("a", "A", "x+1"), Problem("b", "B", "x+1")]


class Words:
    """A tokenizer whose token is a whole text."""

    def decode(self, ids: tuple[int, ...], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return TEXTS[ids[0] % len(TEXTS)]


class Backwards:
    """An engine that finishes the last response first; `between` is called before each but the first."""

    def __init__(self, between: Any = lambda: None) -> None:
        self.between = between

    def generate(
        self, prompts: Prompts, *, samples: int, sampling: Sampling, finished: Finished | None = None
    ) -> list[list[Response]]:
        begin = range(len(prompts))
        first = sampling.first_prompt
        made = [[Response(((first + p) * samples + s,), False) for s in range(samples)] for p in begin]
        places = [(prompt, sample) for prompt in begin for sample in range(samples)]
        for number, (prompt, sample) in enumerate(reversed(places)):
            if number:
                self.between()
            if finished is not None:
                finished(prompt, sample, made[prompt][sample])
        return made

    def sync_weights(self) -> None: ...

    def close(self) -> None: ...


class SlowVerifier:
    """Notes at once what it is asked for, and decides nothing before it is told to `end`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.verdicts: list[Future[Any]] = []

    def submit(self, pair: tuple[str, str]) -> Future[Any]:
        self.asked.append(pair)
        self.verdicts.append(Future())
        return self.verdicts[-1]

    def end(self) -> None:
        for verdict, (gold, given) in zip(self.verdicts, self.asked, strict=True):
            verdict.set_result("equal" if sorted(gold) == sorted(given) else "different")


def run(engine: Any, grading: Grading, problems: list[Problem] = PROBLEMS, samples: int = 3) -> Any:
    prompts = [[0]] * len(problems)
    sampling = Sampling(1.0, 1)
    return sample_and_grade(
        engine, problems, prompts, samples=samples, sampling=sampling, text=decoder(Words()), grading=grading
    )


def test_the_first_finished_response_is_being_graded_before_the_last_is_sampled(monkeypatch) -> None:
    verifier = SlowVerifier()
    monkeypatch.setattr(module, "shared_verifier", lambda: verifier)
    asked: list[int] = []

    def between() -> None:
        asked.append(len(verifier.asked))
        # The slow verifier decides when all but one response have been sampled.
        if len(asked) == 5:
            verifier.end()

    sampled = run(Backwards(between), Grading())
    # Responses 5 and 4 need mathematics, 3 has no answer, 2 is as 5, and 0 is right by its text.
    assert asked == [1, 2, 2, 2, 3]
    assert [(grade.correct, grade.how) for grade in sampled.grades] == [
        (1, "exact"),
        (0, "symbolic"),
        (1, "symbolic"),
        (0, "none"),
        (0, "symbolic"),
        (1, "symbolic"),
    ]


def test_grades_are_those_of_grading_everything_afterwards() -> None:
    sampled = run(Backwards(), Grading())
    answers = [problem.answer for problem in PROBLEMS for _ in range(3)]
    assert sampled.grades == grade_all(TEXTS, answers)
    assert [response.token_ids[0] for group in sampled.responses for response in group] == list(range(6))


def test_no_worker_is_asked_for_where_text_decides(monkeypatch) -> None:
    monkeypatch.setattr(module, "shared_verifier", lambda: pytest.fail("a worker was asked for"))
    sampled = run(Backwards(), Grading(Grader(symbolic=False)))
    assert [grade.correct for grade in sampled.grades] == [1, 0, 0, 0, 0, 0]


class Pair(Peers):
    """One of two processes that have done the same before: what the other gives is worked out here."""

    def __init__(self, rank: int, others: dict[str, Any]) -> None:
        self.rank, self.size, self.others = rank, 2, others

    def gather(self, value: Any) -> list[Any]:
        kind = type(value).__name__
        self.others[f"{self.rank}{kind}"] = value
        other = self.others.get(f"{1 - self.rank}{kind}", type(value)())
        return [value, other] if self.rank == 0 else [other, value]


def test_each_process_grades_what_it_sampled_and_gets_all_grades(monkeypatch) -> None:
    problems = [*PROBLEMS, Problem("c", "C", "x+1")]
    whole = run(Backwards(), Grading(), problems, 2)
    said: dict[str, Any] = {}
    graded: list[list[int]] = []
    for rank in (0, 1):
        peers = Pair(rank, said)
        grading = SharedGrading(peers, Grader())
        seen: list[int] = []
        add = grading.add
        monkeypatch.setattr(
            grading, "add", lambda place, *given, add=add, seen=seen: (seen.append(place), add(place, *given))
        )
        graded.append(seen)
        if rank == 0:
            with pytest.raises(KeyError):
                # The first of the two has nobody to hear from yet.
                run(SharedEngine(Backwards(), peers), grading, problems, 2)
        else:
            sampled = run(SharedEngine(Backwards(), peers), grading, problems, 2)
    assert [sorted(seen) for seen in graded] == [[0, 1], [2, 3, 4, 5]]
    assert (sampled.grades, sampled.responses) == (whole.grades, whole.responses)
