"""The record of the actions that are under way, for status and logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .actions import Action


class Running:
    """The actions that executors carry out now. Thread-safe.

    Parameters
    ----------
    clock
        Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun: dict[int, tuple[Action, float]] = {}

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        """Record `action` as under way until the block ends."""
        thread = threading.get_ident()  # a thread carries out one action at a time
        with self._lock:
            self._begun[thread] = action, self._clock()
        try:
            yield
        finally:
            with self._lock:
                del self._begun[thread]

    def now(self) -> list[tuple[Action, float]]:
        """Return the actions under way, the oldest first, with the seconds since they began."""
        with self._lock:
            begun = list(self._begun.values())
        now = self._clock()
        return [(action, now - since) for action, since in sorted(begun, key=lambda item: item[1])]
