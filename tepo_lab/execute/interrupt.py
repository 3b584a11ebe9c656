"""Ctrl-C that is not lost on its way through libraries that catch everything."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

#: Seconds after which an interrupt that has had no effect is sent again.
PATIENCE_SECONDS = 1.0


class Interrupt:
    """While it is entered in the main thread, an interrupt (SIGINT) that has not ended the block can be sent again.

    Now and then the `KeyboardInterrupt` of a Ctrl-C is raised inside a call of Ray that swallows it.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._before: Any = None
        self._thread = threading.main_thread().ident or 0

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        self._since = None
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def insist(self) -> None:
        """From another thread: interrupt the main thread again if a while ago it was and the block goes on."""
        since = self._since
        if since is not None and time.monotonic() - since > PATIENCE_SECONDS:
            self._since = time.monotonic()
            # A real signal, which also ends a sleep or a wait in the main thread.
            signal.pthread_kill(self._thread, signal.SIGINT)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._since = time.monotonic()
        raise KeyboardInterrupt
