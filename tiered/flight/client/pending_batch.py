"""Records on their way to a server: piles that are sent as one batch, and what is known of each record meanwhile."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

import pyarrow as pa

from ...engine.records import Appended, OffsetRange, merged_ranges
from ...errors import ServerUnavailable, TieredError, again
from ...format.producers import UNKNOWN_OFFSET
from ...hot.row_buffer import RecordBuffer, RowBuffer
from ..wire.packed_rows import RowPacker
from ..wire.put_messages import Session

# Longer than any server takes that answers at all, but for a bucket that is away under sync="cold".
_ANSWER_SECONDS = 600.0
_WAIT_SECONDS = 1.0


class PendingBatch:
    """Records of one partition that go as one batch.

    Attributes
    ----------
    rows
        The records, until they are encoded; None: it is of Arrow data.
    count
        Of the records, once it is `sealed`.
    width
        The number of columns of `rows`, without the timestamp.
    sync
        What the strictest of them waits for: as `BatchInfo.sync`.
    number
        Sequence number of the first, once it is given.
    settled
        Whether it is known what became of the records.
    threads, told
        Whose records they are, and who was told why they were not appended.
    session
        Of the user's producer whose number it is; None: it is the appender's own.
    """

    __slots__ = (
        "_done",
        "_error",
        "_ranges",
        "batch",
        "count",
        "number",
        "packed",
        "partition",
        "rows",
        "session",
        "settled",
        "size",
        "sync",
        "threads",
        "told",
        "width",
    )

    def __init__(self, partition: int | None, sync: bool | None) -> None:
        self.partition = partition
        self.sync = sync
        self.rows: RecordBuffer | RowBuffer | None = None
        self.width = 0
        self.batch: pa.RecordBatch | None = None
        self.packed: bytes | None = None
        self.count = 0
        self.size = 0
        self.number: int | None = None
        self.session: Session | None = None
        self._ranges: tuple[OffsetRange, ...] = ()
        self._error: TieredError | None = None
        # Held until it is known what became of the records. An `Event` takes ten times as long.
        self._done = threading.Lock()
        self._done.acquire()
        self.settled = False
        self.threads: set[int] = set()
        self.told: set[int] = set()

    @classmethod
    def of_rows(
        cls, partition: int | None, sync: bool | None, rows: RecordBuffer | RowBuffer
    ) -> PendingBatch:
        """Make a pile of records that may come."""
        pile = cls(partition, sync)
        pile.rows, pile.width, pile.size = rows, rows.width, rows.bytes
        return pile

    @classmethod
    def of_batch(cls, partition: int | None, sync: bool | None, batch: pa.RecordBatch) -> PendingBatch:
        """Make a pile of Arrow data."""
        pile = cls(partition, sync)
        pile.batch, pile.count, pile.size = batch, batch.num_rows, batch.nbytes
        pile.threads.add(threading.get_ident())
        return pile

    def sealed(self) -> Self:
        """Say that no record comes to it any more."""
        if self.rows is not None:
            self.count = len(self.rows.timestamps_us)
        return self

    def to_packed(self, packer: RowPacker) -> bytes | None:
        """Return the records as packed rows; None if they go as a batch. They have their number by now."""
        if self.rows is not None and packer.takes(self.rows):
            assert self.number is not None
            self.packed, self.rows = packer.pack(self.number, self.rows), None
        return self.packed

    def to_batch(self, schema: pa.Schema, packer: RowPacker) -> pa.RecordBatch:
        """Return what is sent: a column ``timestamp``, then those of the topic."""
        if self.packed is not None:
            self.rows, self.packed = packer.unpack(self.packed)[1], None
        if self.rows is not None:
            # Without the columns that the topic gained since.
            own = list(schema)[: self.rows.width + 1]
            self.batch, self.rows = self.rows.to_batch(pa.schema(own)), None
        assert self.batch is not None
        if len(self.batch.schema) < len(schema):
            gained = list(schema)[len(self.batch.schema) :]
            columns = [*self.batch.columns, *(pa.nulls(self.count, field.type) for field in gained)]
            self.batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        return self.batch

    def settle(self, ranges: tuple[OffsetRange, ...], error: TieredError | None) -> None:
        """Say what became of the records."""
        self._ranges, self._error = ranges, error
        if not self.settled:
            self.settled = True
            self._done.release()

    def forget(self) -> None:
        """Let go of the data: they are durable at the server, or given up."""
        self.batch = self.rows = self.packed = None

    def untold(self, thread: int) -> bool:
        """Whether a flush on a thread has to say that they were not appended: once to each whose they are."""
        return thread not in self.told and (not self.told or not self.threads <= self.told)

    def ranges(self) -> tuple[OffsetRange, ...]:
        """Wait, and return where the records are, in their order.

        Raises
        ------
        TieredError
            Why they were not appended, or why that is not known.
        """
        until = time.monotonic() + _ANSWER_SECONDS
        while not self.settled:
            # Not for all that time at once: whoever is woken, and hit by Ctrl-C, wakes nobody else.
            if self._done.acquire(timeout=_WAIT_SECONDS):
                self._done.release()
            elif time.monotonic() >= until:
                raise ServerUnavailable(
                    "the server did not answer in time; whether the records were appended is not known"
                )
        if self._error is not None:
            self.told.add(threading.get_ident())
            raise again(self._error)
        return self._ranges

    def ranges_at(self, places: Sequence[int]) -> Sequence[OffsetRange]:
        """Wait, and return where some of the records are; of all, where nobody remembers."""
        ranges = self.ranges()
        offsets = [] if len(places) == self.count else [self.offset_of(place) for place in places]
        if not offsets or UNKNOWN_OFFSET in offsets:
            return ranges
        return merged_ranges([OffsetRange(ranges[0].partition, offset, offset + 1) for offset in offsets])

    def offset_of(self, index: int) -> int:
        """Wait, and return the offset of one of the records; -1 where nobody remembers."""
        ranges = self.ranges()
        total = sum(item.end - item.start for item in ranges)
        if total != self.count or any(item.start < 0 for item in ranges):
            # A repeat that completed what was cut short: records of others lie in between.
            return ranges[0].start if index == 0 and ranges else UNKNOWN_OFFSET
        for item in ranges:
            length = item.end - item.start
            if index < length:
                return item.start + index
            index -= length
        raise AssertionError


class _Awaited(tuple[PendingBatch, int]):
    """An offset that the server has yet to say; what reads a tuple past its methods meets it, and no wrong number."""

    __slots__ = ()

    def __index__(self) -> int:
        pile, place = self
        return pile.offset_of(place)

    def __repr__(self) -> str:
        return str(self.__index__()) if self[0].settled else "…"


class PendingAppend(Appended):
    """An `Appended` whose offset the server has yet to say: whoever looks at it waits for that."""

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


def pending_append(pile: PendingBatch, place: int) -> PendingAppend:
    """Return what an append returns of a record of a pile. Made without the constructors in Python, it takes a third of the time."""
    return _new(PendingAppend, (pile.partition, _new(_Awaited, (pile, place))))


def _plain(other: Any) -> Any:
    return other.known() if isinstance(other, PendingAppend) else other
