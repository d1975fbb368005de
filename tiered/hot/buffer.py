"""Buffers of records that are not written yet: plain lists, turned into Arrow columns a block at a time.

A row is spread over parallel lists. An exception between two appends (Ctrl-C can strike there) would
leave them askew and pair keys with the wrong values ever after, so every `add` restores equal lengths
before it lets an exception pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from ..format.block import Body
from ..format.schema import HEADERS_TYPE, TIMESTAMP, nulls
from ..format.single import SINGLE_BYTES_MAX, encode_single

RECORD_OVERHEAD_BYTES = 24


class Buffer(Protocol):
    """Pending rows of one partition; ``timestamps_us`` has one entry a row."""

    base_offset: int
    timestamps_us: list[int]
    bytes: int

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows as a body batch."""
        ...

    def extend(self, later: Any) -> None:
        """Take over the rows of a buffer of the same kind that follows this one."""
        ...

    def drop_before(self, offset: int) -> None:
        """Forget the rows before `offset`; they have been written."""
        ...


class RecordBuffer:
    """Pending rows of the record schema: key, value, headers."""

    __slots__ = ("base_offset", "bytes", "headers", "keys", "timestamps_us", "values")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.timestamps_us: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        # Sparse, by row: most records have no headers.
        self.headers: dict[int, Sequence[tuple[str, bytes | None]]] = {}
        self.bytes = 0

    def truncate(self, count: int) -> None:
        """Keep the first `count` rows."""
        for column in (self.timestamps_us, self.keys, self.values):
            del column[count:]
        for row in [row for row in self.headers if row >= count]:
            del self.headers[row]

    @property
    def is_single(self) -> bool:
        """Whether there is one small record without headers, for `to_single`."""
        return len(self.timestamps_us) == 1 and not self.headers and self.bytes <= SINGLE_BYTES_MAX

    def to_single(self) -> Body:
        """Return the one row as an encoded block."""
        return encode_single(self.timestamps_us[0], self.keys[0], self.values[0])

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """See `Buffer.to_batch`."""
        count = len(self.timestamps_us)
        if self.headers:
            headers = pa.array([self.headers.get(i) for i in range(count)], HEADERS_TYPE)
        else:
            headers = nulls(count, HEADERS_TYPE)
        arrays = [
            pa.array(self.timestamps_us, TIMESTAMP),
            pa.array(self.keys, pa.binary()),
            pa.array(self.values, pa.binary()),
            headers,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def extend(self, later: RecordBuffer) -> None:
        """See `Buffer.extend`."""
        count = len(self.timestamps_us)
        self.headers.update({count + row: headers for row, headers in later.headers.items()})
        self.keys += later.keys
        self.values += later.values
        self.timestamps_us += later.timestamps_us
        self.bytes += later.bytes

    def drop_before(self, offset: int) -> None:
        """See `Buffer.drop_before`."""
        count = max(0, offset - self.base_offset)
        self.bytes -= self.bytes * count // max(1, len(self.timestamps_us))
        for column in (self.timestamps_us, self.keys, self.values):
            del column[:count]
        self.headers = {row - count: headers for row, headers in self.headers.items() if row >= count}
        self.base_offset += count


class RowBuffer:
    """Pending rows of a typed topic: one list a column."""

    __slots__ = ("base_offset", "bytes", "columns", "timestamps_us")

    def __init__(self, base_offset: int, column_count: int) -> None:
        self.base_offset = base_offset
        self.timestamps_us: list[int] = []
        self.columns: list[list[Any]] = [[] for _ in range(column_count)]
        self.bytes = 0

    def truncate(self, count: int) -> None:
        """Keep the first `count` rows."""
        for column in (self.timestamps_us, *self.columns):
            del column[count:]

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """See `Buffer.to_batch`."""
        arrays = [pa.array(self.timestamps_us, TIMESTAMP)]
        arrays += [pa.array(column, schema.field(i + 1).type) for i, column in enumerate(self.columns)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def extend(self, later: RowBuffer) -> None:
        """See `Buffer.extend`."""
        for mine, theirs in zip(self.columns, later.columns, strict=True):
            mine.extend(theirs)
        self.timestamps_us += later.timestamps_us
        self.bytes += later.bytes

    def drop_before(self, offset: int) -> None:
        """See `Buffer.drop_before`."""
        count = max(0, offset - self.base_offset)
        self.bytes -= self.bytes * count // max(1, len(self.timestamps_us))
        for column in (self.timestamps_us, *self.columns):
            del column[:count]
        self.base_offset += count
