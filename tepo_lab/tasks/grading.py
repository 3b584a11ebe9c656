"""Is a response's final answer the gold one? Text and numbers decide first, mathematics where they cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from tepo_lab.schema.profile import Benchmark, Data, GraderKind, PromptSpec, usual_grader
from tepo_lab.tasks.answers import Form, comparable, find_answer, for_parser, plainly_equal, same_text, split_tolerance
from tepo_lab.tasks.prompts import answer_form

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tepo_lab.tasks.verifier import Verdict

#: Changes whenever a grade could change; recorded with every generation.
GRADER = "exact-symbolic-5"

How = Literal["exact", "symbolic", "timeout", "none"]


@dataclass(frozen=True)
class Grade:
    """`correct` is 0 or 1; `extracted` the answer found, if any; `how` the stage that decided.

    "exact": text or numbers; "symbolic": a computer algebra system; "timeout": it used up its CPU time, or its workers
    died, and the answer counts as wrong; "none": the response has no answer.
    """

    correct: int
    extracted: str | None
    how: How


@dataclass(frozen=True)
class Grader:
    """How responses are graded: in which `form` the answer stands, and whether mathematics may decide."""

    form: Form = "boxed"
    symbolic: bool = True


def grader_of(data: Data, prompt: PromptSpec, kind: GraderKind | None = None) -> Grader:
    """The grader for answers to a data set's problems. `kind` None: exact for the embedded task, else symbolic."""
    return Grader(answer_form(prompt), (kind or usual_grader(data)) == "symbolic")


def benchmark_grader(benchmark: Benchmark, prompt: PromptSpec) -> Grader:
    """The grader pinned to a benchmark; `prompt` is the run's, for a benchmark without its own."""
    return grader_of(benchmark.data, benchmark.prompt or prompt, benchmark.grader)


def grade(response: str, answer: str, grader: Grader = Grader()) -> Grade:
    """Grade one response; `grade_all` is faster for many."""
    return grade_all([response], [answer], grader)[0]


def grade_all(responses: Sequence[str], answers: Sequence[str], grader: Grader = Grader()) -> list[Grade]:
    """Grade each response against the gold answer at the same place. Raises as `Grading.grades`."""
    with Grading(grader) as grading:
        for place, (response, answer) in enumerate(zip(responses, answers, strict=True)):
            grading.add(place, response, answer)
        grades = grading.grades()
    return [grades[place] for place in range(len(responses))]


class Grading:
    """Grades of responses that come one after the other. What needs mathematics is worked on while more are added.

    Gold answers may end in "±" and a tolerance. No worker process is started unless an answer needs mathematics; equal
    pairs are looked at once. It is entered as a context: what waits to be worked on when that is left is given up.
    """

    def __init__(self, grader: Grader = Grader()) -> None:
        self.grader = grader
        self._decided: dict[int, Grade] = {}
        self._open: dict[int, tuple[str, str]] = {}
        self._verdicts: dict[tuple[str, str], Future[Verdict]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Cancel what waits: else the process would work it off before its end or its next grading."""
        for verdict in self._verdicts.values():
            verdict.cancel()

    def add(self, place: int, response: str, answer: str) -> None:
        """Grade a response against a gold answer, to be known by its place."""
        extracted = find_answer(response, self.grader.form)
        if extracted is None:
            self._decided[place] = Grade(0, None, "none")
            return
        equal = plainly_equal(extracted, answer) if self.grader.symbolic else same_text(extracted, answer)
        if equal is None:
            self._open[place] = (extracted, answer)
            self._ask(extracted, answer)
        else:
            self._decided[place] = Grade(int(equal is True), extracted, "exact")

    def _ask(self, extracted: str, answer: str) -> None:
        from tepo_lab.tasks.verifier import shared_verifier

        if (extracted, answer) not in self._verdicts:
            given, gold = comparable(extracted, split_tolerance(answer)[0])
            self._verdicts[extracted, answer] = shared_verifier().submit((for_parser(gold), for_parser(given)))

    def grades(self) -> dict[int, Grade]:
        """The grades by place, once all are known. Raises as `Verifier.verdicts`."""
        for place, pair in self._open.items():
            verdict = self._verdicts[pair].result()
            how: How = "timeout" if verdict == "timeout" else "symbolic"
            self._decided[place] = Grade(int(verdict == "equal"), pair[0], how)
        return self._decided


#: Begins a grading by a grader.
OpenGrading = Callable[[Grader], Grading]
