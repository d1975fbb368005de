"""Decoding row groups ahead of a reader, on CPUs that it leaves idle.

Only what has been fetched is decoded ahead, so that no thread waits for the bucket in a reader's place; and few row
groups at a time, because decoded they take several times the memory that was set aside for fetching them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from ...errors import TieredError
from .fetcher import Fetcher
from .plan import Unit
from .prefetch import FetchAhead, Read


class Decodable(Protocol):
    """A unit that was fetched; its row groups can be decoded on any thread."""

    def decode(self, group: int) -> pa.Table: ...


@dataclass(slots=True)
class _Group:
    unit: Unit
    index: int
    decode: Callable[[], pa.Table]
    future: Future[pa.Table] | None = None


class DecodeAhead:
    """What one reader has under way; leave the context to give the rest up.

    Parameters
    ----------
    reads
        The objects that will be read, in order; taken from as far ahead as is fetched.
    eager
        Whether the reader said to want all of it. Otherwise nothing is done ahead of its first row group.
    """

    def __init__(self, fetcher: Fetcher, reads: Iterable[Read[Decodable]], *, eager: bool) -> None:
        self._decoders = fetcher.decoders
        self._fetched: FetchAhead[Decodable] = FetchAhead(fetcher, reads, eager=eager)
        # Fetched, in the reader's order; the first ones have been given to a thread.
        self._ahead: deque[_Group] = deque()
        self._going_on = eager

    def tables(self, read: Read[Decodable]) -> Iterator[pa.Table]:
        """Yield the row groups of an object, decoded.

        Raises
        ------
        CorruptionError, ObjectNotFound, ColdStorageError
        """
        for unit in read.units:
            for index in unit.groups:
                yield self._table(read, unit, index)
                self._going_on = True

    def _table(self, read: Read[Decodable], unit: Unit, index: int) -> pa.Table:
        group = self._taken(unit, index)
        if group is None:
            self._extend(unit, self._fetched.load(read, unit))
            group = self._taken(unit, index)
            assert group is not None
        if self._going_on:
            self._go_ahead()
        # What no thread has begun, this one does sooner than a pool that is busy with other readers.
        if group.future is None or group.future.cancel():
            return group.decode()
        if not group.future.done():
            self._help()
        return group.future.result()

    def _help(self) -> None:
        """Decode what comes after it, instead of waiting."""
        for later in self._ahead:
            if later.future is None or later.future.cancel():
                later.future = done = Future[pa.Table]()
                try:
                    done.set_result(later.decode())
                except TieredError as error:
                    done.set_exception(error)
                return

    def _taken(self, unit: Unit, index: int) -> _Group | None:
        """Take a row group out of the order, and what the reader left out before it."""
        while self._ahead:
            group = self._ahead.popleft()
            if group.unit is unit and group.index == index:
                return group
            if group.future is not None:
                group.future.cancel()
        return None

    def _extend(self, unit: Unit, fetched: Decodable) -> None:
        self._ahead.extend(_Group(unit, index, partial(fetched.decode, index)) for index in unit.groups)

    def _go_ahead(self) -> None:
        for place in range(self._decoders.threads and self._decoders.threads + 1):
            if place == len(self._ahead):
                fetched = self._fetched.load_ready()
                if fetched is None:
                    return
                self._extend(*fetched)
            group = self._ahead[place]
            if group.future is None:
                group.future = self._decoders.submit(group.decode)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fetched.__exit__(kind, error, trace)
        for group in self._ahead:
            if group.future is not None:
                group.future.cancel()
