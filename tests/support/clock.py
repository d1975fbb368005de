"""A clock that a test moves."""

from __future__ import annotations


class Clock:
    """A clock that stands still until it is told to move: microseconds since the epoch, as an int."""

    def __init__(self, start_us: int = 1_750_000_000_000_000) -> None:
        self.now_us = start_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> int:
        """Move on (or back, if negative); return the new time."""
        self.now_us += round(seconds * 1_000_000)
        return self.now_us
