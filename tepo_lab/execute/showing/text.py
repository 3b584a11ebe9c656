"""Numbers for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A duration: 45 s, 3 min 20 s, 5 h 12 min."""
    rounded = max(0, round(seconds))
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"


def counted(count: int, noun: str) -> str:
    """A count with its noun: 1 run, 2 runs."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
