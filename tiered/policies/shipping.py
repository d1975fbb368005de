"""Carries out the actions of many partitions side by side, one at a time of each, in turn.

::

    lines    big: [piece piece piece …]   quiet: [tail]   …      begun whenever something is due
    places   ▓ ▓ ▓ ░                                             a large action leaves the last one free

A line waits for its turn, does one action, and goes back to the end of the queue. So a partition with much to ship
holds up no other for longer than one action, and as small ones have a place of their own, none of those at all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Hashable, Iterable
from contextlib import ExitStack

from .actions import Action
from .executor import Executor, Run

PLACES = 4
LARGE_BYTES = 1 << 20
"""An action of more is large."""


class _Line:
    """The actions of one partition that are left, and what became of the others."""

    def __init__(self, executor: Executor, actions: Iterable[Action], held: ExitStack) -> None:
        self.executor = executor
        self.left = deque(actions)
        self.held = held
        self.run = Run()

    @property
    def is_large(self) -> bool:
        return self.left[0].bytes > LARGE_BYTES


class Shipping:
    """Lines that are under way on threads of this process. Thread-safe.

    Parameters
    ----------
    places
        How many actions are carried out at a time, at least two; one of them is for small ones.
    """

    def __init__(self, places: int = PLACES) -> None:
        if places < 2:
            raise ValueError("places must be at least 2")
        self._places = places
        self._changed = threading.Condition()
        self._lines: dict[Hashable, _Line] = {}
        self._queue: deque[Hashable] = deque()
        self._workers = self._large = 0
        self._ended: list[Run] = []
        self._interrupted = False
        self._error: BaseException | None = None

    def under_way(self) -> Collection[Hashable]:
        """Return the keys of the lines that have not ended."""
        with self._changed:
            return frozenset(self._lines)

    def begin(self, key: Hashable, actions: Collection[Action], executor: Executor, held: ExitStack) -> None:
        """Let a line wait for its turn.

        Parameters
        ----------
        key
            The partition; nothing of it is under way.
        actions
            At least one, in the order in which they are carried out.
        held
            Closed once the line has ended, whatever comes; also where this raises.

        Raises
        ------
        RuntimeError
            No thread can be started any more.
        """
        line = _Line(executor, actions, held)
        with self._changed:
            if self._workers < min(self._places, len(self._lines) + 1):
                try:
                    # A daemon's thread: what is under way at the exit may be killed, and is gone on with later.
                    threading.Thread(target=self._work, name="tiered-ship", daemon=True).start()
                except BaseException:
                    held.close()
                    raise
                self._workers += 1
            self._lines[key] = line
            self._queue.append(key)
            self._changed.notify_all()

    def wait(self, seconds: float | None) -> None:
        """Wait until no line is under way, for so long at most; None for however long it takes.

        Raises
        ------
        BaseException
            What ended a thread, which is no error of an action.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, seconds)
            if self._error is not None and not self._lines:
                error, self._error, self._interrupted = self._error, None, False
                raise error

    def interrupt(self) -> None:
        """Begin no further action, and wait for those that are under way."""
        with self._changed:
            self._interrupted = True
            try:
                self._changed.wait_for(lambda: not self._lines)
            finally:
                self._interrupted = False

    def ended(self) -> list[Run]:
        """Return what became of the lines that ended since this was asked last."""
        with self._changed:
            ended, self._ended = self._ended, []
            return ended

    def _work(self) -> None:
        while (key := self._next()) is not None:
            line = self._lines[key]
            large = line.is_large
            action = line.left.popleft()
            error: BaseException | None = None
            try:
                line.executor.step(action, line.run, stopping=self._interrupted)
            except BaseException as failed:  # noqa: BLE001 - told to who waits
                error = failed
            if error is not None or not line.left:
                line.held.close()
            self._went(key, line, large, error)

    def _next(self) -> Hashable | None:
        """Wait for a line whose turn it is; None where none is left."""
        with self._changed:
            while self._lines:
                for key in self._queue:
                    large = self._lines[key].is_large
                    if not large or self._large < self._places - 1:
                        self._queue.remove(key)
                        self._large += large
                        return key
                self._changed.wait()
            self._workers -= 1
            return None

    def _went(self, key: Hashable, line: _Line, large: bool, error: BaseException | None) -> None:
        with self._changed:
            self._large -= large
            if error is not None:
                self._error, self._interrupted = error, True
            if error is None and line.left:
                self._queue.append(key)
            else:
                del self._lines[key]
                self._ended.append(line.run)
            self._changed.notify_all()
