"""Buffers of records that are not written yet: plain lists, turned into Arrow columns a block at a time.

A row is spread over parallel lists. An exception between two appends (Ctrl-C can strike there) would
leave them askew and pair keys with the wrong values ever after, so every `add` restores equal lengths
before it lets an exception pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
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
"""What a record takes beside its size (`tiered.format.sizes`)."""

Number = tuple[int, int, int]
"""Producer id, epoch and sequence of a record of an idempotent producer."""


class Buffer(Protocol):
    """Pending rows of one partition; ``timestamps_us`` has one entry a row.

    ``bytes`` is about what Arrow will hold of them. ``numbers`` has those of idempotent producers, by row; most rows
    have none.
    """

    base_offset: int
    timestamps_us: list[int]
    bytes: int
    numbers: dict[int, Number]

    def following(self) -> Any:
        """Return an empty buffer of the same kind, for the rows after these."""
        ...

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows as a body batch."""
        ...

    def joined(self, offset: int, later: Any) -> Any:
        """Return the rows from `offset` on, then those of a buffer of the same kind that follows; both stay as they are."""
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

    def following(self) -> RecordBuffer:
        """See `Buffer.following`."""
        return RecordBuffer(self.base_offset + len(self.timestamps_us))

    def truncate(self, count: int) -> None:
        """Keep the first `count` rows."""
        for column in (self.timestamps_us, self.keys, self.values):
            del column[count:]
        for row in [row for row in self.headers if row >= count]:
            del self.headers[row]
        _truncate(self.numbers, count)

    def add(self, values: Sequence[Any], size: int) -> None:
        """Add key, value and headers of a row, all but its timestamp, which makes it count."""
        row = len(self.timestamps_us)
        key, value, headers = values
        self.keys.append(key)
        self.values.append(value)
        if headers is not None:
            self.headers[row] = headers
        self.bytes += size

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
            _timestamps(self.timestamps_us),
            nulls(count, pa.binary()) if self.keys.count(None) == count else pa.array(self.keys, pa.binary()),
            pa.array(self.values, pa.binary()),
            headers,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def joined(self, offset: int, later: RecordBuffer) -> RecordBuffer:
        """See `Buffer.joined`."""
        gone, rows = max(0, offset - self.base_offset), len(self.timestamps_us)
        whole = RecordBuffer(self.base_offset + gone)
        whole.keys = self.keys[gone:] + later.keys
        whole.values = self.values[gone:] + later.values
        whole.timestamps_us = self.timestamps_us[gone:] + later.timestamps_us
        whole.headers = _joined(self.headers, gone, later.headers, rows - gone)
        whole.numbers = _joined(self.numbers, gone, later.numbers, rows - gone)
        whole.bytes = self.bytes - self.bytes * gone // max(1, rows) + later.bytes
        return whole


class RowLayout(NamedTuple):
    """What is known of the rows of a typed topic, but for their values.

    Attributes
    ----------
    types
        Of the columns.
    alike
        For each column, the first one of the same type.
    row_bytes
        What a row takes beside its size (`tiered.format.sizes`): the slots of its columns, and its timestamp.
    """

    types: tuple[pa.DataType, ...]
    alike: tuple[int, ...]
    row_bytes: int

    @classmethod
    def of(cls, schema: pa.Schema) -> RowLayout:
        """Return that of a topic's own columns."""
        first: dict[str, int] = {}
        alike = tuple(first.setdefault(str(kind), at) for at, kind in enumerate(schema.types))
        return cls(tuple(schema.types), alike, row_bytes(body_schema(schema)))


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

    def following(self) -> RowBuffer:
        """See `Buffer.following`."""
        return RowBuffer(self.base_offset + len(self.timestamps_us), self._layout)

    def truncate(self, count: int) -> None:
        """Keep the first `count` rows."""
        for column in (self.timestamps_us, *self.columns):
            del column[count:]
        _truncate(self.numbers, count)

    def add(self, values: Sequence[Any], size: int) -> None:
        """Add the columns of a row, all but its timestamp, which makes it count."""
        # A row checked before the schema grew lacks the new columns.
        for column, value in zip_longest(self.columns, values):
            column.append(value)
        self.bytes += size + self.row_bytes

    def to_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """See `Buffer.to_batch`."""
        arrays = [_timestamps(self.timestamps_us)]
        count = len(self.timestamps_us)
        # One serves all columns of a type that have no value: of thousands, sparse rows fill few.
        empty: dict[int, pa.Array] = {}
        for column, kind, alike in zip(self.columns, self._layout.types, self._layout.alike, strict=True):
            if column[0] is not None or column.count(None) < count:
                arrays.append(pa.array(column, kind))
                continue
            if alike not in empty:
                empty[alike] = nulls(count, kind)
            arrays.append(empty[alike])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def joined(self, offset: int, later: RowBuffer) -> RowBuffer:
        """See `Buffer.joined`."""
        gone, rows = max(0, offset - self.base_offset), len(self.timestamps_us)
        whole = RowBuffer(self.base_offset + gone, self._layout)
        whole.columns = [
            mine[gone:] + theirs for mine, theirs in zip(self.columns, later.columns, strict=True)
        ]
        whole.timestamps_us = self.timestamps_us[gone:] + later.timestamps_us
        whole.numbers = _joined(self.numbers, gone, later.numbers, rows - gone)
        whole.bytes = self.bytes - self.bytes * gone // max(1, rows) + later.bytes
        return whole


def _timestamps(times_us: list[int]) -> pa.Array:
    # By NumPy: Arrow looks at each for what else it might be, which takes twice the time.
    return pa.array(np.fromiter(times_us, np.int64, len(times_us))).view(TIMESTAMP)


def _joined(mine: dict[int, _T], gone: int, later: dict[int, _T], rows: int) -> dict[int, _T]:
    """Return what is kept by row of `rows` rows and of those that follow; the first `gone` had been in front of them."""
    kept = {row - gone: item for row, item in mine.items() if row >= gone}
    return kept | {rows + row: item for row, item in later.items()}


def _truncate(numbers: dict[int, Number], count: int) -> None:
    for row in [row for row in numbers if row >= count]:
        del numbers[row]
