"""The pool of grading workers: deadlines, deaths and ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tepo_lab.errors import MachineError, ResourceError
from tepo_lab.tasks import verifier as module
from tepo_lab.tasks.grading import grade_all
from tepo_lab.tasks.verifier import Verdict, Verifier

TOWER = "9^{9^{9^{9}}}"


@pytest.fixture
def pool() -> Iterator[Verifier]:
    made = Verifier(1, deadline=1.5)
    yield made
    made.close()


def worker_of(pool: Verifier) -> int:
    (worker,) = pool._all
    return worker.process.pid


def test_no_worker_is_started_before_there_is_work(pool: Verifier) -> None:
    assert pool.verdicts([]) == []
    assert pool.started == 0


def test_one_that_passes_the_deadline_is_killed_and_replaced(pool: Verifier) -> None:
    assert pool.verdicts([("x+1", "1+x")]) == ["equal"]
    first = worker_of(pool)
    assert pool.verdicts([("5", TOWER), (r"\sqrt{8}", r"2\sqrt{2}")]) == ["timeout", "equal"]
    assert pool.started == 2
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_worker_that_died_idle_costs_no_answer(pool: Verifier) -> None:
    assert pool.verdicts([("x+1", "1+x")]) == ["equal"]
    os.kill(worker_of(pool), signal.SIGKILL)
    assert pool.verdicts([("x+2", "2+x"), ("x+2", "3+x")]) == ["equal", "different"]


def test_a_worker_ends_itself_when_nobody_looks_after_it() -> None:
    worker = module._Worker(own_deadline=0.5)
    worker.wait_until_ready()
    assert worker.ask({"gold": "5", "given": TOWER}, 0.01) is None
    assert worker.process.wait(timeout=30) == -signal.SIGALRM
    worker.kill()


def test_closing_ends_every_worker() -> None:
    pool = Verifier(1)
    assert pool.verdicts([("x", "y")]) == ["different"]
    pid = worker_of(pool)
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("does", "deadline", "kind", "said"),
    [
        ("import sys; sys.exit(3)", 60, MachineError, r"ended with code 3\): free some memory"),
        ("import time; time.sleep(60)", 1, MachineError, "not ready after 1 s"),
        ("""print('{"error": "no module named x"}')""", 60, ResourceError, r"no module named x\): install math-verify"),
    ],
    ids=["died", "did not come up", "lacks a package"],
)
def test_a_worker_that_cannot_start_is_an_error_with_its_reason(
    does: str, deadline: float, kind: type[ResourceError], said: str, pool: Verifier, tmp_path, monkeypatch
) -> None:
    """Tried again where the machine is short of something, and not where a package is."""
    program = tmp_path / "broken.py"
    program.write_text(does)
    monkeypatch.setattr(module, "_PROGRAM", program)
    monkeypatch.setattr(module, "START_DEADLINE", deadline)
    with pytest.raises(ResourceError, match=said) as raised:
        pool.verdicts([("x", "y")])
    assert raised.type is kind


def test_timeouts_are_wrong_answers_and_told_as_such(pool: Verifier, monkeypatch) -> None:
    monkeypatch.setattr(module, "shared_verifier", lambda: pool)
    grades = grade_all([f"\\boxed{{{TOWER}}}", "\\boxed{x+1}"] * 3, ["5", "1+x"] * 3)
    assert [(each.correct, each.how) for each in grades] == [(0, "timeout"), (1, "symbolic")] * 3
    # Equal pairs are asked once: one deadline, not three.
    assert pool.started == 2


def asked_in_bulk(pool: Verifier) -> None:
    pool.verdicts([("y", f"x+{number}") for number in range(2, 40)])


def graded_in_bulk(pool: Verifier) -> None:
    grade_all([f"\\boxed{{x+{number}}}" for number in range(2, 40)], ["y"] * 38)


@pytest.mark.parametrize("work", [asked_in_bulk, graded_in_bulk])
def test_what_waits_is_given_up_when_grading_ends_early(work, pool: Verifier, monkeypatch) -> None:
    begun: list[str] = []
    caller_is_done = threading.Event()

    def verdict(pair: tuple[str, str]) -> Verdict:
        begun.append(pair[1])
        if pair[1] == "x+2":
            raise ResourceError("no worker can start")
        # The one that is begun while the caller is told of the error.
        assert caller_is_done.wait(60)
        return "different"

    monkeypatch.setattr(pool, "_verdict", verdict)
    monkeypatch.setattr(module, "shared_verifier", lambda: pool)
    with pytest.raises(ResourceError, match="no worker can start"):
        work(pool)
    caller_is_done.set()
    pool._threads.shutdown(wait=True)
    assert begun in (["x+2"], ["x+2", "x+3"])
