"""The pool of grading workers: deadlines, deaths and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tepo_lab.errors import MachineError, ResourceError
from tepo_lab.tasks import verifier as module
from tepo_lab.tasks.grading import grade_all
from tepo_lab.tasks.verifier import Verdict, Verifier

TOWER = "9^{9^{9^{9}}}"

#: A worker that does what an answer names, instead of mathematics.
OBEDIENT = """
import json, os, signal, sys, time

signal.signal(signal.SIGPROF, signal.SIG_DFL)
print('{"ready": true}', flush=True)
for line in sys.stdin:
    given = json.loads(line)["given"]
    given = %s
    signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
    if hasattr(signal, given):
        os.kill(os.getpid(), getattr(signal, given))
    elif given == "sleep":
        time.sleep(60)
    elif given == "work":
        while True:
            pass
    elif given == "exit":
        os._exit(1)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print('{"equal": true}', flush=True)
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

    def pool(does: str = "given", *, deadline: float = 0.1, workers: int = 1) -> Verifier:
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


@pytest.mark.integration
def test_a_worker_that_passes_the_deadline_is_replaced_and_closing_ends_the_last(pool: Verifier) -> None:
    assert pool.verdicts([("x+1", "1+x")]) == ["equal"]
    first = worker_of(pool)
    assert pool.verdicts([("5", TOWER), (r"\sqrt{8}", r"2\sqrt{2}")]) == ["timeout", "equal"]
    assert pool.started == 2
    last = worker_of(pool)
    pool.close()
    assert not psutil.pid_exists(first)
    assert not psutil.pid_exists(last)


def test_workers_that_were_killed_while_idle_cost_no_answer(obedient: Callable[..., Verifier]) -> None:
    pool = obedient(workers=3)
    pool._idle = [pool._start() for _ in range(3)]
    for worker in pool._idle:
        os.kill(worker.process.pid, signal.SIGTERM)
    assert pool.verdicts([("5", "x")]) == ["equal"]


def test_a_pause_makes_no_answer_wrong(obedient: Callable[..., Verifier], monkeypatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 600)
    pool = obedient(deadline=0.1)
    assert pool.verdicts([("5", "x")]) == ["equal"]
    stopped = worker_of(pool)
    os.kill(stopped, signal.SIGSTOP)
    # Longer than the deadline, shorter than the patience.
    threading.Timer(0.5, os.kill, (stopped, signal.SIGCONT)).start()
    assert pool.verdicts([("5", "x")]) == ["equal"]
    assert worker_of(pool) == stopped


def test_a_reply_that_was_written_in_time_is_read_however_late(obedient: Callable[..., Verifier]) -> None:
    worker = obedient()._start()
    assert worker.process.stdin is not None
    worker.process.stdin.write(b'{"given": "x"}\n{"given": "exit"}\n')
    assert worker.process.wait(60) == 1
    assert worker.read(seconds=0.0) == {"equal": True}
    assert worker.read(seconds=60.0) is None


def test_a_worker_that_stands_still_is_replaced(obedient: Callable[..., Verifier], monkeypatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 10)
    pool = obedient()
    assert pool.verdicts([("5", "x")]) == ["equal"]
    os.kill(worker_of(pool), signal.SIGSTOP)
    assert pool.verdicts([("5", "x")]) == ["equal"]
    assert pool.started == 2


@pytest.mark.parametrize(
    ("answer", "started"),
    [
        ("work", 1),  # it ends itself at the deadline
        ("SIGSEGV", 3),
        ("exit", 3),
        ("SIGKILL", 3),  # as by a kernel short of the memory that the answer asks for
        ("SIGSTOP", 3),
    ],
)
def test_what_an_answer_does_to_its_workers_ends_no_run(
    answer: str, started: int, obedient: Callable[..., Verifier], monkeypatch
) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    monkeypatch.setattr(module, "PATIENCE", 10 if answer == "SIGSTOP" else 600)
    pool = obedient()
    assert pool.verdicts([("5", answer)]) == ["timeout"]
    # One per attempt, and the one that shows that workers can live.
    assert pool.started == started
    assert pool.verdicts([("5", "x")]) == ["equal"]


@pytest.mark.parametrize("does", ["'SIGKILL'", "'SIGSTOP'", "'work' if given == '1+x' else 'SIGKILL'"])
def test_a_machine_that_lets_no_worker_live_grades_nothing(
    does: str, obedient: Callable[..., Verifier], monkeypatch
) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    monkeypatch.setattr(module, "PATIENCE", 10 if "SIGSTOP" in does else 600)
    pool = obedient(does)
    with pytest.raises(MachineError, match="grading workers die whatever they are asked"):
        pool.verdicts([("5", "x")])
    assert not pool._all


@pytest.mark.integration
def test_workers_end_with_their_parent_even_one_at_an_endless_answer(tmp_path: Path) -> None:
    program = tmp_path / "obedient.py"
    program.write_text(OBEDIENT % "given")
    parent = f"""if True:
        import os, pathlib, signal
        from tepo_lab.tasks import verifier
        verifier._PROGRAM = pathlib.Path({str(program)!r})
        pool = verifier.Verifier(2, deadline=0.5)
        idle, busy = pool._start(), pool._start()
        busy.process.stdin.write(b'{{"given": "work"}}\\n')
        print(idle.process.pid, busy.process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    shown = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=False).stdout
    for pid in map(int, shown.split()):
        try:
            psutil.Process(pid).wait(60)
        except psutil.NoSuchProcess:
            continue
        except psutil.TimeoutExpired:
            os.kill(pid, signal.SIGKILL)
            raise
    assert len(shown.split()) == 2


@pytest.mark.parametrize(
    ("does", "seconds", "kind", "cause"),
    [
        ("import sys; sys.exit(3)", 60, MachineError, "ended with code 3"),
        ("import time; time.sleep(60)", 0.5, MachineError, "ended with code -9"),
        ("""print('{"error": "no module named x"}')""", 60, ResourceError, "no module named x"),
    ],
    ids=["died", "did not come up", "package missing"],
)
def test_a_worker_that_cannot_start_is_an_error_with_its_cause(
    does: str, seconds: float, kind: type[ResourceError], cause: str, pool: Verifier, tmp_path, monkeypatch
) -> None:
    """The run is tried again where the machine is short of something, and not where a package is missing."""
    program = tmp_path / "broken.py"
    program.write_text(does)
    monkeypatch.setattr(module, "_PROGRAM", program)
    monkeypatch.setattr(module, "START_DEADLINE", seconds)
    with pytest.raises(ResourceError, match=cause) as raised:
        pool.verdicts([("x", "y")])
    assert raised.type is kind


def test_timeouts_are_wrong_answers_marked_as_timeouts(obedient: Callable[..., Verifier], monkeypatch) -> None:
    pool = obedient()
    monkeypatch.setattr(module, "shared_verifier", lambda: pool)
    grades = grade_all(["\\boxed{work}", "\\boxed{x+1}"] * 3, ["5", "1+x"] * 3)
    assert [(grade.correct, grade.how) for grade in grades] == [(0, "timeout"), (1, "symbolic")] * 3
    # Equal pairs are asked once: one deadline, not three.
    assert pool.started == 2


def asked_in_bulk(pool: Verifier) -> None:
    pool.verdicts([("y", f"x+{number}") for number in range(2, 40)])


def graded_in_bulk(pool: Verifier) -> None:
    grade_all([f"\\boxed{{x+{number}}}" for number in range(2, 40)], ["y"] * 38)


@pytest.mark.parametrize("work", [asked_in_bulk, graded_in_bulk])
def test_what_waits_is_cancelled_when_grading_ends_early(work, pool: Verifier, monkeypatch) -> None:
    begun: list[str] = []
    caller_is_done = threading.Event()

    def verdict(pair: tuple[str, str]) -> Verdict:
        begun.append(pair[1])
        if pair[1] == "x+2":
            raise ResourceError("no worker can start")
        # The one that is begun while the caller gets the error.
        assert caller_is_done.wait(60)
        return "different"

    monkeypatch.setattr(pool, "_verdict", verdict)
    monkeypatch.setattr(module, "shared_verifier", lambda: pool)
    with pytest.raises(ResourceError):
        work(pool)
    caller_is_done.set()
    pool._threads.shutdown(wait=True)
    assert begun in (["x+2"], ["x+2", "x+3"])
