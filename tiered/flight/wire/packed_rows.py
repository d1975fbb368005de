"""Packed rows: a few plain records as bytes in the metadata of a put, where an Arrow batch costs more than its rows.

The metadata of such a message is a `BatchInfo`, one zero byte, and:

=============  =============================================================================
field          content, little-endian
=============  =============================================================================
version        1 byte, `VERSION`
count          4 bytes, unsigned, at least 1
sequence       8 bytes, signed, not negative: the number of the first record
timestamps     for each record 8 bytes, signed: microseconds since the epoch
key lengths    for each record 4 bytes, signed: bytes of the key, -1 without a key
value lengths  the same of the value
keys, values   the bytes of all keys, then of all values
=============  =============================================================================

The answer is an `Ack` if it has an error. Else it is as short:

=============  =============================================================================
version        1 byte, `VERSION`
partitions     4 bytes, unsigned, and 4 bytes ``schema_id``, as in an `Ack`
ranges         for each range 4 bytes, unsigned: the partition; 8 bytes each, signed: start
               and end
=============  =============================================================================

A server announces the version that it reads as ``packed_rows`` in its answer to the action ``server``. Records with headers
and rows of typed topics go as Arrow batches. The zero byte cannot occur in a `BatchInfo`, which is JSON. Its own sequence is
0, so that it is the same for many messages of a stream, and is encoded and decoded once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from ...errors import ConfigError
from ...format.schema import TIMESTAMP_US_MAX, TIMESTAMP_US_MIN
from ...hot.row_buffer import RECORD_OVERHEAD_BYTES, RecordBuffer
from .put_messages import Ack
from .values import MESSAGE_BYTES_MAX

VERSION = 1
PACKED_BYTES_MAX = 64 << 10
"""Of records with their overhead. More of them cost less as an Arrow batch."""

_HEAD = struct.Struct("<BIq")
_RECORD_BYTES = 16  # a timestamp and two lengths
_ACK = struct.Struct("<BII")
_RANGE = struct.Struct("<Iqq")


def is_packable(rows: RecordBuffer) -> bool:
    """Whether records go as packed rows."""
    return not rows.headers and rows.bytes <= PACKED_BYTES_MAX


def pack_rows(sequence: int, rows: RecordBuffer) -> bytes:
    """Return records, and the number of the first one, as bytes."""
    count = len(rows.timestamps_us)
    keys, values = rows.keys, rows.values
    lengths = [-1 if item is None else len(item) for column in (keys, values) for item in column]
    numbers = struct.pack(f"<{count}q{2 * count}i", *rows.timestamps_us, *lengths)
    return b"".join(
        [_HEAD.pack(VERSION, count, sequence), numbers, *filter(None, keys), *filter(None, values)]
    )


def join_rows(info: bytes, packed: bytes) -> bytes:
    """Return the metadata of a message that has packed rows."""
    return b"\0".join((info, packed))


def split_rows(metadata: bytes) -> tuple[bytes, bytes | None]:
    """Return the `BatchInfo` of a message and its packed rows if it has any, both still encoded."""
    info, mark, data = metadata.partition(b"\0")
    return info, data if mark else None


def unpack_rows(data: bytes) -> tuple[int, RecordBuffer]:
    """Invert `pack_rows`.

    Raises
    ------
    ConfigError
        The bytes are no packed rows, or of a version that this release does not read.
    """
    if len(data) > MESSAGE_BYTES_MAX:
        raise ConfigError(f"packed rows of {len(data)} bytes: at most {MESSAGE_BYTES_MAX} are taken")
    version, count, sequence = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (VERSION, 0, 0)
    if version != VERSION:
        raise ConfigError(f"the other end sent packed rows of version {version}, this one reads {VERSION}")
    position = _HEAD.size + _RECORD_BYTES * count
    if count == 0 or position > len(data) or sequence < 0:
        raise ConfigError(f"{len(data)} bytes are no packed rows")
    numbers = struct.unpack_from(f"<{count}q{2 * count}i", data, _HEAD.size)
    timestamps, lengths = numbers[:count], numbers[count:]
    if min(lengths) < -1 or position + sum(lengths) + lengths.count(-1) != len(data):
        raise ConfigError(f"the lengths in packed rows do not add up to their {len(data)} bytes")
    if min(timestamps) < TIMESTAMP_US_MIN or max(timestamps) > TIMESTAMP_US_MAX:
        raise ConfigError("a timestamp in packed rows is out of range: years 1 to 9999")
    items = list(_items(data, position, lengths))
    rows = RecordBuffer(0)
    rows.timestamps_us, rows.keys, rows.values = list(timestamps), items[:count], items[count:]
    rows.bytes = len(data) - position + count * RECORD_OVERHEAD_BYTES
    return sequence, rows


def _items(data: bytes, position: int, lengths: Sequence[int]) -> Iterator[bytes | None]:
    for length in lengths:
        if length < 0:
            yield None
        else:
            yield data[position : position + length]
            position += length


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
