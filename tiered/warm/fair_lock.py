"""A fair lock among processes: a process that releases it lets a waiting process go first.

::

    passes.lock          one process runs passes; held for a whole pass, and no process waits for it
    tiering-next.lock    the queue lock: a process takes it before the tiering lock, and releases it when it has that
    tiering.lock         the lock itself; held for one action

While one process works, a waiting process holds the queue lock. When the first wants to continue, it finds the queue lock
taken and waits. All are ``flock`` locks, so a process that dies releases them. Early releases take only the tiering lock:
they are excluded, too, but may overtake a waiting process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import DiskFull, StoreLocked
from .file_lock import FileLock, facts_of_holder


class FairLock:
    """The lock at `path`; threads of this process share a turn. Thread-safe.

    A thread may join a turn while one of the threads that began it still runs, or while no other process waits. So a
    short action does not wait for a long one, and no turn lasts for ever.

    Parameters
    ----------
    next_path
        The path of the queue lock.
    what
        What the lock guards, for messages.
    """

    def __init__(self, path: Path, next_path: Path, what: str) -> None:
        self._path = path
        self._next_path = next_path
        self._what = what
        self._guard = threading.Lock()
        self._lock: FileLock | None = None
        self._queue_lock: FileLock | None = None
        # Threads that share the turn; those of them that let others join while other processes wait; waiting threads.
        self._holders: set[object] = set()
        self._owners: set[object] = set()
        self._waiting: set[object] = set()

    @contextmanager
    def turn(self, wait: Callable[[StoreLocked], object]) -> Iterator[None]:
        """Hold the lock until the block ends. Not re-entrant.

        Parameters
        ----------
        wait
            Called after each attempt that failed: waits a moment, or raises to give up.

        Raises
        ------
        ReadOnly, ConfigError, DiskFull
            See `FileLock.acquire`.
        """
        mine = object()
        # Within the try: an interrupt right after the lock was taken must not leave it held.
        try:
            while (locked := self._begin(mine)) is not None:
                wait(locked)
            yield
        finally:
            self._end(mine)

    def abandon(self) -> None:
        """Close the parent's locks in a forked child; the parent keeps them."""
        for held in (self._lock, self._queue_lock):
            if held is not None:
                held.abandon()

    def _begin(self, mine: object) -> StoreLocked | None:
        """Begin a turn, or join that of another thread; return the error of a failed attempt."""
        with self._guard:
            return self._try(mine)

    def _try(self, mine: object) -> StoreLocked | None:
        self._waiting.add(mine)
        if self._lock is not None:
            others = self._others_wait()
            if others and not self._owners:
                return StoreLocked(f"{self._what} is another process's next")
            if not others:
                self._owners.add(mine)
        else:
            try:
                self._take()
            except StoreLocked as locked:
                return locked
            self._owners.add(mine)
        self._holders.add(mine)
        self._waiting.discard(mine)
        return None

    def _take(self) -> None:
        if self._queue_lock is None:
            with suppress(DiskFull):  # the action under the lock may be what frees space
                self._queue_lock = FileLock.acquire(self._next_path, self._what, nameless=True)
        self._lock = FileLock.acquire(self._path, self._what, nameless=True)
        self._leave_queue()

    def _leave_queue(self) -> None:
        if self._queue_lock is not None:
            self._queue_lock.release()
            self._queue_lock = None

    def _others_wait(self) -> bool:
        try:
            return facts_of_holder(self._next_path) is not None
        except OSError:
            return False

    def _end(self, mine: object) -> None:
        with self._guard:
            for kind in (self._holders, self._owners, self._waiting):
                kind.discard(mine)
            if not self._holders and self._lock is not None:
                self._lock.release()
                self._lock = None
            if not self._waiting:
                self._leave_queue()
