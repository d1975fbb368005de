"""A condition that Ctrl-C cannot leave locked, nor those who wait on it unwoken."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class InterruptSafeCondition:
    """A condition, and the lock to hold around it.

    ``with news.lock`` instead of ``with condition``: the latter takes the lock in Python code, where Ctrl-C can strike
    between taking it and being obliged to give it back, and then everybody else waits for ever. It is an `RLock`, since
    Ctrl-C cannot keep a thread that was woken from taking one back. It then gave back another thread's.
    """

    __slots__ = ("_condition", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._condition = threading.Condition(self.lock)

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait to be told; the caller holds the lock, and looks again."""
        try:
            self._condition.wait(timeout_seconds)
        except BaseException:
            # Ctrl-C right after the lock was let go; the caller is about to do so.
            if not self.lock._is_owned():  # type: ignore[attr-defined]
                self.lock.acquire()
            raise

    def wait_for(self, reached: Callable[[], bool], timeout_seconds: float) -> bool:
        """Wait until it is reached; False where the time ran out. The caller holds the lock."""
        deadline = time.monotonic() + timeout_seconds
        while not reached():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.wait(left)
        return True

    def notify_all(self) -> None:
        """Wake all who wait, also where Ctrl-C strikes meanwhile; the caller holds the lock."""
        try:
            self._condition.notify_all()
        except BaseException:
            self._condition.notify_all()
            raise
