"""Decoding of row groups ahead of a reader, on idle CPUs.

Only row groups that were fetched are decoded ahead, so decoding threads never wait for the bucket. Only a few are decoded
at a time, since a decoded row group takes several times the memory that was reserved to fetch it.
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
    """A fetched unit; its row groups can be decoded on any thread."""

    def decode(self, group: int) -> pa.Table: ...


@dataclass(slots=True)
class _Group:
    unit: Unit
    index: int
    decode: Callable[[], pa.Table]
    future: Future[pa.Table] | None = None


class DecodeAhead:
    """The fetches and decodes of one reader; leaving the context cancels the rest.

    Parameters
    ----------
    reads
        The objects that will be read, in order; consumed as far ahead as fetching goes.
    eager
        Whether the reader announced to read everything. Otherwise nothing is fetched or decoded ahead before it has taken
        its first row group.
    """

    def __init__(self, fetcher: Fetcher, reads: Iterable[Read[Decodable]], *, eager: bool) -> None:
        self._decoders = fetcher.decoders
        self._fetched: FetchAhead[Decodable] = FetchAhead(fetcher, reads, eager=eager)
        # Fetched row groups in the reader's order; the first ones were handed to threads.
        self._ahead: deque[_Group] = deque()
        self._continues = eager

    def tables(self, read: Read[Decodable]) -> Iterator[pa.Table]:
        """Yield the row groups of an object, decoded.

        Raises
        ------
        CorruptionError, ObjectNotFound, ColdStorageError
        """
        for unit in read.units:
            for index in unit.groups:
                yield self._table(read, unit, index)
                self._continues = True

    def _table(self, read: Read[Decodable], unit: Unit, index: int) -> pa.Table:
        group = self._take(unit, index)
        if group is None:
            self._extend(unit, self._fetched.load(read, unit))
            group = self._take(unit, index)
            assert group is not None
        if self._continues:
            self._decode_ahead()
        # If no thread has begun it, this one is sooner done than a pool that is busy with other readers.
        if group.future is None or group.future.cancel():
            return group.decode()
        if not group.future.done():
            self._decode_next()
        return group.future.result()

    def _decode_next(self) -> None:
        """Decode the next row group that no thread has begun, instead of waiting."""
        for later in self._ahead:
            if later.future is None or later.future.cancel():
                later.future = done = Future[pa.Table]()
                try:
                    done.set_result(later.decode())
                except TieredError as error:
                    done.set_exception(error)
                return

    def _take(self, unit: Unit, index: int) -> _Group | None:
        """Take a row group off the queue, and those before it, which the reader skipped."""
        while self._ahead:
            group = self._ahead.popleft()
            if group.unit is unit and group.index == index:
                return group
            if group.future is not None:
                group.future.cancel()
        return None

    def _extend(self, unit: Unit, fetched: Decodable) -> None:
        self._ahead.extend(_Group(unit, index, partial(fetched.decode, index)) for index in unit.groups)

    def _decode_ahead(self) -> None:
        for index in range(self._decoders.threads and self._decoders.threads + 1):
            if index == len(self._ahead):
                fetched = self._fetched.load_ready()
                if fetched is None:
                    return
                self._extend(*fetched)
            group = self._ahead[index]
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
