"""Records on their way to a server: piles that are sent as one batch, and what is known of each record meanwhile."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Self, cast

import pyarrow as pa

from ...engine.records import Appended, OffsetRange, merged_ranges
from ...errors import ServerUnavailable, TieredError, again
from ...format.producers import UNKNOWN_OFFSET
from ...format.schema import TIMESTAMP
from ..wire.put_messages import Session

# Longer than any server takes that answers at all, but for a bucket that is away under sync="cold".
_ANSWER_SECONDS = 600.0


class PendingBatch:
    """Records of one partition that go as one batch.

    Attributes
    ----------
    rows
        Timestamp and columns of each record, until they are made a batch.
    count
        Of the records, once it is `sealed`.
    sync
        What the strictest of them waits for: as `BatchInfo.sync`.
    number
        Sequence number of the first, once it is given.
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
        "partition",
        "rows",
        "session",
        "size",
        "sync",
        "threads",
        "told",
    )

    def __init__(self, partition: int | None, sync: bool | None) -> None:
        self.partition = partition
        self.sync = sync
        # Whole records, not columns: Ctrl-C between two columns would leave them askew.
        self.rows: list[tuple[Any, ...]] = []
        self.batch: pa.RecordBatch | None = None
        self.count = 0
        self.size = 0
        self.number: int | None = None
        self.session: Session | None = None
        self._ranges: tuple[OffsetRange, ...] = ()
        self._error: TieredError | None = None
        self._done = threading.Event()
        self.threads: set[int] = set()
        self.told: set[int] = set()

    @classmethod
    def of_batch(cls, partition: int | None, sync: bool | None, batch: pa.RecordBatch) -> PendingBatch:
        """Make a pile of Arrow data."""
        pile = cls(partition, sync)
        pile.batch, pile.count, pile.size = batch, batch.num_rows, batch.nbytes
        pile.threads.add(threading.get_ident())
        return pile

    def sealed(self) -> Self:
        """Say that no record comes to it any more."""
        self.count = self.count or len(self.rows)
        return self

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return what is sent: a column ``timestamp``, then those of the topic."""
        if self.batch is None:
            stamps, *own = zip(*self.rows, strict=True)
            arrays = [pa.array(stamps, pa.int64()).cast(TIMESTAMP)]
            arrays += [_array(values, schema.field(at)) for at, values in enumerate(own, 1)]
            # Columns that the topic gained since.
            arrays += [pa.nulls(self.count, field.type) for field in list(schema)[len(arrays) :]]
            self.batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            self.rows = []
        elif len(self.batch.schema) < len(schema):
            gained = list(schema)[len(self.batch.schema) :]
            columns = [*self.batch.columns, *(pa.nulls(self.count, field.type) for field in gained)]
            self.batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        return self.batch

    def settle(self, ranges: tuple[OffsetRange, ...], error: TieredError | None) -> None:
        """Say what became of the records."""
        self._ranges, self._error = ranges, error
        self._done.set()

    def forget(self) -> None:
        """Let go of the data: they are durable at the server, or given up."""
        self.batch = None
        self.rows = []

    def untold(self, thread: int) -> bool:
        """Whether a flush on a thread has to say that they were not appended: once to each whose they are."""
        return thread not in self.told and (not self.told or not self.threads <= self.told)

    @property
    def settled(self) -> bool:
        """Whether it is known what became of the records."""
        return self._done.is_set()

    def ranges(self) -> tuple[OffsetRange, ...]:
        """Wait, and return where the records are, in their order.

        Raises
        ------
        TieredError
            Why they were not appended, or why that is not known.
        """
        if not self._done.wait(_ANSWER_SECONDS):
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


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    if values[0] is None and values.count(None) == len(values):
        return pa.nulls(len(values), field.type)  # of thousands of columns, sparse rows fill few
    return pa.array(values, field.type)


class _Awaited:
    """An offset that the server has yet to say; what reads a tuple past its methods meets it, and no wrong number."""

    __slots__ = ("index", "pile")

    def __init__(self, pile: PendingBatch, index: int) -> None:
        self.pile = pile
        self.index = index

    def __index__(self) -> int:
        return self.pile.offset_of(self.index)

    def __repr__(self) -> str:
        return str(self.pile.offset_of(self.index)) if self.pile.settled else "…"


class PendingAppend(Appended):
    """An `Appended` whose offset the server has yet to say: whoever looks at it waits for that."""

    __slots__ = ()

    def __new__(cls, pile: PendingBatch, index: int) -> Self:
        """Make one of a record of a pile that names its partition."""
        assert pile.partition is not None
        return super().__new__(cls, pile.partition, cast("int", _Awaited(pile, index)))

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


def _plain(other: Any) -> Any:
    return other.known() if isinstance(other, PendingAppend) else other
