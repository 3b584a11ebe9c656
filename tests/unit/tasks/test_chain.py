"""The embedded task: problems, splits, streams and demonstrations."""

import random
import re
from collections import Counter
from itertools import pairwise

import pytest

from tepo_lab.errors import DataError
from tepo_lab.tasks.chain import (
    SPLIT_SHARES,
    ChainTask,
    DemonstrationStyle,
    answer_of,
    demonstration,
    demonstrations,
    split_of,
)

CLEAN = DemonstrationStyle().reasoned()


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("a59b*3c+4=", "81"), ("a59b*3c*5d+1e-3f*4g+6=", "38"), ("a10b-9c-3=", "98"), ("a99b+1=", "00")],
)
def test_the_answer_is_the_running_total_in_two_digits(prompt: str, answer: str) -> None:
    assert answer_of(prompt) == answer


@pytest.mark.parametrize("text", ["", "a5b+1=", "a59=", "59+1=", "a59b*3"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="not a prompt"):
        answer_of(text)


def test_problems_are_frozen() -> None:
    problem = ChainTask(seed=3).problem("train", 12345)
    assert (problem.id, problem.prompt, problem.answer) == ("chain-fd823b251fea6b13", "a88b-2c+2d-1e-9=", "78")


def test_a_position_does_not_depend_on_where_reading_began() -> None:
    task = ChainTask(seed=1)
    assert task.problems("train", 0, 40)[25:] == task.problems("train", 25, 15)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_prompt_stands_in_its_split_whatever_the_seed(seed: int) -> None:
    task = ChainTask(terms=3, operators="+-", seed=seed)
    for split in SPLIT_SHARES:
        assert {split_of(problem.prompt) for problem in task.problems(split, 0, 50)} == {split}


def test_splits_take_their_shares() -> None:
    prompts = [
        f"a{start}b{operator}{digit}=" for start in range(10, 100) for operator in "+-" for digit in range(1, 10)
    ]
    counts = Counter(split_of(prompt) for prompt in prompts)
    for split, share in SPLIT_SHARES.items():
        assert counts[split] / len(prompts) == pytest.approx(share / 100, abs=0.03)


def test_a_benchmark_has_distinct_problems_with_distinct_ids() -> None:
    problems = ChainTask(terms=2, operators="+-").distinct("test", 500)
    assert len({problem.prompt for problem in problems}) == len({problem.id for problem in problems}) == 500


def test_a_benchmark_larger_than_its_split_is_refused() -> None:
    with pytest.raises(DataError, match="ask for fewer"):
        ChainTask(terms=1, operators="+-").distinct("validation", 200)


def test_terms_operators_and_digits_are_as_asked() -> None:
    prompts = [problem.prompt for problem in ChainTask(terms=(3, 5), operators=("+-", "+-*")).problems("train", 0, 400)]
    assert {len(re.findall(r"[a-z]", prompt)) - 1 for prompt in prompts} == {3, 5}
    assert set(re.findall(r"\*(\d)", "".join(prompts))) == set("2345")
    assert set(re.findall(r"[+-](\d)", "".join(prompts))) == set("123456789")


@pytest.mark.parametrize(("times_share", "expected"), [(1.0, 1 / 3), (2.0, 1 / 2)])
def test_times_share_weighs_multiplication_against_each_other_operator(times_share: float, expected: float) -> None:
    problems = ChainTask(terms=8, operators="+-*", times_share=times_share).problems("train", 0, 400)
    operators = Counter(re.findall(r"[-+*]", "".join(problem.prompt for problem in problems)))
    assert operators["*"] / operators.total() == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("wrong", [{"terms": 15}, {"terms": ()}, {"operators": "+/"}, {"times_share": 0.0}])
def test_a_task_that_cannot_be_is_refused(wrong: dict) -> None:
    with pytest.raises(DataError, match="chain task"):
        ChainTask(**wrong)


@pytest.mark.parametrize(
    ("long_hand", "expected"),
    [(0.0, r"b=77c=85d=86\boxed{86}"), (1.0, r"b59*3=77c77*5=85d85+1=86\boxed{86}")],
)
def test_both_hands(long_hand: float, expected: str) -> None:
    style = DemonstrationStyle(0.0, 0.0, long_hand, mixed=0.0, slip=0.0)
    assert demonstration("a59b*3c*5d+1=", style, random.Random(0)) == expected


def test_a_jump_boxes_the_answer_at_once() -> None:
    assert demonstration("a59b*3c*5d+1=", DemonstrationStyle(1.0, 1.0), random.Random(0)) == r"\boxed{86}"


def test_jumps_fall_linearly_with_the_leading_digit() -> None:
    style = DemonstrationStyle()
    jumps = [style.jump(f"a{digit}0b+1=") for digit in range(1, 10)]
    assert jumps[0] == pytest.approx(0.95)
    assert jumps[-1] == pytest.approx(0.35)
    assert [after - before for before, after in pairwise(jumps)] == pytest.approx([-0.6 / 8] * 8)


def test_clean_demonstrations_are_right() -> None:
    for prompt, response in next(demonstrations(ChainTask(), CLEAN, seed=0, batch_size=100)):
        assert response.endswith("\\boxed{" + answer_of(prompt) + "}")


def test_a_slip_is_followed_by_the_chain() -> None:
    style = DemonstrationStyle(0.0, 0.0, long_hand=0.0, mixed=0.0, slip=1.0)
    response = demonstration("a50b+5c+5=", style, random.Random(0))
    first, second, box = (int(number) for number in re.findall(r"\d\d", response))
    assert abs(first - 55) in (1, 10)
    assert abs(second - first - 5) in (1, 10)
    assert box == second


def test_the_mixture_has_its_shares() -> None:
    batches = demonstrations(ChainTask(), DemonstrationStyle(), seed=0, batch_size=3000)
    responses = [response for _, response in next(batches)]
    assert sum(response.startswith("\\") for response in responses) / 3000 == pytest.approx(0.65, abs=0.03)
    steps = [step for response in responses for step in re.findall(r"[b-o][^b-o\\]*=", response)]
    assert sum(len(step) > 2 for step in steps) / len(steps) == pytest.approx(0.4, abs=0.03)


def test_demonstrations_come_again_from_the_same_seed() -> None:
    first, again = (demonstrations(ChainTask(), DemonstrationStyle(), seed=4, batch_size=8) for _ in range(2))
    assert [next(first) for _ in range(3)] == [next(again) for _ in range(3)]
