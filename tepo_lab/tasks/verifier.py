"""Worker processes that decide whether two answers are the same mathematics, each answer within a hard deadline.

The workers are plain subprocesses, spoken to over pipes. pebble's ProcessPool was tried and does not serve: built on
`multiprocessing`, it starts no worker in a daemon process or from a script without a main guard; its deadlines are wall
time; and one idle worker that is killed from outside breaks the whole pool.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from tepo_lab.errors import MachineError, ResourceError

#: Seconds of a worker's own CPU time that an answer may take: a pause or a busy machine makes no answer wrong.
DEADLINE = 5.0

#: Wall time, in deadlines, after which a worker that has neither answered nor used up its CPU time is killed.
PATIENCE = 24

#: Workers that an answer is given, one at a time, when they die or stand still.
ATTEMPTS = 3

#: Seconds a worker may take to start: it imports a computer algebra system.
START_DEADLINE = 120.0

MAX_WORKERS = 8

#: A pair that harms no worker.
_HARMLESS = ("x+1", "1+x")

Verdict = Literal["equal", "different", "timeout"]

_PROGRAM = Path(__file__).with_name("symbolic.py")


class Verifier:
    """A pool of workers, started when there is something for them to do. Safe to use from several threads."""

    def __init__(self, workers: int | None = None, *, deadline: float = DEADLINE) -> None:
        self.deadline = deadline
        self.started = 0
        # Adding to these and taking from them is atomic: they need no lock.
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        size = workers or min(MAX_WORKERS, len(os.sched_getaffinity(0)))
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="grading")

    def verdicts(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """For each (gold, given): whether they are equal, or that no answer came before the deadline.

        Raises `ResourceError` when no worker can be started, `MachineError` when workers die whatever they are asked.
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
        for worker in list(self._all):
            self._discard(worker)

    def _verdict(self, pair: tuple[str, str]) -> Verdict:
        for attempt in range(ATTEMPTS):
            # An idle worker may have been killed since its last answer, and others with it: one attempt takes one.
            worker = self._start() if attempt else self._take()
            verdict = self._ask(worker, pair)
            if verdict is not None:
                return verdict
        # Because of the answer, which may ask for all memory, or of the machine? No answer may end a run.
        if self._ask(self._start(), _HARMLESS) != "equal":
            raise MachineError("grading workers die whatever they are asked: free some memory, or run fewer at once.")
        return "timeout"

    def _ask(self, worker: _Worker, pair: tuple[str, str]) -> Verdict | None:
        """The worker's verdict; None when it died or stood still, unless by its deadline. Only a live one is kept."""
        reply = worker.ask({"gold": pair[0], "given": pair[1]}, self.deadline * PATIENCE)
        if reply is not None:
            self._idle.append(worker)
            return "equal" if reply["equal"] else "different"
        self._discard(worker)
        return "timeout" if worker.process.returncode == -signal.SIGPROF else None

    def _take(self) -> _Worker:
        try:
            return self._idle.pop()
        except IndexError:
            return self._start()

    def _start(self) -> _Worker:
        worker = _Worker(self.deadline)
        self.started += 1
        self._all.add(worker)
        reply = worker.read(START_DEADLINE)
        if reply is not None and "error" not in reply:
            return worker
        self._discard(worker)
        if reply is not None:
            raise ResourceError(f"a grading worker cannot start ({reply['error']}): install math-verify.")
        raise MachineError(
            f"a grading worker cannot start (it ended with code {worker.process.returncode}, within "
            f"{START_DEADLINE:.0f} s): free some memory, or run fewer at once."
        )

    def _discard(self, worker: _Worker) -> None:
        self._all.discard(worker)
        worker.kill()


class _Worker:
    """One process, which ends itself at its deadline and when this process does. Used by one thread at a time."""

    def __init__(self, deadline: float) -> None:
        # -P: the program's own folder holds modules whose names could hide others'.
        command = [sys.executable, "-P", str(_PROGRAM), str(deadline)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(
            command,
            # Unbuffered, so that nothing is left to flush into the pipe of a dead process.
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """The reply to a request; None when there is none within so many seconds of wall time, or ever."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError:
            return None
        return self.read(seconds)

    def read(self, seconds: float) -> dict[str, Any] | None:
        """The next line of the worker, as `ask`. One that was written in time is read however late that is."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(seconds, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        return dict(json.loads(line)) if line.endswith(b"\n") else None

    def kill(self) -> None:
        """End the process, if it has not ended, and collect its exit code."""
        self.process.kill()
        # Leaving the context closes the pipes and waits.
        with self.process:
            pass


_shared: Verifier | None = None
_shared_lock = threading.Lock()


def shared_verifier() -> Verifier:
    """This process's pool, made when first asked for. Its workers end with the process."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Verifier()
        return _shared


def _forget() -> None:
    # Pipes and threads of the parent are no use to a forked child.
    global _shared, _shared_lock
    _shared, _shared_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
