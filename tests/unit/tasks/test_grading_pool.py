"""The pool of grading workers: deadlines, deaths and ends."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tepo_lab.errors import MachineError, ResourceError
from tepo_lab.tasks import verifier as module
from tepo_lab.tasks.grading import grade_all
from tepo_lab.tasks.verifier import Verdict, Verifier

TOWER = "9^{9^{9^{9}}}"

#: A worker that does what it is told instead of mathematics.
OBEDIENT = """
import json, os, signal, sys, time

def obey(given):
    if hasattr(signal, given):
        os.kill(os.getpid(), getattr(signal, given))
    elif given == "sleep":
        time.sleep(60)
    elif given == "work":
        while True:
            pass
    elif given == "exit":
        os._exit(1)
say = os.fdopen(1, "w", buffering=1).write
say('{"ready": true}\\n')
for line in sys.stdin:
    given = json.loads(line)["given"]
    obey(%s)
    say('{"equal": true}\\n')
"""


@pytest.fixture
def pool() -> Iterator[Verifier]:
    made = Verifier(1, deadline=1.5)
    yield made
    made.close()


@pytest.fixture
def obedient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Verifier]]:
    """Makes a pool whose workers do what a Python expression makes of the answer `given`."""
    made = []

    def pool(does: str = "given", *, deadline: float = 0.3, workers: int = 1) -> Verifier:
        program = tmp_path / "obedient.py"
        program.write_text(OBEDIENT % does)
        monkeypatch.setattr(module, "_PROGRAM", program)
        made.append(Verifier(workers, deadline=deadline))
        return made[-1]

    yield pool
    for each in made:
        each.close()


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


def test_all_idle_workers_may_have_died(obedient: Callable[..., Verifier]) -> None:
    pool = obedient(deadline=5.0, workers=3)
    pool._idle = [pool._start() for _ in range(3)]
    for worker in pool._idle:
        os.kill(worker.process.pid, signal.SIGTERM)
    assert pool.verdicts([("5", "x")]) == ["equal"]


def test_a_pause_makes_no_answer_wrong(pool: Verifier) -> None:
    pool.deadline = 0.3
    assert pool.verdicts([("x+1", "1+x")]) == ["equal"]
    stopped = worker_of(pool)
    os.kill(stopped, signal.SIGSTOP)
    # Longer than the deadline, shorter than the patience.
    threading.Timer(1.0, os.kill, (stopped, signal.SIGCONT)).start()
    assert pool.verdicts([("x+2", "2+x"), ("x+2", "3+x")]) == ["equal", "different"]
    assert worker_of(pool) == stopped


def test_a_reply_that_is_there_is_read_however_late(obedient: Callable[..., Verifier]) -> None:
    worker = obedient()._start()
    assert worker.ask({"given": "x"}, 60.0) == {"equal": True}
    assert worker.process.stdin is not None
    worker.process.stdin.write(b'{"given": "x"}\n')
    worker.process.stdin.flush()
    assert worker.process.stdout is not None
    assert select.select([worker.process.stdout], [], [], 60)[0]
    assert worker._line(until=0.0) == {"equal": True}


def test_one_that_stands_still_is_replaced(obedient: Callable[..., Verifier], monkeypatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 5)
    pool = obedient(deadline=0.1)
    first = pool._take()
    pool._idle.append(first)
    os.kill(first.process.pid, signal.SIGSTOP)
    assert pool.verdicts([("5", "x")]) == ["equal"]
    assert pool.started == 2


@pytest.mark.parametrize(
    ("answer", "started"),
    [
        ("work", 1),  # its time is over
        ("SIGSEGV", 2),
        ("SIGABRT", 2),
        ("exit", 2),
        ("SIGKILL", 4),  # as by a kernel short of the memory that the answer asks for
        ("SIGSTOP", 4),
    ],
)
def test_what_an_answer_does_to_its_workers_ends_no_run(
    answer: str, started: int, obedient: Callable[..., Verifier], monkeypatch
) -> None:
    if answer == "SIGSTOP":
        monkeypatch.setattr(module, "PATIENCE", 5)
    pool = obedient(deadline=0.1)
    assert pool.verdicts([("5", answer)]) == ["timeout"]
    assert pool.started == started
    assert pool.verdicts([("5", "x")]) == ["equal"]


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("'SIGKILL'", r"it ended with code -9\)"),
        ("'SIGSTOP'", r"one was not let work\)"),
        ("'work' if given == '1+x' else 'SIGKILL'", r"no answer in time\)"),
    ],
)
def test_a_machine_that_lets_no_worker_live_grades_nothing(
    does: str, said: str, obedient: Callable[..., Verifier], monkeypatch
) -> None:
    if does == "'SIGSTOP'":
        monkeypatch.setattr(module, "PATIENCE", 5)
    pool = obedient(does, deadline=0.1)
    with pytest.raises(MachineError, match=said):
        pool.verdicts([("5", "x")])
    assert not pool._all


@pytest.mark.parametrize(("answer", "verdict"), [("sleep", "timeout"), ("x", "equal")])
def test_where_nothing_tells_of_processes_the_clock_counts(
    answer: str, verdict: str, obedient: Callable[..., Verifier], monkeypatch
) -> None:
    monkeypatch.setattr(module, "process", lambda pid: None)
    pool = obedient(deadline=1.0)
    assert pool.verdicts([("5", answer)]) == [verdict]
    assert pool.started == 1


def test_a_worker_ends_itself_when_nobody_looks_after_it() -> None:
    worker = module._Worker(own_deadline=0.5)
    worker.wait_until_ready()
    assert worker.ask({"gold": "5", "given": TOWER}, 0.1) is None
    assert worker.process.wait(timeout=60) == -signal.SIGPROF
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
