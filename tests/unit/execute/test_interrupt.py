"""An interrupt that something swallowed comes again; outside the block nothing is kept."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from tepo_lab.execute.running import interrupt
from tepo_lab.execute.running.interrupt import Interrupt


def test_a_swallowed_interrupt_is_sent_again(monkeypatch):
    monkeypatch.setattr(interrupt, "PATIENCE_SECONDS", 0.05)
    before = signal.getsignal(signal.SIGINT)
    ended = threading.Event()
    watched = Interrupt()

    def watch():
        while not ended.wait(0.02):
            watched.insist()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    swallowed = []

    def sleep_through_the_first():
        with watched:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                swallowed.append(True)
            time.sleep(10)

    try:
        with pytest.raises(KeyboardInterrupt):
            sleep_through_the_first()
    finally:
        ended.set()
        watcher.join()
    assert len(swallowed) == 1
    assert signal.getsignal(signal.SIGINT) is before
    watched.insist()
