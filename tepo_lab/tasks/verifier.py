"""Worker processes that say whether two answers are the same mathematics, each answer within a hard deadline.

They are plain subprocesses spoken to over pipes: unlike `multiprocessing` that works from threads, from Ray's actors
and from daemons, and unlike a signal it ends whatever the worker is at.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from tepo_lab.errors import MachineError, ResourceError

#: Seconds an answer may take.
DEADLINE = 5.0

#: Seconds a worker may take to start: it imports a computer algebra system.
START_DEADLINE = 120.0

MAX_WORKERS = 8

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

        A worker that passes the deadline is killed and replaced. Raises `ResourceError` when no worker can be started.
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
        # A worker may have died between two answers through no fault of theirs: an answer is given a second one.
        for _ in range(2):
            worker = self._take()
            try:
                reply = worker.ask({"gold": pair[0], "given": pair[1]}, self.deadline)
            except _WorkerDiedError:
                self._discard(worker)
                continue
            if reply is None:
                self._discard(worker)
                return "timeout"
            with self._lock:
                self._idle.append(worker)
            return "equal" if reply["equal"] else "different"
        return "timeout"

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self.started += 1
        worker = _Worker(own_deadline=2 * self.deadline + 1)
        with self._lock:
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


class _WorkerDiedError(Exception):
    """The process is gone without an answer."""


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
        except _WorkerDiedError:
            raise _cannot_start(f"it ended with code {self.process.wait()}") from None
        if reply is None:
            raise _cannot_start(f"not ready after {START_DEADLINE:.0f} s")
        if "error" in reply:
            raise ResourceError(f"a grading worker cannot start ({reply['error']}): install math-verify.")

    def ask(self, request: dict[str, Any], deadline: float) -> dict[str, Any] | None:
        """The reply to a request, None when it does not come within `deadline` seconds."""
        until = time.monotonic() + deadline
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise _WorkerDiedError from None
        return self._line(until)

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
                left = until - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                chunk = os.read(self.process.stdout.fileno(), 65536)
                if not chunk:
                    raise _WorkerDiedError
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
