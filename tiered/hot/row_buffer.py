"""Buffers of pending rows: one Python list a column, turned into Arrow columns a block at a time.

An exception between two appends to parallel lists, such as Ctrl-C, would leave them with different lengths, and every
later key would belong to a wrong value. So code that adds a row calls `truncate` before it lets an exception pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat, zip_longest
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from ..format.block import Body
from ..format.schema import HEADERS_TYPE, RECORD_SCHEMA, TIMESTAMP, body_schema, nulls
from ..format.single_record import SINGLE_BYTES_MAX, encode_single
from ..format.sizes import row_bytes
from .accelerator import RowFields

_T = TypeVar("_T")

RECORD_OVERHEAD_BYTES = row_bytes(body_schema(RECORD_SCHEMA))
"""The bytes of a record in memory beyond its size (`tiered.format.sizes`)."""

Number = tuple[int, int, int]
"""Producer id, epoch and sequence of a record of an idempotent producer."""


class PlainRecords(NamedTuple):
    """Checked records, one list a column: rows of a typed topic, or keys and values without headers.

    Attributes
    ----------
    columns
        The topic's first columns: of a record topic, keys and values.
    sizes
        The size of each record (`tiered.format.sizes`).
    row_bytes
        The bytes of a record in memory beyond its size.
    stamp_at
        The index of the topic's timestamp column; None without one.
    total_bytes
        The bytes of all records in memory.
    """

    columns: Sequence[Sequence[Any]]
    sizes: Sequence[int]
    row_bytes: int
    stamp_at: int | None
    total_bytes: int

    @classmethod
    def of(
        cls,
        columns: Sequence[Sequence[Any]],
        sizes: Sequence[int],
        row_bytes: int = RECORD_OVERHEAD_BYTES,
        stamp_at: int | None = None,
    ) -> PlainRecords:
        """Return the records of these columns."""
        return cls(columns, sizes, row_bytes, stamp_at, sum(sizes) + row_bytes * len(sizes))

    def slice(self, start: int, end: int | None = None) -> PlainRecords:
        """Return the records ``[start, end)``."""
        columns = [column[start:end] for column in self.columns]
        return self.of(columns, self.sizes[start:end], self.row_bytes, self.stamp_at)

    def take(self, rows: Sequence[int]) -> PlainRecords:
        """Return the records of these rows."""
        columns = [[column[row] for row in rows] for column in self.columns]
        return self.of(columns, [self.sizes[row] for row in rows], self.row_bytes, self.stamp_at)

    def timestamps_us(self, now_us: int) -> list[int]:
        """Return the record timestamps: those of the timestamp column where it has a value, else `now_us`."""
        if self.stamp_at is None:
            return [now_us] * len(self.sizes)
        return [now_us if stamp is None else stamp for stamp in self.columns[self.stamp_at]]

    def count_to_fill(self, bytes_max: int, rows_max: int) -> int:
        """Return how many records a buffer with this room takes: it is full with the one that reaches `bytes_max`."""
        if bytes_max <= 0 or rows_max <= 0:
            return 0
        count = min(len(self.sizes), rows_max)
        if self.total_bytes > bytes_max:
            ends = list(accumulate(size + self.row_bytes for size in self.sizes))
            return min(count, bisect_left(ends, bytes_max) + 1)
        return count

    def split(self, bytes_max: int) -> Iterator[PlainRecords]:
        """Cut after each record that reaches `bytes_max`."""
        rest = self
        while rest.total_bytes > bytes_max:
            count = rest.count_to_fill(bytes_max, len(rest.sizes))
            yield rest.slice(0, count)
            rest = rest.slice(count)
        if rest.sizes:
            yield rest


class Buffer(Protocol):
    """Pending rows of one partition; ``timestamps_us`` has one entry a row.

    ``bytes`` is about the size of the rows as Arrow columns. ``numbers`` has the producer numbers by row; most rows
    have none.
    """

    base_offset: int
    timestamps_us: list[int]
    bytes: int
    numbers: dict[int, Number]

    def successor(self) -> Any:
        """Return an empty buffer of the same kind for the rows after these."""
        ...

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows as a body batch."""
        ...

    def concatenate(self, offset: int, later: Any) -> Any:
        """Return a new buffer of these rows from `offset` on and the rows of the `later` buffer."""
        ...


class RecordBuffer(RowFields):
    """Pending rows of the record schema: key, value, headers."""

    __slots__ = ()

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps_us: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        # Sparse, by row: most records have no headers.
        self.headers: dict[int, Sequence[tuple[str, bytes | None]]] = {}
        self.numbers: dict[int, Number] = {}
        self.bytes = 0

    def successor(self) -> RecordBuffer:
        """See `Buffer.successor`."""
        return RecordBuffer(self.base_offset + len(self.timestamps_us))

    def truncate(self, count: int) -> None:
        """Undo an interrupted `add`: keep the first `count` rows; ``bytes`` may stay too large, but not without rows."""
        for column in (self.timestamps_us, self.keys, self.values):
            del column[count:]
        for row in [row for row in self.headers if row >= count]:
            del self.headers[row]
        _truncate(self.numbers, count)
        if not count:
            # A buffer without rows is never written, so it must not be full.
            self.bytes = 0

    def add(self, values: Sequence[Any], size: int) -> None:
        """Add key, value and headers of a row; the row counts once the caller adds its timestamp."""
        row = len(self.timestamps_us)
        key, value, headers = values
        self.keys.append(key)
        self.values.append(value)
        if headers is not None:
            self.headers[row] = headers
        self.bytes += size

    def add_plain(self, records: PlainRecords) -> None:
        """Add key and value of each record; the records count once the caller adds their timestamps."""
        keys, values = records.columns
        self.keys.extend(keys)
        self.values.extend(values)
        self.bytes += records.total_bytes

    @property
    def width(self) -> int:
        """The number of columns without the timestamp."""
        return len(RECORD_SCHEMA)

    def extend(self, rows: RecordBuffer) -> None:
        """Add all of other rows but their timestamps, which make them count."""
        row = len(self.timestamps_us)
        self.keys += rows.keys
        self.values += rows.values
        self.headers |= {row + at: pairs for at, pairs in rows.headers.items()}
        self.bytes += rows.bytes

    @property
    def is_single(self) -> bool:
        """Whether the buffer has one small record without headers, which `to_single` encodes."""
        return len(self.timestamps_us) == 1 and not self.headers and self.bytes <= SINGLE_BYTES_MAX

    def to_single(self) -> Body:
        """Return the single row as an encoded block."""
        return encode_single(self.timestamps_us[0], self.keys[0], self.values[0])

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """See `Buffer.to_batch`."""
        count = len(self.timestamps_us)
        if self.headers:
            headers = pa.array([self.headers.get(i) for i in range(count)], HEADERS_TYPE)
        else:
            headers = nulls(count, HEADERS_TYPE)
        arrays = [
            _timestamps(self.timestamps_us),
            nulls(count, pa.binary()) if self.keys.count(None) == count else pa.array(self.keys, pa.binary()),
            pa.array(self.values, pa.binary()),
            headers,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def concatenate(self, offset: int, later: RecordBuffer) -> RecordBuffer:
        """See `Buffer.concatenate`."""
        dropped, rows = max(0, offset - self.base_offset), len(self.timestamps_us)
        whole = RecordBuffer(self.base_offset + dropped)
        whole.keys = self.keys[dropped:] + later.keys
        whole.values = self.values[dropped:] + later.values
        whole.timestamps_us = self.timestamps_us[dropped:] + later.timestamps_us
        whole.headers = _concatenate(self.headers, dropped, later.headers, rows - dropped)
        whole.numbers = _concatenate(self.numbers, dropped, later.numbers, rows - dropped)
        whole.bytes = self.bytes - self.bytes * dropped // max(1, rows) + later.bytes
        return whole


class RowLayout(NamedTuple):
    """The columns of a typed topic's rows.

    Attributes
    ----------
    types
        Types of the columns.
    first_alike
        For each column, the first column of the same type.
    row_bytes
        The bytes of a row in memory beyond its size (`tiered.format.sizes`): its timestamp and its columns' slots.
    """

    types: tuple[pa.DataType, ...]
    first_alike: tuple[int, ...]
    row_bytes: int

    @classmethod
    def of(cls, schema: pa.Schema) -> RowLayout:
        """Return the layout of a schema without the system columns."""
        first: dict[str, int] = {}
        first_alike = tuple(first.setdefault(str(kind), at) for at, kind in enumerate(schema.types))
        return cls(tuple(schema.types), first_alike, row_bytes(body_schema(schema)))


class RowBuffer:
    """Pending rows of a typed topic: one list a column."""

    __slots__ = ("_layout", "base_offset", "bytes", "columns", "numbers", "row_bytes", "timestamps_us")

    def __init__(self, base_offset: int, layout: RowLayout) -> None:
        self.base_offset = base_offset
        self.row_bytes = layout.row_bytes
        self._layout = layout
        self.timestamps_us: list[int] = []
        self.columns: list[list[Any]] = [[] for _ in layout.types]
        self.numbers: dict[int, Number] = {}
        self.bytes = 0

    def successor(self) -> RowBuffer:
        """See `Buffer.successor`."""
        return RowBuffer(self.base_offset + len(self.timestamps_us), self._layout)

    def truncate(self, count: int) -> None:
        """See `RecordBuffer.truncate`."""
        for column in (self.timestamps_us, *self.columns):
            del column[count:]
        _truncate(self.numbers, count)
        if not count:
            self.bytes = 0

    def add(self, values: Sequence[Any], size: int) -> None:
        """Add the columns of a row; the row counts once the caller adds its timestamp."""
        # A row that was checked before the schema grew lacks the new columns.
        for column, value in zip_longest(self.columns, values):
            column.append(value)
        self.bytes += size + self.row_bytes

    def add_plain(self, records: PlainRecords) -> None:
        """Add the columns of each record; the records count once the caller adds their timestamps."""
        # As in `add`.
        for column, values in zip_longest(self.columns, records.columns):
            column.extend(repeat(None, len(records.sizes)) if values is None else values)
        self.bytes += records.total_bytes

    @property
    def width(self) -> int:
        """The number of columns without the timestamp."""
        return len(self.columns)

    def extend(self, rows: RowBuffer) -> None:
        """Add all of other rows, of the same columns, but their timestamps, which make them count."""
        for column, values in zip(self.columns, rows.columns, strict=True):
            column.extend(values)
        self.bytes += rows.bytes

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """See `Buffer.to_batch`."""
        arrays = [_timestamps(self.timestamps_us)]
        count = len(self.timestamps_us)
        # All empty columns of a type share one array: sparse rows fill few of thousands of columns.
        empty: dict[int, pa.Array] = {}
        for column, kind, alike in zip(
            self.columns, self._layout.types, self._layout.first_alike, strict=True
        ):
            if column[0] is not None or column.count(None) < count:
                arrays.append(pa.array(column, kind))
                continue
            if alike not in empty:
                empty[alike] = nulls(count, kind)
            arrays.append(empty[alike])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def concatenate(self, offset: int, later: RowBuffer) -> RowBuffer:
        """See `Buffer.concatenate`."""
        dropped, rows = max(0, offset - self.base_offset), len(self.timestamps_us)
        whole = RowBuffer(self.base_offset + dropped, self._layout)
        whole.columns = [
            mine[dropped:] + theirs for mine, theirs in zip(self.columns, later.columns, strict=True)
        ]
        whole.timestamps_us = self.timestamps_us[dropped:] + later.timestamps_us
        whole.numbers = _concatenate(self.numbers, dropped, later.numbers, rows - dropped)
        whole.bytes = self.bytes - self.bytes * dropped // max(1, rows) + later.bytes
        return whole


def _timestamps(times_us: list[int]) -> pa.Array:
    # By NumPy: Arrow infers the type of each value, which takes twice the time.
    return pa.array(np.fromiter(times_us, np.int64, len(times_us))).view(TIMESTAMP)


def _concatenate(mine: dict[int, _T], dropped: int, later: dict[int, _T], rows: int) -> dict[int, _T]:
    """Return the entries by row of `rows` rows, before which `dropped` rows are left out, and of the later rows."""
    entries = {row - dropped: entry for row, entry in mine.items() if row >= dropped}
    return entries | {rows + row: entry for row, entry in later.items()}


def _truncate(numbers: dict[int, Number], count: int) -> None:
    for row in [row for row in numbers if row >= count]:
        del numbers[row]
