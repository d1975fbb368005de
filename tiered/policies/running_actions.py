"""The record of the actions that are under way, for status and logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .actions import Action


class RunningActions:
    """The actions that executors carry out now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: dict[int, tuple[Action, float]] = {}

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        """Record `action` as under way until the block ends."""
        thread = threading.get_ident()  # a thread carries out one action at a time
        with self._lock:
            self._begun[thread] = action, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._begun[thread]

    def now(self) -> list[tuple[Action, float]]:
        """Return the actions under way, the oldest first, with the seconds since they began."""
        with self._lock:
            begun = list(self._begun.values())
        now = time.monotonic()
        return [(action, now - since) for action, since in sorted(begun, key=lambda item: item[1])]
