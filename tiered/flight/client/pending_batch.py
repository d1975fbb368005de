"""`PendingBatch`: records on their way to a server, and the results that the calls of `append` wait for."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

import pyarrow as pa

from ...engine.records import Appended, OffsetRange, merge_ranges
from ...errors import ServerUnavailable, TieredError, copy_error
from ...format.producers import UNKNOWN_OFFSET
from ...hot.row_buffer import RecordBuffer, RowBuffer
from ..wire.packed_rows import RowPacker
from ..wire.put_messages import Session

# Longer than any answer takes, except under sync="cold" while the bucket is unavailable.
_ANSWER_SECONDS = 600.0
_WAIT_SECONDS = 1.0


class PendingBatch:
    """Records that are sent in one message.

    Attributes
    ----------
    partition
        The partition of all of them; None: the server chooses by key.
    sync
        `BatchInfo.sync`.
    rows, packed, arrow
        The records: as rows until they are encoded, then as packed rows or as Arrow data.
    width
        Number of columns of `rows`, without the timestamp.
    count
        Number of records, once the batch is sealed.
    size
        Bytes of the records in memory.
    number
        Sequence number of the first record, once it is assigned.
    session
        The producer's session that assigned the number; None: the appender assigned it.
    expected_offset
        `BatchInfo.expected_offset`.
    settled
        Whether the result is known.
    threads, reported
        The threads that appended the records, and those of them that met the error.
    """

    __slots__ = (
        "_error",
        "_ranges",
        "_unsettled",
        "arrow",
        "count",
        "expected_offset",
        "number",
        "packed",
        "partition",
        "reported",
        "rows",
        "session",
        "settled",
        "size",
        "sync",
        "threads",
        "width",
    )

    def __init__(self, partition: int | None, sync: bool | None) -> None:
        self.partition = partition
        self.sync = sync
        self.rows: RecordBuffer | RowBuffer | None = None
        self.packed: bytes | None = None
        self.arrow: pa.RecordBatch | None = None
        self.width = 0
        self.count = 0
        self.size = 0
        self.number: int | None = None
        self.session: Session | None = None
        self.expected_offset: int | None = None
        self.settled = False
        self.threads: set[int] = set()
        self.reported: set[int] = set()
        self._ranges: tuple[OffsetRange, ...] = ()
        self._error: TieredError | None = None
        # Locked until the batch is settled. An `Event` takes ten times as long to make.
        self._unsettled = threading.Lock()
        self._unsettled.acquire()

    @classmethod
    def of_rows(
        cls, partition: int | None, sync: bool | None, rows: RecordBuffer | RowBuffer
    ) -> PendingBatch:
        """Return a batch of these rows; the caller may add more."""
        batch = cls(partition, sync)
        batch.rows, batch.width, batch.size = rows, rows.width, rows.bytes
        return batch

    @classmethod
    def of_arrow(cls, partition: int | None, sync: bool | None, arrow: pa.RecordBatch) -> PendingBatch:
        """Return a batch of Arrow data."""
        batch = cls(partition, sync)
        batch.arrow, batch.count, batch.size = arrow, arrow.num_rows, arrow.nbytes
        batch.threads.add(threading.get_ident())
        return batch

    def sealed(self) -> Self:
        """Count the rows; no row is added any more."""
        if self.rows is not None:
            self.count = len(self.rows.timestamps_us)
        return self

    def to_packed(self, packer: RowPacker) -> bytes | None:
        """Return the records as packed rows, or None if they are sent as Arrow data. The batch has its number."""
        if self.rows is not None and packer.takes(self.rows):
            assert self.number is not None
            self.packed, self.rows = packer.pack(self.number, self.rows), None
        return self.packed

    def to_batch(self, schema: pa.Schema, packer: RowPacker) -> pa.RecordBatch:
        """Return the records as Arrow data: a column ``timestamp``, then the columns of the topic."""
        if self.packed is not None:
            self.rows, self.packed = packer.unpack(self.packed)[1], None
        if self.rows is not None:
            # The rows lack the columns that the topic gained since.
            own = list(schema)[: self.rows.width + 1]
            self.arrow, self.rows = self.rows.to_batch(pa.schema(own)), None
        assert self.arrow is not None
        if len(self.arrow.schema) < len(schema):
            gained = list(schema)[len(self.arrow.schema) :]
            columns = [*self.arrow.columns, *(pa.nulls(self.count, field.type) for field in gained)]
            self.arrow = pa.RecordBatch.from_arrays(columns, schema=schema)
        return self.arrow

    def settle(self, ranges: tuple[OffsetRange, ...], error: TieredError | None) -> None:
        """Set the result, and wake the threads that wait for it."""
        self._ranges, self._error = ranges, error
        if not self.settled:
            self.settled = True
            self._unsettled.release()

    def drop_records(self) -> None:
        """Free the records: they are durable at the server, or were given up."""
        self.arrow = self.rows = self.packed = None

    def is_unreported_to(self, thread: int) -> bool:
        """Whether a flush on this thread must raise the error: once on each thread that appended a record."""
        return thread not in self.reported and (not self.reported or not self.threads <= self.reported)

    def ranges(self) -> tuple[OffsetRange, ...]:
        """Wait for the result, and return the ranges of the records in their order.

        Raises
        ------
        TieredError
            The records were not appended, or that is not known.
        """
        until = time.monotonic() + _ANSWER_SECONDS
        while not self.settled:
            # In short waits: Ctrl-C can keep a woken thread from waking the next one.
            if self._unsettled.acquire(timeout=_WAIT_SECONDS):
                self._unsettled.release()
            elif time.monotonic() >= until:
                raise ServerUnavailable(
                    "the server did not answer in time; whether the records were appended is not known"
                )
        if self._error is not None:
            self.reported.add(threading.get_ident())
            raise copy_error(self._error)
        return self._ranges

    def ranges_at(self, rows: Sequence[int]) -> Sequence[OffsetRange]:
        """Wait for the result, and return the ranges of some records, or of all if the offsets of single ones are unknown."""
        ranges = self.ranges()
        offsets = [] if len(rows) == self.count else [self.offset_of(row) for row in rows]
        if not offsets or UNKNOWN_OFFSET in offsets:
            return ranges
        return merge_ranges([OffsetRange(ranges[0].partition, offset, offset + 1) for offset in offsets])

    def offset_of(self, index: int) -> int:
        """Wait for the result, and return the offset of one record; `UNKNOWN_OFFSET` if it is not known."""
        ranges = self.ranges()
        total = sum(item.end - item.start for item in ranges)
        if total != self.count or any(item.start < 0 for item in ranges):
            # A repeat completed a part: records of others lie in between.
            return ranges[0].start if index == 0 and ranges else UNKNOWN_OFFSET
        for item in ranges:
            length = item.end - item.start
            if index < length:
                return item.start + index
            index -= length
        raise AssertionError


class _Awaited(tuple[PendingBatch, int]):
    """An offset that is not known yet: a batch and a row. Code that bypasses the methods of `PendingAppend` meets it."""

    __slots__ = ()

    def __index__(self) -> int:
        batch, row = self
        return batch.offset_of(row)

    def __repr__(self) -> str:
        return str(self.__index__()) if self[0].settled else "…"


class PendingAppend(Appended):
    """An `Appended` whose offset comes with the server's answer; each use of it waits for that."""

    __slots__ = ()

    @property
    def offset(self) -> int:
        """The offset, provisional until the record is durable; raises where the append failed."""
        return operator.index(tuple.__getitem__(self, 1))

    def known(self) -> Appended:
        return Appended(self.partition, self.offset)

    def __iter__(self) -> Iterator[int]:
        return iter(self.known())

    def __getitem__(self, index: Any) -> Any:
        return self.known()[index]

    def __eq__(self, other: object) -> bool:
        return bool(self.known() == _plain(other))

    def __ne__(self, other: object) -> bool:
        return bool(self.known() != _plain(other))

    def __lt__(self, other: Any) -> bool:
        return bool(self.known() < _plain(other))

    def __le__(self, other: Any) -> bool:
        return bool(self.known() <= _plain(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.known() > _plain(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self.known() >= _plain(other))

    def __contains__(self, item: object) -> bool:
        return item in self.known()

    def __add__(self, other: Any) -> Any:
        return self.known() + _plain(other)

    def index(self, *arguments: Any) -> int:
        """Return the place of a value, as of any tuple."""
        return self.known().index(*arguments)

    def count(self, value: Any) -> int:
        """Return how often a value is there, as of any tuple."""
        return self.known().count(value)

    def _asdict(self) -> dict[str, Any]:
        return self.known()._asdict()

    def _replace(self, **values: Any) -> Appended:  # type: ignore[override]
        return self.known()._replace(**values)

    def __reduce__(self) -> tuple[Any, ...]:
        return Appended, tuple(self)

    def __hash__(self) -> int:
        return hash(self.known())

    def __repr__(self) -> str:
        return f"Appended(partition={self.partition}, offset={tuple.__getitem__(self, 1)!r})"


_new = tuple.__new__


def pending_append(batch: PendingBatch, row: int) -> PendingAppend:
    """Return the result of an append: a row of a batch. The constructors in Python would take three times as long."""
    return _new(PendingAppend, (batch.partition, _new(_Awaited, (batch, row))))


def _plain(other: Any) -> Any:
    return other.known() if isinstance(other, PendingAppend) else other
