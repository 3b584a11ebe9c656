"""Grading: where an answer stands, when text and numbers decide, and when mathematics does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tepo_lab.schema.profile import Benchmark, ChainData, DatasetData, PromptSpec
from tepo_lab.tasks.answers import find_answer, last_boxed, normalised, plainly_equal
from tepo_lab.tasks.grading import Grade, Grader, benchmark_grader, grade, grade_all, grader_of

#: The golds whose braces were cut off upstream: no box can hold them.
CUT_OFF = {"omni-rule-183", "omni-rule-682", "omni-rule-710", "omni-rule-1469"}

TEST_FILES = {
    "aime24": 30,
    "aime25": 30,
    "amc83": 83,
    "math500": 500,
    "omni_math_rule": 2821,
    "olympiadbench": 675,
    "minerva_math": 272,
}


def boxed(answer: str) -> str:
    return "So it is $\\boxed{" + answer + "}$."


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5} and then \boxed{6}.", "6"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\fbox{7}", "7"),
        (r"\boxed {8}", "8"),
        (r"\boxed{9} \boxed{10", "9"),
        (r"\boxed{\left\{ 1, 2 \right.}", r"\left\{ 1, 2 \right."),
        (r"\\boxed{5}", "5"),
        (r"} \boxed{5}", "5"),
        (r"\boxed{5", None),
        ("no answer", None),
        ("", None),
    ],
)
def test_the_last_closed_box_holds_the_answer(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 5", "5"),
        ("answer : 5\nAnswer: $6$", "$6$"),
        ("**Answer:** 7", "7"),
        (r"Answer: \boxed{8}", "8"),
        (r"\boxed{9}", None),
        ("**Answer:**\n\n$5$\n", "$5$"),
        ("Answer:\n", None),
    ],
)
def test_the_last_answer_line_holds_the_answer(text: str, answer: str | None) -> None:
    assert find_answer(text, "answer_line") == answer


def test_either_form_prefers_the_box() -> None:
    assert find_answer("Answer: 5\n\\boxed{6}\nAnswer: 7", "either") == "6"
    assert find_answer("Answer: 5", "either") == "5"


@pytest.mark.parametrize(
    ("given", "gold"),
    [
        ("072", "72"),
        ("$72$.", "72"),
        ("1,000", "1000"),
        (r"10,\!080", "10080"),
        ("1{,}000", "1000"),
        (r"50\%", "50"),
        (r"90^\circ", "90"),
        (r"\$5", "5"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
        (r"\text{east}", "east"),
        ("27.0", "27"),
        (r"45\text{ minutes}", "45"),
        ("45 km/h", "45"),
        (r"166 \mathrm{cm}^2", "166"),
        ("4.5e33", r"4.5 \times 10^{33}"),
        (r"4.50 \cdot 10^{33}", r"4.5 \times 10^{33}"),
        ("4.3", "4.2±0.1"),
        (r"4.1\%", "4.2±0.1"),
    ],
)
def test_equal_as_text_or_number(given: str, gold: str) -> None:
    assert plainly_equal(given, gold) is True


@pytest.mark.parametrize(
    ("given", "gold"),
    [
        ("71", "72"),
        ("7 2", "72"),
        ("72.5", "72"),
        ("0.0000001", "0.0000002"),
        ("4.7e-10", r"4.5 \times 10^{-10}"),
        ("1234567.5", "1234567"),
        ("4.31", "4.2±0.1"),
        ("8" * 3000, "72"),
        ("9" * 5000, "72"),
    ],
)
def test_plainly_different(given: str, gold: str) -> None:
    assert grade(boxed(given), gold, Grader(symbolic=False)).correct == 0
    assert not plainly_equal(given, gold)


@pytest.mark.parametrize(
    ("given", "gold", "correct"),
    [
        ("0.5", r"\frac{1}{2}", 1),
        (r"\frac{5}{10}", r"\frac{1}{2}", 1),
        (r"2\sqrt{2}", r"\sqrt{8}", 1),
        (r"x^2+2x+1", "(x+1)^2", 1),
        ("x=5", "5", 1),
        ("5,3,1", "1,3,5", 1),
        ("84, 69", "$69$,$84$", 1),
        ("1", "1,3", 0),
        (r"5 \text{ or } 6", "5", 0),
        ("5;6", "5", 0),
        (r"\sqrt{7}", r"\sqrt{8}", 0),
        ("0.3333", r"\frac{1}{3}", 0),
        ("x^2+2x", "(x+1)^2", 0),
        ("[1,2]", "(1,2)", 0),
    ],
)
def test_mathematics_decides_what_text_cannot(given: str, gold: str, correct: int) -> None:
    assert grade(boxed(given), gold) == Grade(correct, given, "symbolic")


@pytest.mark.parametrize(
    ("given", "gold", "correct"),
    [
        # Three-digit numbers: thousands separators in well-formed groups without spaces, else lists.
        (r"240^\circ, 120^\circ", r"120^\circ, 240^\circ", 1),
        ("144121", "144, 121", 0),
        ("144,121", "144121", 1),
        ("144,121", "121, 144", 1),
        (r"1\,000", "1000", 1),
        ("1,00", "100", 0),
        ("0,111", "111", 0),
        ("0,111", "0.111", 1),
        ("0,1", "1,0", 1),
        # Two roots, and a tolerance.
        ("4", r"2\pm3", 0),
        ("4", "2±3", 0),
        ("5, -1", "2±3", 1),
        ("4.3", "4.2±0.1", 1),
        # A comma at the end.
        ("5,", "5", 1),
        ("1, 2,", "2,1", 1),
        (r"\frac12,", "0.5", 1),
        # Spaces separate digits, and nothing else.
        (r"5\ 6", "56", 0),
        (r"5\,6", "56", 0),
        ("56", "5~6", 0),
        (r"x\,y", "xy", 1),
        # A root without braces.
        (r"\sqrt[3]2", r"\sqrt[3]{2}", 1),
        (r"2\sqrt[3]2", r"\sqrt[3]{16}", 1),
        (r"\sqrt[3]2", r"\sqrt{6}", 0),
    ],
)
def test_notation_is_read_as_it_is_meant(given: str, gold: str, correct: int) -> None:
    assert grade(boxed(given), gold).correct == correct


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize("given", ["", " ", "$ $", r"\quad"])
def test_an_empty_answer_is_never_right(given: str, symbolic: bool) -> None:
    for gold in ("", given, "5"):
        assert grade(boxed(given), gold, Grader(symbolic=symbolic)) == Grade(0, given, "exact")


@pytest.mark.parametrize("gold", ["0.5", r"\frac{1}{2}"])
def test_a_percent_sign_changes_no_number_as_math_verify_has_it(gold: str) -> None:
    assert grade(boxed(r"50\%"), gold).correct == 0
    assert grade(boxed(r"50\%"), "50").correct == grade(boxed("50"), r"50\%").correct == 1


def test_grades_come_in_order_and_each_with_its_stage() -> None:
    responses = [boxed("5"), "nothing", boxed("0.5"), boxed("6"), boxed("0.5")]
    grades = grade_all(responses, ["5", "5", r"\frac12", "5", r"\frac13"])
    assert [(graded.correct, graded.how) for graded in grades] == [
        (1, "exact"),
        (0, "none"),
        (1, "symbolic"),
        (0, "exact"),
        (0, "symbolic"),
    ]


@pytest.mark.parametrize("form", ["boxed", "either", "answer_line"])
@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 15000,
        "{" * 100_000,
        "\\boxed{" + "{" * 50_000 + "}" * 50_000 + "}",
        "\\boxed{1" + " " * 100_000 + "2}",
        "answer:" * 15_000,
        "\\boxed{" + "9" * 100_000 + "}",
        "\\boxed{" + "1 cm" * 20_000 + "}",
        "\\boxed{" + ".,;" * 30_000 + "x}",
        "\\boxed{1" + ",000" * 25_000 + ",}",
    ],
)
def test_a_hundred_kilobytes_are_graded_without_a_worker(text: str, form: str, monkeypatch) -> None:
    monkeypatch.setattr("tepo_lab.tasks.verifier.shared_verifier", lambda: pytest.fail("a worker was asked for"))
    assert grade(text, "72", Grader(form)).correct == 0


@pytest.mark.parametrize("answer", ["٣", "5\x00", r"\input{/etc/passwd}", "\ud800", "__import__('os')", "lambda: 3"])
def test_odd_answers_are_wrong(answer: str) -> None:
    assert grade(boxed(answer), "3").correct == 0


def test_code_in_an_answer_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for code in (f"__import__('os').system('touch {mark}')", f"\\immediate\\write18{{touch {mark}}}"):
        assert grade(boxed(code), "5").correct == 0
    assert not mark.exists()


def test_grading_works_from_threads() -> None:
    found: dict[int, list[int]] = {}

    def work(number: int) -> None:
        responses = [boxed(f"{number}.5"), boxed(f"\\frac{{{2 * number + 3}}}{{2}}")]
        found[number] = [graded.correct for graded in grade_all(responses, [f"\\frac{{{2 * number + 1}}}{{2}}"] * 2)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [1, 0] for number in range(1, 7)}


def test_exact_answers_start_nothing() -> None:
    program = (
        "import sys; from tepo_lab.tasks.grading import grade_all; from tepo_lab.tasks import verifier;"
        "grades = grade_all(['\\\\boxed{77}', '\\\\boxed{78}', 'no'], ['77', '77', '77']);"
        "print([g.correct for g in grades], verifier._shared, 'math_verify' in sys.modules, 'sympy' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[1, 0, 0] None False False"


def test_the_embedded_task_is_graded_by_text_alone() -> None:
    grader = grader_of(ChainData(kind="chain", terms=(3,)), PromptSpec())
    assert grader == Grader("boxed", symbolic=False)
    answers = ["77", "077", "7*11", "154/2", "7.7e1", "c=77"]
    grades = grade_all([boxed(answer) for answer in answers], ["77"] * len(answers), grader)
    assert [(graded.correct, graded.how) for graded in grades] == [(1, "exact")] * 2 + [(0, "exact")] * 4


def test_a_benchmark_pins_its_prompt_and_its_grader() -> None:
    data = DatasetData(kind="dataset", path="x.jsonl")
    run = PromptSpec(template="boxed_chat")
    assert benchmark_grader(Benchmark(label="B", data=data, problems=1), run) == Grader("boxed", True)
    dapo = Benchmark(label="B", data=data, problems=1, prompt=PromptSpec(template="dapo_answer"), grader="exact")
    assert benchmark_grader(dapo, run) == Grader("answer_line", False)


@pytest.mark.parametrize("answer", ["-3", "0", "12", "3.25"])
def test_normalising_twice_changes_nothing(answer: str) -> None:
    assert normalised(normalised(answer)) == normalised(answer) == answer


@pytest.mark.skipif("TEPO_LAB_DATA" not in os.environ, reason="TEPO_LAB_DATA names the folder of the seven test files")
@pytest.mark.parametrize("name", TEST_FILES)
def test_every_gold_is_right_against_itself(name: str) -> None:
    lines = (Path(os.environ["TEPO_LAB_DATA"]) / f"{name}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    grades = grade_all([boxed(row["answer"]) for row in rows], [row["answer"] for row in rows])
    wrong = {row["id"] for row, each in zip(rows, grades, strict=True) if not each.correct}
    assert len(rows) == TEST_FILES[name]
    assert wrong == (CUT_OFF if name == "omni_math_rule" else set())
