"""Turns of partitions: the fair execution of many partitions' actions: in turn, one action of a partition at a time.

::

    lines    big: [tail tail tail …]   quiet: [tail]   …      a line begins whenever its partition is due
    slots    ▓ ▓ ▓ ░                                          large actions leave the last slot free

A line waits for its turn, carries out one action, and goes back to the end of the queue. So a partition with much to ship
delays another one by one action at most. Small actions have a slot of their own and are not delayed by large ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Hashable, Iterable
from contextlib import ExitStack

from .actions import Action
from .executor import Executor, PartitionRun

SLOTS = 4
LARGE_BYTES = 1 << 20
"""An action above this size is large."""


class _Line:
    """The remaining actions of one partition, and the results of the others."""

    def __init__(self, executor: Executor, actions: Iterable[Action], resources: ExitStack) -> None:
        self.executor = executor
        self.left = deque(actions)
        self.resources = resources
        self.run = PartitionRun()

    @property
    def is_large(self) -> bool:
        return self.left[0].bytes > LARGE_BYTES


class PartitionTurns:
    """The lines under way, and the threads that carry them out. Thread-safe.

    Parameters
    ----------
    slots
        Number of actions at a time, at least two; one slot is for small actions.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        if slots < 2:
            raise ValueError("slots must be at least 2")
        self._slots = slots
        self._changed = threading.Condition()
        self._lines: dict[Hashable, _Line] = {}
        self._queue: deque[Hashable] = deque()
        self._workers = self._large = 0
        self._ended: list[PartitionRun] = []
        self._interrupted = False
        self._error: BaseException | None = None

    def under_way(self) -> Collection[Hashable]:
        """Return the keys of the lines that have not ended."""
        with self._changed:
            return frozenset(self._lines)

    def begin(
        self, key: Hashable, actions: Collection[Action], executor: Executor, resources: ExitStack
    ) -> None:
        """Queue a new line.

        Parameters
        ----------
        key
            The partition; it has no line under way.
        actions
            At least one action, in order.
        resources
            Closed when the line has ended, in any way, and also if this method raises.

        Raises
        ------
        RuntimeError
            No thread can be started any more.
        """
        line = _Line(executor, actions, resources)
        with self._changed:
            if self._workers < min(self._slots, len(self._lines) + 1):
                try:
                    # A daemon thread: the exit of the process may kill an action, and a later pass repeats it.
                    threading.Thread(target=self._work, name="tiered-ship", daemon=True).start()
                except BaseException:
                    resources.close()
                    raise
                self._workers += 1
            self._lines[key] = line
            self._queue.append(key)
            self._changed.notify_all()

    def wait(self, seconds: float | None) -> None:
        """Wait until no line is under way, for `seconds` at most; None for no limit.

        Raises
        ------
        BaseException
            The exception that ended a thread; errors of actions do not.
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

    def take_ended(self) -> list[PartitionRun]:
        """Return the results of the lines that have ended since the last call."""
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
            except BaseException as failed:  # noqa: BLE001 - `wait` raises it
                error = failed
            if error is not None or not line.left:
                line.resources.close()
            self._requeue(key, line, large, error)

    def _next(self) -> Hashable | None:
        """Wait for the next line that may run; None if no line is left."""
        with self._changed:
            while self._lines:
                for key in self._queue:
                    large = self._lines[key].is_large
                    if not large or self._large < self._slots - 1:
                        self._queue.remove(key)
                        self._large += large
                        return key
                self._changed.wait()
            self._workers -= 1
            return None

    def _requeue(self, key: Hashable, line: _Line, large: bool, error: BaseException | None) -> None:
        """Queue a line again after one of its actions, or end it."""
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
