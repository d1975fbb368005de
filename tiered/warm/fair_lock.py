"""A lock among processes that changes hands: who would take it again first lets the next one have it.

::

    passes.lock          one process runs passes; held for the whole of a pass, and nobody waits for it
    tiering-next.lock    the waiting place: who would take the tiering lock holds this first, and lets go once he has it
    tiering.lock         what excludes; held for one action

Of two processes one is in the waiting place while the other works. So the latter finds the place taken when it wants to
go on, and the former goes first. All are ``flock`` locks: a process that dies gives up what it had, also its place. Releases
that know of no waiting place are excluded all the same, and overtake those who wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import DiskFull, StoreLocked
from .file_lock import FileLock, facts_of_holder


class FairLock:
    """The lock at `path`, of which threads of this process share a turn. Thread-safe.

    A turn is shared as long as who began it goes on, or nobody of another process waits. So a short action need not
    wait for the end of a long one beside it, and yet no turn lasts for ever.

    Parameters
    ----------
    next_path
        The waiting place.
    what
        What is locked, for messages.
    """

    def __init__(self, path: Path, next_path: Path, what: str) -> None:
        self._path = path
        self._next_path = next_path
        self._what = what
        self._guard = threading.Lock()
        self._lock: FileLock | None = None
        self._place: FileLock | None = None
        # Those who hold the lock; of them those whose presence lets others in; those who wait for it.
        self._holders: set[object] = set()
        self._owners: set[object] = set()
        self._waiting: set[object] = set()

    @contextmanager
    def turn(self, wait: Callable[[StoreLocked], object]) -> Iterator[None]:
        """Hold the lock until the block ends. Not re-entrant.

        Parameters
        ----------
        wait
            Called after each attempt that came too early: waits a moment, or raises to give up.

        Raises
        ------
        ReadOnly, ConfigError, DiskFull
            See `FileLock.acquire`.
        """
        mine = object()
        # Within the try: Ctrl-C right after it was taken must not leave it held.
        try:
            while (locked := self._begin(mine)) is not None:
                wait(locked)
            yield
        finally:
            self._end(mine)

    def abandon(self) -> None:
        """In a forked child: let go of the parent's lock and place."""
        for held in (self._lock, self._place):
            if held is not None:
                held.abandon()

    def _begin(self, mine: object) -> StoreLocked | None:
        """Begin a turn, or share that of another thread; return what stands in the way."""
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
        if self._place is None:
            with suppress(DiskFull):  # what is locked for may be what makes room
                self._place = FileLock.acquire(self._next_path, self._what, nameless=True)
        self._lock = FileLock.acquire(self._path, self._what, nameless=True)
        self._leave_place()

    def _leave_place(self) -> None:
        if self._place is not None:
            self._place.release()
            self._place = None

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
                self._leave_place()
