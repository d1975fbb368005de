"""`Combiner`: short pieces of work of many threads under one lock, without a switch of threads for each."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Generic, TypeVar

_Result = TypeVar("_Result")


class Combiner:
    """Runs pieces of work one at a time while it holds a lock; a thread that finds another at work leaves its piece to it.

    A thread that waits for a lock gets it before it gets the interpreter. All others then wait for that thread, and each
    piece of work takes a switch of threads. Here only one thread waits for the lock.

    After Ctrl-C in a thread, its work may be done all the same, later or twice.

    Parameters
    ----------
    lock
        Held during all work; others may hold it, too.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._leader = threading.RLock()  # it knows its owner
        self._waiting: deque[_Piece[Any]] = deque()

    def run(self, work: Callable[[], _Result]) -> _Result:
        """Run `work` in this thread or another, and return its result or raise its error."""
        piece = _Piece(work)
        try:
            self._waiting.append(piece)
            while True:
                # A piece that came after the leader's last check waits until a thread leads again.
                if self._waiting and self._leader.acquire(blocking=False):
                    self._lead()
                elif piece.done:
                    return piece.result()
                else:
                    piece.wait()
        except BaseException:
            # Ctrl-C anywhere: the others go on without this thread.
            if self._leader._is_owned():  # type: ignore[attr-defined]
                self._leader.release()
            for other in list(self._waiting):
                other.wake()
            raise

    def _lead(self) -> None:
        """Run all that waits, and release the leader's lock."""
        with self._lock:
            while self._waiting:
                piece = self._waiting[0]
                piece.run()
                piece.wake()
                self._waiting.popleft()
        self._leader.release()


class _Piece(Generic[_Result]):
    """A piece of work, and the thread that waits for it."""

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self._woken = threading.Lock()
        self._woken.acquire()
        self._results: list[_Result] = []
        self._error: Exception | None = None
        self.done = False

    def run(self) -> None:
        try:
            self._results.append(self._work())
        except Exception as error:  # noqa: BLE001 (raised in the thread whose work it is)
            self._error = error
        self.done = True

    def wait(self) -> None:
        """Wait until `wake`; now and then it returns early."""
        self._woken.acquire()

    def wake(self) -> None:
        with suppress(RuntimeError):  # no thread has waited since the last call
            self._woken.release()

    def result(self) -> _Result:
        if self._error is not None:
            raise self._error
        return self._results[-1]
