"""Is a response's final answer the gold one? Text and numbers decide first, mathematics where they cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tepo_lab.schema.profile import Benchmark, ChainData, Data, PromptSpec
from tepo_lab.tasks.answers import Form, comparable, find_answer, normalised, plainly_equal, split_tolerance
from tepo_lab.tasks.prompts import answer_form

#: Changes whenever a grade could change; recorded with every generation.
GRADER = "exact-symbolic-2"

How = Literal["exact", "symbolic", "timeout", "none"]


@dataclass(frozen=True)
class Grade:
    """`correct` is 0 or 1; `extracted` the answer found, if any; `how` the stage that decided.

    "exact": text or numbers; "symbolic": a computer algebra system; "timeout": it gave no answer in time, or died of
    the question, and the answer counts as wrong; "none": the response holds no answer.
    """

    correct: int
    extracted: str | None
    how: How


@dataclass(frozen=True)
class Grader:
    """How responses are graded: in which `form` the answer stands, and whether mathematics has a say."""

    form: Form = "boxed"
    symbolic: bool = True


#: Grades each response against the gold answer at the same place, as `grade_all` does.
GradeAll = Callable[[Sequence[str], Sequence[str], Grader], list[Grade]]


def grader_of(data: Data, prompt: PromptSpec, kind: Literal["exact", "symbolic"] | None = None) -> Grader:
    """The grader for answers to a data set's problems. `kind` None: exact for the embedded task, else symbolic."""
    symbolic = kind == "symbolic" if kind else not isinstance(data, ChainData)
    return Grader(answer_form(prompt), symbolic)


def benchmark_grader(benchmark: Benchmark, prompt: PromptSpec) -> Grader:
    """The grader pinned to a benchmark; `prompt` is the run's, for a benchmark without its own."""
    return grader_of(benchmark.data, benchmark.prompt or prompt, benchmark.grader)


def grade(response: str, answer: str, grader: Grader = Grader()) -> Grade:
    """Grade one response; `grade_all` is faster for many."""
    return grade_all([response], [answer], grader)[0]


def grade_all(responses: Sequence[str], answers: Sequence[str], grader: Grader = Grader()) -> list[Grade]:
    """Grade each response against the gold answer at the same place.

    Gold answers may end in "±" and a tolerance. No worker process is started unless an answer needs mathematics; equal
    pairs are looked at once. Raises `ResourceError` when a worker is needed and cannot be started.
    """
    grades: list[Grade | None] = []
    open_pairs: dict[tuple[str, str], list[int]] = {}
    for place, (response, answer) in enumerate(zip(responses, answers, strict=True)):
        extracted = find_answer(response, grader.form)
        if extracted is None:
            grades.append(Grade(0, None, "none"))
            continue
        if grader.symbolic:
            equal = plainly_equal(extracted, answer)
        else:
            equal = normalised(extracted) == normalised(answer)
        if equal is None and extracted.strip():
            grades.append(None)
            open_pairs.setdefault((extracted, answer), []).append(place)
        else:
            grades.append(Grade(int(equal is True), extracted, "exact"))
    if open_pairs:
        _decide(grades, open_pairs)
    return [each for each in grades if each is not None]


def _decide(grades: list[Grade | None], open_pairs: dict[tuple[str, str], list[int]]) -> None:
    """Fill the places of the pairs that need mathematics."""
    from tepo_lab.tasks.verifier import shared_verifier

    asked = [comparable(extracted, split_tolerance(answer)[0]) for extracted, answer in open_pairs]
    verdicts = shared_verifier().verdicts([(gold, given) for given, gold in asked])
    for ((extracted, _), places), verdict in zip(open_pairs.items(), verdicts, strict=True):
        how: How = "timeout" if verdict == "timeout" else "symbolic"
        for place in places:
            grades[place] = Grade(int(verdict == "equal"), extracted, how)
