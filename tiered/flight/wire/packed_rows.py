"""Packed rows: a few rows as bytes in the metadata of a put, where an Arrow batch costs more than its rows.

The metadata of such a message is a `BatchInfo`, one zero byte, and:

===========  ===============================================================================
field        content, little-endian
===========  ===============================================================================
version      1 byte, `VERSION`
width        2 bytes, unsigned: the number of columns
count        4 bytes, unsigned: the number of rows, at least 1
sequence     8 bytes, signed, not negative: the number of the first row
timestamps   for each row 8 bytes, signed: microseconds since the epoch
columns      the first columns of the topic, as `packed_columns` has them; of a record topic
             at least two, key and value
===========  ===============================================================================

The answer is an `Ack` if it has an error. Else it is as short:

===========  ===============================================================================
version      1 byte, `VERSION`
partitions   4 bytes, unsigned, and 4 bytes ``schema_id``, as in an `Ack`
ranges       for each range 4 bytes, unsigned: the partition; 8 bytes each, signed: start
             and end
===========  ===============================================================================

A server announces the version that it reads as ``packed_rows`` in its answer to the action ``server``. The zero byte cannot
occur in a `BatchInfo`, which is JSON. Its own sequence is 0, so that it is the same for many messages of a stream, and is
encoded and decoded once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ...errors import ConfigError
from ...format.schema import RECORD_SCHEMA, TIMESTAMP_US_MAX, TIMESTAMP_US_MIN
from ...hot.row_buffer import RECORD_OVERHEAD_BYTES, RecordBuffer, RowBuffer, RowLayout
from .packed_columns import RECORD_COLUMNS, Column, column_of
from .put_messages import Ack
from .values import MESSAGE_BYTES_MAX

VERSION = 1
PACKED_BYTES_MAX = 64 << 10
"""Limit of packed rows, by the bytes that they would take in Arrow. Larger ones cost less as an Arrow batch."""

_HEAD = struct.Struct("<BHIq")
_ACK = struct.Struct("<BII")
_RANGE = struct.Struct("<Iqq")


class RowPacker:
    """Packs and unpacks rows of one topic, by its schema at one time."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._layout = None if schema.equals(RECORD_SCHEMA) else RowLayout.of(schema)
        self._columns: Sequence[Column | None] = RECORD_COLUMNS
        if self._layout is not None:
            self._columns = list(map(column_of, schema.types))

    def takes(self, rows: RecordBuffer | RowBuffer) -> bool:
        """Whether rows go packed, and not as a batch."""
        if rows.bytes > PACKED_BYTES_MAX:
            return False
        return None not in self._columns[: rows.width]

    def pack(self, sequence: int, rows: RecordBuffer | RowBuffer) -> bytes:
        """Return rows that are taken, and the number of the first one, as bytes."""
        count = len(rows.timestamps_us)
        columns: list[list[Any]]
        if isinstance(rows, RowBuffer):
            columns = rows.columns
        elif rows.headers:
            columns = [rows.keys, rows.values, list(map(rows.headers.get, range(count)))]
        else:
            columns = [rows.keys, rows.values]
        parts = [
            _HEAD.pack(VERSION, len(columns), count, sequence),
            struct.pack(f"<{count}q", *rows.timestamps_us),
        ]
        for column, values in zip(self._columns, columns, strict=False):
            assert column is not None
            parts += column.pack(values)
        return b"".join(parts)

    def unpack(self, data: bytes) -> tuple[int, RecordBuffer | RowBuffer]:
        """Invert `pack`.

        Raises
        ------
        ConfigError
            The bytes are no packed rows of the topic, or of a version that this release does not read.
        """
        if len(data) > MESSAGE_BYTES_MAX:
            raise ConfigError(f"packed rows of {len(data)} bytes: at most {MESSAGE_BYTES_MAX} are taken")
        if data[:1] != bytes([VERSION]):
            raise ConfigError(f"packed rows of version {data[0] if data else None}: this end reads {VERSION}")
        try:
            return self._unpack(data)
        except (ValueError, struct.error) as error:
            raise ConfigError(f"{len(data)} bytes are no packed rows of this topic ({error})") from None

    def _unpack(self, data: bytes) -> tuple[int, RecordBuffer | RowBuffer]:
        _, width, count, sequence = _HEAD.unpack_from(data)
        # Before memory is set aside by the count.
        fits = (2 if self._layout is None else 0) <= width <= len(self._columns)
        if count == 0 or _HEAD.size + 8 * count > len(data) or sequence < 0 or not fits:
            raise ValueError(f"{count} rows of {width} columns from number {sequence} on")
        timestamps = struct.unpack_from(f"<{count}q", data, _HEAD.size)
        if min(timestamps) < TIMESTAMP_US_MIN or max(timestamps) > TIMESTAMP_US_MAX:
            raise ValueError("a timestamp is out of range: years 1 to 9999")
        position, size = _HEAD.size + 8 * count, 0
        columns = []
        for column in self._columns[:width]:
            if column is None:
                raise ValueError("a column whose type is not packed")
            values, position, more = column.unpack(data, position, count)
            columns.append(values)
            size += more
        if position != len(data):
            raise ValueError(f"{len(data) - position} bytes too many")
        return sequence, self._rows(list(timestamps), columns, size)

    def _rows(self, timestamps: list[int], columns: list[list[Any]], size: int) -> RecordBuffer | RowBuffer:
        count, rows = len(timestamps), self._empty(len(columns))
        if isinstance(rows, RecordBuffer):
            rows.keys, rows.values = columns[:2]
            if len(columns) > 2:
                rows.headers = {at: pairs for at, pairs in enumerate(columns[2]) if pairs}
            rows.bytes = size + count * RECORD_OVERHEAD_BYTES
        else:
            rows.columns = columns
            rows.bytes = size + count * rows.row_bytes
        rows.timestamps_us = timestamps
        return rows

    def _empty(self, width: int) -> RecordBuffer | RowBuffer:
        if self._layout is None:
            return RecordBuffer(0)
        if width == len(self._columns):
            return RowBuffer(0, self._layout)
        # Of a client that does not know the columns that the topic gained since.
        return RowBuffer(0, RowLayout.of(pa.schema(list(self._schema)[:width])))


def join_rows(info: bytes, packed: bytes) -> bytes:
    """Return the metadata of a message that has packed rows."""
    return b"\0".join((info, packed))


def split_rows(metadata: bytes) -> tuple[bytes, bytes | None]:
    """Return the `BatchInfo` of a message and its packed rows if it has any, both still encoded."""
    info, mark, data = metadata.partition(b"\0")
    return info, data if mark else None


def encode_answer(ack: Ack) -> bytes:
    """Return the answer to packed rows."""
    if ack.error is not None:
        return ack.encode()
    head = _ACK.pack(VERSION, ack.partitions, ack.schema_id)
    return b"".join([head, *(_RANGE.pack(*item) for item in ack.ranges)])


def decode_answer(data: bytes) -> Ack:
    """Return the answer to any batch, packed or not.

    Raises
    ------
    ConfigError
    """
    if data[:1] != bytes([VERSION]):
        return Ack.decode(data)
    if len(data) < _ACK.size or (len(data) - _ACK.size) % _RANGE.size:
        raise ConfigError("the other end sent no acknowledgement; is it a tiered server?")
    _, partitions, schema_id = _ACK.unpack_from(data)
    return Ack(tuple(_RANGE.iter_unpack(data[_ACK.size :])), None, partitions, schema_id)
