"""Turns of partitions: the execution of many partitions' actions, the oldest first, one action of a partition at a time.

::

    lines    big: [tail tail tail …]   quiet: [tail]   …      a line begins whenever its partition is due
    slots    ▓ ▓ ▓ ░ ░ ░ … ░                                  large actions take three slots at most

A line waits for its turn, carries out one action, and goes back into the queue. The next action is the one whose first
record has waited longest. So no partition starves, and a partition with many actions occupies one slot at a time. Large
actions do not delay small ones.

An action mostly waits for the bucket. So there are many slots, and few of them for large actions, which take memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from contextlib import ExitStack
from heapq import heappop, heappush
from itertools import count

from .actions import Action
from .executor import Executor, PartitionRun

SLOTS = 16
"""Enough to keep one core busy at 20 ms of latency; more of them delay appends in the same process, and gain nothing."""

LARGE_SLOTS = 3
LARGE_BYTES = 1 << 20
"""An action above this size is large."""


class _Line:
    """The remaining actions of one partition with the times of their first records, and the results of the others."""

    def __init__(
        self,
        executor: Executor,
        actions: Iterable[Action],
        since_us: Sequence[int],
        resources: ExitStack,
    ) -> None:
        self.executor = executor
        self.left = deque(actions)
        self.since_us = deque(since_us or [0] * len(self.left))
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
        Number of actions at a time, at least two; `LARGE_SLOTS` of them, and all but one at most, for large actions.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        if slots < 2:
            raise ValueError("slots must be at least 2")
        self._slots = slots
        self._large_slots = min(LARGE_SLOTS, slots - 1)
        lock = threading.Lock()
        self._queued, self._ended_line = threading.Condition(lock), threading.Condition(lock)
        self._lines: dict[Hashable, _Line] = {}
        # Heaps of the time of the first record, the number of the turn, and the key.
        self._small: list[tuple[int, int, Hashable]] = []
        self._large: list[tuple[int, int, Hashable]] = []
        self._numbers = count()
        self._workers = self._large_running = 0
        self._ended: list[PartitionRun] = []
        self._interrupted = False
        self._error: BaseException | None = None

    def under_way(self) -> Collection[Hashable]:
        """Return the keys of the lines that have not ended."""
        with self._queued:
            return frozenset(self._lines)

    def begin(
        self,
        key: Hashable,
        actions: Collection[Action],
        executor: Executor,
        resources: ExitStack,
        *,
        since_us: Sequence[int] = (),
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
        since_us
            When the first record of each action was appended; empty if unknown. Unknown is oldest. Actions of the same
            time take turns.

        Raises
        ------
        RuntimeError
            No thread can be started any more.
        """
        line = _Line(executor, actions, since_us, resources)
        with self._queued:
            if self._workers < min(self._slots, len(self._lines) + 1):
                try:
                    # A daemon thread: the exit of the process may kill an action, and a later pass repeats it.
                    threading.Thread(target=self._work, name="tiered-ship", daemon=True).start()
                except BaseException:
                    resources.close()
                    raise
                self._workers += 1
            self._lines[key] = line
            self._enqueue(key, line)

    def wait(self, seconds: float | None) -> None:
        """Wait until no line is under way, for `seconds` at most; None for no limit.

        Raises
        ------
        BaseException
            The exception that ended a thread; errors of actions do not.
        """
        with self._ended_line:
            self._ended_line.wait_for(lambda: not self._lines, seconds)
            if self._error is not None and not self._lines:
                error, self._error, self._interrupted = self._error, None, False
                raise error

    def interrupt(self) -> None:
        """Begin no further action, and wait for those that are under way."""
        with self._ended_line:
            self._interrupted = True
            try:
                self._ended_line.wait_for(lambda: not self._lines)
            finally:
                self._interrupted = False

    def take_ended(self) -> list[PartitionRun]:
        """Return the results of the lines that have ended since the last call."""
        with self._queued:
            ended, self._ended = self._ended, []
            return ended

    def _work(self) -> None:
        while (key := self._next()) is not None:
            line = self._lines[key]
            large = line.is_large
            action = line.left.popleft()
            line.since_us.popleft()
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
        with self._queued:
            while self._lines:
                if (queue := self._runnable()) is not None:
                    self._large_running += queue is self._large
                    return heappop(queue)[2]
                self._queued.wait()
            self._workers -= 1
            self._queued.notify_all()  # the other threads end, too
            return None

    def _runnable(self) -> list[tuple[int, int, Hashable]] | None:
        """Return the queue whose first action is the oldest of those that may run; None if none may."""
        queues = [self._small]
        if self._large_running < self._large_slots:
            queues.append(self._large)
        return min((queue for queue in queues if queue), default=None, key=lambda queue: queue[0][:2])

    def _enqueue(self, key: Hashable, line: _Line) -> None:
        heappush(self._large if line.is_large else self._small, (line.since_us[0], next(self._numbers), key))
        self._queued.notify()

    def _requeue(self, key: Hashable, line: _Line, large: bool, error: BaseException | None) -> None:
        """Queue a line again after one of its actions, or end it."""
        with self._queued:
            self._large_running -= large
            if error is not None:
                self._error, self._interrupted = error, True
            if error is None and line.left:
                self._enqueue(key, line)
            else:
                del self._lines[key]
                self._ended.append(line.run)
                if large:
                    self._queued.notify()  # a large action may run now
                if not self._lines:
                    self._ended_line.notify_all()
