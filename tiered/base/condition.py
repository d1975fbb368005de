"""A condition variable that stays correct if Ctrl-C interrupts a thread inside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Listeners:
    """Events to set when something has happened; for a thread that waits for one of many things."""

    __slots__ = ("_events", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: tuple[threading.Event, ...] = ()

    @contextmanager
    def listening(self, event: threading.Event) -> Iterator[None]:
        """Set the event at each `notify` inside the block."""
        with self._lock:
            self._events = (*self._events, event)
        try:
            yield
        finally:
            with self._lock:
                rest = list(self._events)
                rest.remove(event)
                self._events = tuple(rest)

    def notify(self) -> None:
        """Set the events."""
        for event in self._events:
            event.set()


class InterruptSafeCondition:
    """A condition, and the lock to hold around it.

    Use ``with condition.lock``. Plain ``with condition`` takes the lock in Python code: Ctrl-C right after that would
    leave it locked, and all other threads would wait without end. The lock is an `RLock`: a woken thread takes it back in
    C, which Ctrl-C cannot interrupt. With a plain `Lock` the thread could later release the lock of another thread.
    """

    __slots__ = ("_condition", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._condition = threading.Condition(self.lock)

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait for `notify_all`; the caller holds the lock, and then checks its condition again."""
        try:
            self._condition.wait(timeout_seconds)
        except BaseException:
            # Ctrl-C right after the wait released the lock: take it again, because the caller will release it.
            if not self.lock._is_owned():  # type: ignore[attr-defined]
                self.lock.acquire()
            raise

    def wait_for(self, reached: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait until `reached` returns True; return False after the timeout. The caller holds the lock."""
        deadline = time.monotonic() + timeout_seconds
        while not reached():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.wait(left)
        return True

    def notify_all(self) -> None:
        """Wake all waiting threads, also if Ctrl-C interrupts the call. The caller holds the lock."""
        try:
            self._condition.notify_all()
        except BaseException:
            self._condition.notify_all()
            raise
