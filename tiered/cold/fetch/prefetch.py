"""Fetching ahead of a reader, across row groups and objects.

A reader takes units in a known order. While it decodes one, the next ones are fetched. Their number grows with each unit:
a reader that takes one batch costs little more than that batch, and one that goes on soon has as many fetches under way as
memory allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from .fetcher import Fetcher, Reservation
from .plan import Unit

_FIRST_BYTES = 16 << 20
_STEP_BYTES = 4 << 20

Loaded_co = TypeVar("Loaded_co", covariant=True)


class Read(Protocol[Loaded_co]):
    """A read of one object: its units in the reader's order, and a `load` that any thread may call.

    Before it `is_planned`, its `units` may need a fetch of the object's filters, which may fail.
    """

    @property
    def is_planned(self) -> bool: ...
    @property
    def units(self) -> list[Unit]: ...
    def load(self, unit: Unit) -> Loaded_co: ...


class FetchAhead(Generic[Loaded_co]):
    """The fetches of one reader; leaving the context cancels the rest.

    Parameters
    ----------
    reads
        The objects that will be read, in order; consumed as far ahead as fetching goes.
    eager
        Whether the reader announced to read everything. Otherwise nothing is fetched ahead of its first unit.
    """

    def __init__(self, fetcher: Fetcher, reads: Iterable[Read[Loaded_co]], *, eager: bool) -> None:
        self._fetcher = fetcher
        self._reads = iter(reads)
        self._unplanned: Read[Loaded_co] | None = None
        # The next units of the object that was taken last.
        self._units: deque[tuple[Read[Loaded_co], Unit]] = deque()
        self._ahead: deque[tuple[Read[Loaded_co], Unit, Future[Loaded_co]]] = deque()
        self._reserved = Reservation()
        self._window_bytes = _FIRST_BYTES if eager else 0
        # The next unit in the order, if it was taken but not begun for lack of memory.
        self._next: tuple[Read[Loaded_co], Unit] | None = None

    def load(self, read: Read[Loaded_co], unit: Unit) -> Loaded_co:
        """Return a unit's verified bytes, and begin to fetch the next units.

        Raises
        ------
        CorruptionError, ObjectNotFound, ColdStorageError
        """
        future = self._take(unit)
        self._fetch_ahead()
        self._window_bytes = 2 * self._window_bytes or _STEP_BYTES
        if future is None or future.cancel():
            # No thread has begun it, and this one is sooner done than a pool that is busy with other readers.
            return read.load(unit)
        return future.result()

    def load_ready(self) -> tuple[Unit, Loaded_co] | None:
        """Return the next unit if it was fetched already; an error is raised later, by `load`."""
        if not self._ahead:
            return None
        read, unit, future = self._ahead[0]
        # A closed store cancels fetches; a reader that goes on fetches by itself in `load`.
        if not future.done() or future.cancelled() or future.exception() is not None:
            return None
        return unit, self.load(read, unit)

    def _take(self, unit: Unit) -> Future[Loaded_co] | None:
        """Take a unit off the queue, and those before it, which the reader skipped."""
        while self._ahead:
            _, first, future = self._ahead.popleft()
            self._fetcher.release(self._reserved, first.bytes)
            if first is unit:
                return future
            self._give_up(future)
        while self._next is not None or self._advance(wait=True):
            assert self._next is not None
            (_, next_unit), self._next = self._next, None
            if next_unit is unit:
                break
        return None

    def _fetch_ahead(self) -> None:
        while self._next is not None or self._advance(wait=False):
            assert self._next is not None
            read, unit = self._next
            if self._reserved.bytes + unit.bytes > self._window_bytes:
                return
            if not self._fetcher.reserve(self._reserved, unit.bytes):
                return
            future = self._fetcher.submit(partial(read.load, unit))
            if future is None:
                self._fetcher.release(self._reserved, unit.bytes)
                return
            self._fetcher.counters.add(ahead=1)
            self._ahead.append((read, unit, future))
            self._next = None

    def _advance(self, *, wait: bool) -> bool:
        """Take the next unit; False at the end, or, unless it may wait, at an object whose units are not known yet."""
        while not self._units:
            if self._unplanned is None:
                self._unplanned = next(self._reads, None)
            if self._unplanned is None or not (wait or self._unplanned.is_planned):
                return False
            read, self._unplanned = self._unplanned, None
            self._units.extend((read, unit) for unit in read.units)
        self._next = self._units.popleft()
        return True

    def _give_up(self, future: Future[Loaded_co]) -> None:
        self._fetcher.counters.add(ahead_unused=1)
        future.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # All of it, including reservations whose fetch Ctrl-C prevented.
        self._fetcher.release(self._reserved, self._reserved.bytes)
        while self._ahead:
            self._give_up(self._ahead.popleft()[2])
