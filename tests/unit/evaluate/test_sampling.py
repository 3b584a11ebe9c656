"""Responses are graded while others are sampled, and come out as if they had been graded afterwards."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tepo_lab.evaluate.sampling import decoder, sample_and_grade
from tepo_lab.evaluate.suite import _rows
from tepo_lab.rollout.engine import Finished, Prompts, Response, Sampling, ignore_response
from tepo_lab.schema.problem import Problem
from tepo_lab.tasks import verifier as module
from tepo_lab.tasks.grading import Grade, Grader, Grading, grade_all
from tepo_lab.tasks.verifier import Verdict, Verifier
from tepo_lab.train.distributed.process_group import ProcessGroup
from tepo_lab.train.distributed.sharing import SharedEngine, SharedGrading

#: What an engine answers, by its token: right and wrong to the letter, by mathematics, and not at all.
TEXTS = [r"\boxed{x+1}", r"\boxed{5}", r"\boxed{1+x}", "no answer", r"\boxed{x+2}", r"\boxed{1+x}"]
PROBLEMS = [Problem("a", "A", "x+1"), Problem("b", "B", "x+1")]

#: Whether each is right, and how that was found.
GRADES = [(1, "exact"), (0, "symbolic"), (1, "symbolic"), (0, "none"), (0, "symbolic"), (1, "symbolic")]


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
        self, prompts: Prompts, *, samples: int, sampling: Sampling, finished: Finished = ignore_response
    ) -> list[list[Response]]:
        begin = range(len(prompts))
        first = sampling.first_prompt
        made = [[Response(((first + p) * samples + s,), False) for s in range(samples)] for p in begin]
        places = [(prompt, sample) for prompt in begin for sample in range(samples)]
        for number, (prompt, sample) in enumerate(reversed(places)):
            if number:
                self.between()
            finished(prompt, sample, made[prompt][sample])
        return made

    def rest(self) -> None: ...

    def sync_weights(self) -> None: ...

    def close(self) -> None: ...


class SlowVerifier:
    """Notes at once what it is asked for, and decides nothing before `end` is called."""

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


class QuickVerifier(SlowVerifier):
    """Decides at once."""

    def submit(self, pair: tuple[str, str]) -> Future[Any]:
        verdict = super().submit(pair)
        verdict.set_result("equal" if sorted(pair[0]) == sorted(pair[1]) else "different")
        return verdict


@pytest.fixture(autouse=True)
def quick_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "shared_verifier", QuickVerifier)


def graded(grades: Sequence[Grade]) -> list[tuple[int, str]]:
    return [(grade.correct, grade.how) for grade in grades]


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
    assert graded(sampled.grades) == GRADES


def test_grades_are_those_of_grading_everything_afterwards() -> None:
    sampled = run(Backwards(), Grading())
    answers = [problem.answer for problem in PROBLEMS for _ in range(3)]
    assert graded(sampled.grades) == graded(grade_all(TEXTS, answers)) == GRADES
    assert [response.token_ids[0] for group in sampled.responses for response in group] == list(range(6))


def test_no_worker_is_asked_for_where_text_decides(monkeypatch) -> None:
    monkeypatch.setattr(module, "shared_verifier", lambda: pytest.fail("a worker was asked for"))
    sampled = run(Backwards(), Grading(Grader(symbolic=False)))
    assert [grade.correct for grade in sampled.grades] == [1, 0, 0, 0, 0, 0]


class Both:
    """Two processes, played by threads."""

    def __init__(self) -> None:
        self.given: list[Any] = [None, None]
        self.all_here = threading.Barrier(2, timeout=60)

    def work(self, work: Callable[[ProcessGroup], Any]) -> list[Any]:
        """What `work` returns in each of them."""
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(lambda rank: work(Player(self, rank)), (0, 1)))


class Player(ProcessGroup):
    """One of both; what they give each other travels pickled."""

    world_size = 2

    def __init__(self, both: Both, rank: int) -> None:
        self.both, self.rank = both, rank

    def all_gather(self, value: Any) -> list[Any]:
        self.both.given[self.rank] = pickle.dumps(value)
        self.both.all_here.wait()
        gathered = [pickle.loads(each) for each in self.both.given]
        self.both.all_here.wait()
        return gathered


class NotedGrading(SharedGrading):
    """Notes the places of the responses added to it."""

    def __init__(self, process_group: ProcessGroup, added: dict[int, list[int]]) -> None:
        super().__init__(process_group, Grader())
        self.added = added[process_group.rank] = []

    def add(self, place: int, response: str, answer: str) -> None:
        self.added.append(place)
        super().add(place, response, answer)


def test_each_process_grades_what_it_sampled_and_gets_all_grades() -> None:
    problems = [*PROBLEMS, Problem("c", "C", "x+1")]
    whole = run(Backwards(), Grading(), problems, 2)
    added: dict[int, list[int]] = {}
    shared = Both().work(
        lambda process_group: run(
            SharedEngine(Backwards(), process_group), NotedGrading(process_group, added), problems, 2
        )
    )
    assert {rank: sorted(places) for rank, places in added.items()} == {0: [0, 1], 1: [2, 3, 4, 5]}
    for rank, sampled in enumerate(shared):
        assert (sampled.grades, sampled.responses) == (whole.grades, whole.responses)
        assert sampled.texts == {place: whole.texts[place] for place in added[rank]}
        assert _rows("b", problems, sampled, decoder(Words())) == _rows("b", problems, whole, decoder(Words()))


def test_texts_are_returned_by_place() -> None:
    assert run(Backwards(), Grading(Grader(symbolic=False))).texts == dict(enumerate(TEXTS))


class OneAtATime:
    """A pool of one worker that does not decide before `may_end` is set; it notes what it has begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.first_begun, self.may_end = threading.Event(), threading.Event()
        self.pool = Verifier(1)
        self.pool._verdict = self.decide

    def decide(self, pair: tuple[str, str]) -> Verdict:
        self.begun.append(pair[1])
        self.first_begun.set()
        assert self.may_end.wait(60)
        return "equal"


@pytest.fixture
def slow_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[OneAtATime]:
    slow = OneAtATime()
    monkeypatch.setattr(module, "shared_verifier", lambda: slow.pool)
    yield slow
    slow.may_end.set()
    slow.pool.close()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_when_sampling_ends_early_the_next_grading_does_not_wait_for_its_answers(
    error: type[BaseException], slow_pool: OneAtATime
) -> None:
    calls: list[int] = []

    def between() -> None:
        calls.append(1)
        if len(calls) == 5:
            assert slow_pool.first_begun.wait(60)
            raise error("early")

    with pytest.raises(error, match="early"):
        run(Backwards(between), Grading())
    slow_pool.may_end.set()
    assert slow_pool.pool.verdicts([("x", "the next")]) == ["equal"]
    # What was being worked on when sampling ended is brought to its end; the other answer that waited is not.
    assert slow_pool.begun == ["1+x", "the next"]
