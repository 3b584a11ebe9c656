"""Worker processes that say whether two answers are the same mathematics, each answer within a hard deadline.

They are plain subprocesses spoken to over pipes: unlike `multiprocessing` that works from threads, from Ray's actors
and from daemons, and unlike a signal it ends whatever the worker is at.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from tepo_lab.errors import MachineError, ResourceError
from tepo_lab.records.processes import process

#: Seconds of a worker's own time that an answer may take: a pause or a busy machine makes no answer wrong.
DEADLINE = 5.0

#: Seconds within which nearly every reply comes. Work in them does not count.
AT_ONCE = 0.1

#: Times the deadline, in seconds on the clock, after which a worker that was not let work so long is given up.
PATIENCE = 24

#: Workers that an answer is given one after the other, when they are killed or not let work.
ATTEMPTS = 3

#: Seconds a worker may take to start: it imports a computer algebra system.
START_DEADLINE = 120.0

MAX_WORKERS = 8

#: How a process ends by the hand of others: the kernel short of memory, a batch system, a user.
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP}

#: A pair that harms no worker.
_HARMLESS = ("x+1", "1+x")

Verdict = Literal["equal", "different", "timeout"]

_PROGRAM = Path(__file__).with_name("symbolic.py")


class Verifier:
    """A pool of workers, started when there is something for them to do. Safe to use from several threads."""

    def __init__(self, workers: int | None = None, *, deadline: float = DEADLINE) -> None:
        self.deadline = deadline
        self.started = 0
        self._size = workers or min(MAX_WORKERS, len(os.sched_getaffinity(0)))
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._threads = ThreadPoolExecutor(self._size, thread_name_prefix="grading")

    def verdicts(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """For each (gold, given): whether they are equal, or that no answer came before the deadline.

        A worker that passes the deadline is killed and replaced. Raises `ResourceError` when no worker can be started,
        `MachineError` when workers are killed or stand still whatever they are asked.
        """
        submitted = [self.submit(pair) for pair in pairs]
        try:
            return [verdict.result() for verdict in submitted]
        finally:
            for verdict in submitted:
                verdict.cancel()

    def submit(self, pair: tuple[str, str]) -> Future[Verdict]:
        """The verdict on one (gold, given), worked on meanwhile; whoever no longer wants it must cancel it."""
        return self._threads.submit(self._verdict, pair)

    def close(self) -> None:
        """End all workers."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            workers, self._all, self._idle = self._all, set(), []
        for worker in workers:
            worker.kill()

    def _verdict(self, pair: tuple[str, str]) -> Verdict:
        for attempt in range(ATTEMPTS):
            # An idle worker may have died since its last answer: what befalls one says nothing of this answer.
            worker = self._start() if attempt else self._take()
            try:
                reply = self._ask(worker, pair)
            except _WorkerLostError as loss:
                if attempt and not loss.by_machine:
                    return "timeout"
                continue
            if reply is None:
                return "timeout"
            return "equal" if reply["equal"] else "different"
        # By the machine, or by what the answer asks of it, such as memory? An answer must not be able to end a run.
        self._ask_harmless()
        return "timeout"

    def _ask_harmless(self) -> None:
        """Raises `MachineError` when a new worker has no answer to what harms none."""
        try:
            reply, reason = self._ask(self._start(), _HARMLESS), "no answer in time"
        except _WorkerLostError as loss:
            reply, reason = None, str(loss)
        if reply is None:
            raise MachineError(
                f"grading workers are lost one after the other ({reason}): free some memory, or run fewer at once."
            )

    def _ask(self, worker: _Worker, pair: tuple[str, str]) -> dict[str, Any] | None:
        """As the worker's `ask`. Afterwards it is idle, or gone when it had no reply."""
        reply = None
        try:
            reply = worker.ask({"gold": pair[0], "given": pair[1]}, self.deadline)
        finally:
            if reply is None:
                self._discard(worker)
            else:
                with self._lock:
                    self._idle.append(worker)
        return reply

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._start()

    def _start(self) -> _Worker:
        worker = _Worker(own_deadline=2 * self.deadline + 1)
        with self._lock:
            self.started += 1
            self._all.add(worker)
        try:
            worker.wait_until_ready()
        except ResourceError:
            self._discard(worker)
            raise
        return worker

    def _discard(self, worker: _Worker) -> None:
        worker.kill()
        with self._lock:
            self._all.discard(worker)


class _WorkerLostError(Exception):
    """A worker has no answer and will have none. `by_machine`: as far as can be seen, by nothing that it did."""

    def __init__(self, reason: str, *, by_machine: bool) -> None:
        super().__init__(reason)
        self.by_machine = by_machine


class _Worker:
    """One process. Used by one thread at a time."""

    def __init__(self, *, own_deadline: float) -> None:
        # -P: the program's own folder holds modules whose names could hide others'.
        command = [sys.executable, "-P", str(_PROGRAM), str(own_deadline)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self._buffer = b""
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def wait_until_ready(self) -> None:
        """Raises `ResourceError` when it lacks a package, `MachineError` when the process does not come up."""
        try:
            reply = self._line(time.monotonic() + START_DEADLINE)
        except _WorkerLostError as loss:
            raise _cannot_start(str(loss)) from None
        if reply is None:
            raise _cannot_start(f"not ready after {START_DEADLINE:.0f} s")
        if "error" in reply:
            raise ResourceError(f"a grading worker cannot start ({reply['error']}): install math-verify.")

    def ask(self, request: dict[str, Any], deadline: float) -> dict[str, Any] | None:
        """The reply to a request, None when it takes more than `deadline` seconds of the process's own time.

        Raises `_WorkerLostError` when the process dies, or is not let work that long in `PATIENCE` deadlines.
        """
        began = time.monotonic()
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise self._death() from None
        # Looked up for the few that take long: it costs more than a hundredth of a usual answer.
        if (reply := self._line(began + AT_ONCE)) is not None:
            return reply
        before = self._cpu_seconds()
        until = began + deadline
        while (reply := self._line(until)) is None:
            left = deadline - self._worked(before, began)
            if left <= 0:
                return None
            if time.monotonic() - began > PATIENCE * deadline:
                raise _WorkerLostError("one was not let work", by_machine=True)
            until = time.monotonic() + max(left, 0.05)
        return reply

    def _worked(self, before: float | None, began: float) -> float:
        """Seconds of its own time since it had used `before`; on the clock since `began` where the system has none."""
        now = self._cpu_seconds()
        if before is None and now is None:
            return time.monotonic() - began
        return now - before if before is not None and now is not None else 0.0

    def _cpu_seconds(self) -> float | None:
        found = process(self.process.pid)
        return None if found is None else found.cpu_seconds

    def _death(self) -> _WorkerLostError:
        code = self.process.wait()
        return _WorkerLostError(f"it ended with code {code}", by_machine=code in _FROM_OUTSIDE)

    def kill(self) -> None:
        """End the process, whatever it is at."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError:
                # What had not been written to a dead process cannot be flushed.
                continue

    def _line(self, until: float) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                # What came while this process stood still itself is read, however late it is.
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                chunk = os.read(self.process.stdout.fileno(), 65536)
                if not chunk:
                    raise self._death()
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))


def _cannot_start(reason: str) -> MachineError:
    return MachineError(f"a grading worker cannot start ({reason}): free some memory, or run fewer at once.")


_shared: Verifier | None = None
_shared_lock = threading.Lock()


def shared_verifier() -> Verifier:
    """This process's pool, made when first asked for and ended with the process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Verifier()
            atexit.register(_shared.close)
        return _shared


def _forget() -> None:
    # Pipes and threads of the parent are no use to a forked child.
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
