"""Ctrl-C that is not lost on its way through libraries that catch everything."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

#: Seconds after which an interrupt that has had no effect is sent again.
PATIENCE_SECONDS = 1.0


class Interrupt:
    """While it is entered in the main thread, an interrupt (SIGINT) that has not ended the block can be sent again.

    Now and then the `KeyboardInterrupt` of a Ctrl-C is raised where it cannot be passed on (a callback of a weak
    reference).
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._before: Any = None
        self._hook = sys.unraisablehook
        self._thread = threading.main_thread().ident or 0

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
            self._hook, sys.unraisablehook = sys.unraisablehook, self._pass_over
        return self

    def __exit__(self, *exception: object) -> None:
        self._since = None
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            sys.unraisablehook = self._hook

    def insist(self) -> None:
        """From another thread: interrupt the main thread again if a while ago it was and the block goes on."""
        since = self._since
        if since is not None and time.monotonic() - since > PATIENCE_SECONDS:
            self._since = time.monotonic()
            # A real signal, which also ends a sleep or a wait in the main thread.
            signal.pthread_kill(self._thread, signal.SIGINT)

    def _pass_over(self, ignored: Any) -> None:
        """Say nothing of an interrupt that fell into a callback where nothing can be raised: it is sent again."""
        if ignored.exc_type is not KeyboardInterrupt:
            self._hook(ignored)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._since = time.monotonic()
        raise KeyboardInterrupt
